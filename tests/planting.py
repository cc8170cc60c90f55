"""Plants a fault: a function with something else in the place of one of its checks."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any


def planted(owner: Any, name: str, old: str, new: str) -> Any:
    """``owner.name`` with ``new`` in the place of ``old``, of which there is one. Several lines are written as in the file."""
    function = getattr(owner, name)
    text = inspect.getsource(function)
    assert text.count(old) == 1, f"{function.__qualname__} has no such check any more: {old}"
    made: dict[str, Any] = {}  # apart from the names that it finds: one of them may be its own
    exec("from __future__ import annotations\n" + textwrap.dedent(text.replace(old, new)), dict(function.__globals__), made)
    return made[name]
