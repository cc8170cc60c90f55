"""What code reads of functions: what they are made of, and what they were given."""

from __future__ import annotations

import functools
from types import CellType, FunctionType, MethodType
from typing import Any

import torch

from .asking import TOLD
from .bytecode import reads_of
from .chains import ATTRIBUTE, ITEM, USED, Chain
from .given import is_given, is_ours, is_read
from .notes import MISSING, SeenFunction, content_of
from .origin import Origin
from .seen_classes import SeenClasses

#: What a function is made of, by the names of it.
_MADE_OF = frozenset((ATTRIBUTE, name) for name in ("__code__", "__defaults__", "__kwdefaults__", "__closure__"))
#: What Python's own ``__repr__`` of a dataclass is at just now, by which it finds that one holds itself.
_PRINTING = "repr_running"


class SeenFunctions(SeenClasses):
    """What is read of functions. Nothing is called for it.

    Args:
        root: the module that is called.

    Attributes:
        functions: what was read, for the guard.
        exact: the ids of objects that were asked for by identity: no other is as good.
    """

    def __init__(self, root: torch.nn.Module) -> None:
        super().__init__(root)
        self.functions: dict[int, SeenFunction] = {}
        self.exact: set[int] = set()

    def _function(self, function: FunctionType, chain: Chain, origin: Origin | None) -> None:
        self._attributes_of_function(function, chain, origin)
        code = function.__code__
        if id(function) in self.functions or is_ours(code.co_filename):  # ours may lead to the module that is compiled
            return
        closed_over = {
            name: (cell, content_of(cell))
            for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)
            if name != _PRINTING or is_read(code.co_filename)
        }
        cells = list(closed_over.values())
        defaults, keywords = self._made_of(function, cells, origin)
        for cell, _ in cells:
            self.readers.note((id(cell), None))
        if is_given(function.__module__) and not cells and not is_read(code.co_filename):
            return
        reads = reads_of(code)
        for default in (*(defaults or ()), *(keywords or {}).values()):
            self._see(default, USED, origin)
        for name, (_, value) in closed_over.items():
            if value is not MISSING:
                self._below(value, reads.variables[name] if reads.variables[name].followed else USED, origin, name)

    def _made_of(
        self, function: FunctionType, cells: list[tuple[CellType, Any]], origin: Origin | None
    ) -> tuple[tuple[Any, ...] | None, dict[str, Any] | None]:
        defaults, keywords = function.__defaults__, function.__kwdefaults__
        self.functions[id(function)] = SeenFunction(
            function, function.__code__, defaults, keywords and dict(keywords), cells, origin
        )
        return defaults, keywords

    def _attributes_of_function(self, function: FunctionType, chain: Chain, origin: Origin | None) -> None:
        for (what, name), below in chain.below.items():
            if what == ATTRIBUTE and name in TOLD:
                self.exact.add(id(function))  # another one has another name
                self._below(self._tell(function, name, origin), below, origin, name)
            elif what == ATTRIBUTE and name == "__globals__":
                for _, key in filter(lambda each: each[0] == ITEM, below.below):
                    self._below(
                        self._place(function.__globals__, key, function.__globals__.get(key, MISSING), origin),
                        USED,
                        origin,
                        key,
                    )
            elif what == ATTRIBUTE and name not in vars(FunctionType):
                table = vars(function)
                self._below(self._place(table, name, table.get(name, MISSING), origin), below, origin, name)

    def _live(self, value: Any, chain: Chain, origin: Origin | None) -> None:
        """What the code around it reads of a function that runs live. What it reads itself is its own."""
        function = value.__func__ if isinstance(value, MethodType) else value
        if isinstance(function, FunctionType):
            self._attributes_of_function(function, chain, origin)
            if not _MADE_OF.isdisjoint(chain.below):
                self._made_of(function, [], origin)
        elif isinstance(function, functools.partial):
            for (what, name), below in chain.below.items():
                if what == ATTRIBUTE and name in ("func", "args", "keywords"):
                    self._below(getattr(function, name), below, origin, name)
