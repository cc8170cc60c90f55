"""Plants a fault: a function with something else in the place of one of its checks."""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Any


def planted(owner: Any, name: str, old: str, new: str) -> Any:
    """``owner.name`` with ``new`` in the place of ``old``, of which there is one, however its lines are broken."""
    function = getattr(owner, name)
    text = inspect.getsource(function)
    there = list(_however_broken(old).finditer(text))
    assert len(there) == 1, f"{function.__qualname__} has no such check any more: {old}"
    changed = text[: there[0].start()] + new + text[there[0].end() :]
    made: dict[str, Any] = {}  # apart from the names that it finds: one of them may be its own
    exec("from __future__ import annotations\n" + textwrap.dedent(changed), dict(function.__globals__), made)
    return made[name]


def _however_broken(code: str) -> re.Pattern[str]:
    """``code`` with lines broken anywhere in it, and with the comma behind the last of what is in brackets."""
    tokens = re.findall(r"""\w+|"[^"]*"|'[^']*'|[^\w\s]""", code)
    return re.compile(r"\s*".join(("(?:,\\s*)?" if token in ")]}" else "") + re.escape(token) for token in tokens))
