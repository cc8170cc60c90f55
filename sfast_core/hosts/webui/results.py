"""What a text encoder returns, in a form that a trace can hold: older versions of transformers don't tell PyTorch what
is in their results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Opened:
    """Results of one module's as plain dicts, and such dicts as results of the module's class again."""

    def __init__(self) -> None:
        self._class: type[Any] | None = None

    def inside(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """``forward``, which returns a dict in place of an object of transformers'. Other results stay as they are."""

        def opened(*args: Any, **kwargs: Any) -> Any:
            result = forward(*args, **kwargs)
            if not isinstance(result, dict) or type(result).__module__.partition(".")[0] != "transformers":
                return result
            self._class = type(result)
            return dict(result)

        return opened

    def closed(self, result: Any) -> Any:
        """``result`` as the module itself would return it."""
        return self._class(**result) if self._class is not None and type(result) is dict else result
