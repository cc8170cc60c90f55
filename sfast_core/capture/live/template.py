"""How the arguments of a live call are made again at each call: tensors from the program, the call's own options, plain
values as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .surroundings import Path, Surroundings


@dataclass
class Filling:
    """What a template is filled with.

    Attributes:
        tensors: that are handed over, by number.
        around: the call's own things.
        callbacks: the model's own functions, by number.
    """

    tensors: Sequence[torch.Tensor]
    around: Surroundings
    callbacks: Sequence[Callable[..., Any]] = ()


class Template:
    """A value to be made at each call."""

    def fill(self, by: Filling) -> Any:
        """The value for this call."""
        raise NotImplementedError


@dataclass(frozen=True)
class Constant(Template):
    """A value that is the same at each call."""

    value: Any

    def fill(self, by: Filling) -> Any:
        return self.value


@dataclass(frozen=True)
class TensorAt(Template):
    """A tensor of the program's."""

    index: int

    def fill(self, by: Filling) -> Any:
        return by.tensors[self.index]


@dataclass(frozen=True)
class OptionAt(Template):
    """What the options of the present call have at a path."""

    path: Path

    def fill(self, by: Filling) -> Any:
        return by.around.at(self.path)


@dataclass(frozen=True)
class LeftAt(Template):
    """What live code has put into a dict of the model's. ``path``: of the option that is the key."""

    number: int
    key: Any
    path: Path | None = None

    def fill(self, by: Filling) -> Any:
        key = self.key if self.path is None else by.around.at(self.path)
        return by.around.boxes[self.number][key]


@dataclass(frozen=True)
class CallbackAt(Template):
    """A function of the model's own."""

    index: int

    def fill(self, by: Filling) -> Any:
        return by.callbacks[self.index]


@dataclass(frozen=True)
class ModuleAt(Template):
    """A module below the one that is called, or a method of it."""

    path: str
    method: str | None = None

    def fill(self, by: Filling) -> Any:
        assert by.around.module is not None
        module = by.around.module.get_submodule(self.path)
        return module if self.method is None else getattr(module, self.method)


@dataclass(frozen=True)
class TupleOf(Template):
    """A tuple of such values."""

    items: tuple[Template, ...]

    def fill(self, by: Filling) -> Any:
        return tuple([item.fill(by) for item in self.items])


@dataclass(frozen=True)
class ListBox(Template):
    """A list that the model made: the same object each time that one call hands it over."""

    number: int
    items: tuple[Template, ...]

    def fill(self, by: Filling) -> Any:
        box = by.around.boxes.setdefault(self.number, [])
        box[:] = [item.fill(by) for item in self.items]
        return box


class DictBox(Template):
    """A dict of such values: what the model has set since it was handed over last, and what it has taken out.

    What live code puts there stays, for the next one to find.
    """

    def __init__(self, number: int, items: Sequence[tuple[Any, Template]], removed: tuple[Any, ...] = ()) -> None:
        self.number = number
        self.removed = removed
        self._order = dict.fromkeys(key for key, _ in items)
        self._constant = {key: item.value for key, item in items if isinstance(item, Constant)}
        self._options = [(key, item.path) for key, item in items if isinstance(item, OptionAt)]
        self._others = [(key, item) for key, item in items if not isinstance(item, (Constant, OptionAt))]

    def fill(self, by: Filling) -> Any:
        boxes = by.around.boxes
        box = boxes.get(self.number)
        if box is None:
            box = boxes[self.number] = dict(self._order)
        for key in self.removed:
            box.pop(key, None)
        box.update(self._constant)
        at = by.around.at
        for key, path in self._options:
            box[key] = at(path)
        for key, item in self._others:
            box[key] = item.fill(by)
        return box
