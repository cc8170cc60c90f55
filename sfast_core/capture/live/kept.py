"""What live code returned that somebody holds, and live code that lies among a call's options."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from .surroundings import Path, Surroundings


class Kept(NamedTuple):
    """A list or a dict that live code returned and that somebody holds: as the model has it, itself, and by whom."""

    models: Any
    own: Any
    by: str

    def put_into(self, result: Any) -> Any:
        """A call's result with the list itself in it, where the model has returned it;
        the very ``result`` where not.
        """
        if result is self.models:
            return self.own
        if type(result) in (list, tuple):
            items = [self.put_into(item) for item in result]
            return result if all(map(operator.is_, items, result)) else type(result)(items)
        if type(result) is dict:
            table = {key: self.put_into(item) for key, item in result.items()}
            return result if all(map(operator.is_, table.values(), result.values())) else table
        return result


@dataclass(frozen=True)
class InOptions:
    """Live code that lies among the call's options."""

    key: Path
    name: str
    because: str | None = None  #: why it isn't recorded with the model's code, where that is known

    def find(self, around: Surroundings) -> Callable[..., Any]:
        """The function that this call has there."""
        function: Callable[..., Any] = around.at(self.key)
        return function
