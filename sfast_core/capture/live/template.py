"""How the arguments of a live call are made again at each call: tensors from the program, the call's own options, plain values as they were."""

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
    """The same at each call."""

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
    """What this call's options have there."""

    path: Path

    def fill(self, by: Filling) -> Any:
        return by.around.at(self.path)


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


@dataclass(frozen=True)
class DictBox(Template):
    """Likewise a dict: what the model has set since it was handed over last, and what it has taken out.

    What live code puts there stays, for the next one to find.
    """

    number: int
    items: tuple[tuple[Any, Template], ...]
    removed: tuple[Any, ...] = ()

    def fill(self, by: Filling) -> Any:
        box = by.around.boxes.setdefault(self.number, {})
        for key in self.removed:
            box.pop(key, None)
        for key, item in self.items:
            box[key] = item.fill(by)
        return box
