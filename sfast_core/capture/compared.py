"""Numbers that code reads of a tensor and only compares: how each comparison comes out is what steers it, not which
number it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Number(float):
    """A number that was read. ``noted`` is told of each comparison: its name, with what, and how it came out; of
    another use by ``__eq__`` with itself.
    """

    noted: Callable[[str, Any, bool], None]


def _comparing(name: str) -> Any:
    plain = getattr(float, name)

    def compare(self: Number, other: Any) -> Any:
        answer = plain(self, other)
        if type(answer) is bool and type(other) in (int, float, bool):
            self.noted(name, other, answer)
        else:
            self.noted("__eq__", float.__float__(self), True)
        return answer

    return compare


for _name in ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"):
    setattr(Number, _name, _comparing(_name))


def _is_there(self: Number) -> bool:
    answer = float.__bool__(self)
    self.noted("__ne__", 0, answer)
    return answer


Number.__bool__ = _is_there  # type: ignore[method-assign, assignment]
Number.__hash__ = float.__hash__  # type: ignore[method-assign]
