"""Where a module keeps a tensor, so that a trace names it instead of baking it in."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch

from .part import Part


@dataclass(frozen=True)
class WeightRef:
    """Where a tensor is, held by neither: ``getattr(root.get_submodule(path), name)``, or a part of that.

    Two refs are equal when path, name and part are; ``owner`` is only a short cut.
    """

    path: str
    name: str
    owner: weakref.ref[torch.nn.Module]
    others: tuple[WeightRef, ...] = ()  #: the other places of the same tensor object
    part: Part | None = None  #: the part of the tensor that is meant; None: the tensor itself

    def __hash__(self) -> int:
        return hash((self.path, self.name, self.part and self.part.where))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WeightRef) or (self.path, self.name) != (other.path, other.name):
            return False
        return (self.part and self.part.where) == (other.part and other.part.where)

    def __str__(self) -> str:
        name = self.name if self.part is None else f"{self.name}.{self.part}"
        return f"{self.path}.{name}" if self.path else name

    @property
    def tied(self) -> bool:
        """Whether the same tensor is found in other places, too, so that it can't be laid out for this one alone."""
        return bool(self.others)

    def module(self) -> torch.nn.Module:
        """The owning module.

        Raises:
            ReferenceError: it is gone.
        """
        owner = self.owner()
        if owner is None:
            raise ReferenceError(f"the module that held the weight {self} is gone")
        return owner

    def table(self) -> dict[str, Any]:
        """Where the module keeps it by its name: of a part, the tensor that has it.

        Raises:
            ReferenceError: the module is gone.
        """
        module = self.module()
        return next((table for table in (module._parameters, module._buffers) if self.name in table), module.__dict__)

    def tensor(self) -> torch.Tensor:
        """The tensor that is there now.

        Raises:
            ReferenceError: there is none any more, or it is another than at the :attr:`others`.
            WeightsChanged: it has no such part any more.
        """
        tensor = getattr(self.module(), self.name, None)
        if not isinstance(tensor, torch.Tensor):
            raise ReferenceError(f"the weight {self} is no tensor any more")
        if self.part is not None:
            tensor = self.part.at(tensor, self)
        for other in self.others:
            if other.tensor() is not tensor:
                raise ReferenceError(f"the weights {self} and {other} are one tensor no more")
        return tensor


def beside(module: torch.nn.Module, name: str, called: str = "") -> WeightRef:
    """That of a module which isn't below the root: told from others by which object it is.

    Args:
        module: it.
        name: of the tensor in it.
        called: what the module is called, instead of by its class.
    """
    return WeightRef(f"<{called or type(module).__name__} {id(module):x}>", name, weakref.ref(module))
