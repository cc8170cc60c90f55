"""Where a module keeps its tensors, so that a trace names them instead of baking them in."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from .tensor_map import TensorMap


@dataclass(frozen=True)
class WeightRef:
    """The address of one tensor below the root module: ``getattr(root.get_submodule(path), name)``, without holding either.

    Two refs are equal when path and name are; the module is only the short way there.
    """

    path: str
    name: str
    owner: weakref.ref[torch.nn.Module]
    others: tuple[WeightRef, ...] = ()  #: where the same object is too

    def __hash__(self) -> int:
        return hash((self.path, self.name))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WeightRef) and (self.path, self.name) == (other.path, other.name)

    def __str__(self) -> str:
        return f"{self.path}.{self.name}" if self.path else self.name

    @property
    def tied(self) -> bool:
        """Whether the same object is at other addresses too, so that it can't be laid out for this one alone."""
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
        """Where the module keeps it by its name.

        Raises:
            ReferenceError: the module is gone.
        """
        module = self.module()
        return next((table for table in (module._parameters, module._buffers) if self.name in table), module.__dict__)

    def tensor(self) -> torch.Tensor:
        """The tensor that is there now.

        Raises:
            ReferenceError: there is none any more, or it is another than at the :attr:`others`.
        """
        tensor = getattr(self.module(), self.name, None)
        if not isinstance(tensor, torch.Tensor):
            raise ReferenceError(f"the weight {self} is no tensor any more")
        for other in self.others:
            if other.tensor() is not tensor:
                raise ReferenceError(f"the weights {self} and {other} are one tensor no more")
        return tensor


#: What most attributes are. To ask each of SDXL's 45,000 whether it is a tensor takes 17 ms, those of other classes alone 6.
_NO_TENSORS = frozenset({bool, int, float, str, type(None), tuple, list, dict, OrderedDict})


def tensors_in(*tables: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in a module's parameters, buffers or attributes, by name."""
    for table in tables:
        for name, value in table.items():
            if type(value) not in _NO_TENSORS and isinstance(value, torch.Tensor):
                yield name, value


class WeightTable:
    """Finds the :class:`WeightRef` of a tensor object below ``root``: parameters, buffers and plain attributes.

    A tensor that is at several addresses has one ref: the first, which knows the others.
    """

    def __init__(self, root: torch.nn.Module) -> None:
        self._refs = TensorMap[WeightRef]()
        self._paths: dict[int, str] = {}
        for path, module in root.named_modules():
            self._paths[id(module)] = path
            for name, tensor in tensors_in(module._parameters, module._buffers, module.__dict__):
                ref, first = WeightRef(path, name, weakref.ref(module)), self._refs.get(tensor)
                self._refs[tensor] = replace(first, others=(*first.others, ref)) if first else ref

    def find(self, tensor: torch.Tensor) -> WeightRef | None:
        """The ref of this very object, or None."""
        return self._refs.get(tensor)

    def ref(self, module: torch.nn.Module, name: str) -> WeightRef | None:
        """The ref of ``module.name``, or None when the module isn't below the root."""
        path, tensor = self._paths.get(id(module)), getattr(module, name, None)
        if path is None:
            return None
        found = self._refs.get(tensor) if isinstance(tensor, torch.Tensor) else None
        return found or WeightRef(path, name, weakref.ref(module))


@dataclass(frozen=True)
class WeightSource:
    """What a graph's weight placeholder stands for: one tensor of the module, or several packed along their first dimension.

    Attributes:
        refs: whose values it holds, in order.
        channels_last: whether a 4-D weight is wanted with its channels innermost in memory.
    """

    refs: tuple[WeightRef, ...]
    channels_last: bool = False

    @property
    def packed(self) -> bool:
        """Whether it joins several tensors."""
        return len(self.refs) > 1

    @property
    def plain(self) -> bool:
        """Whether it is one of the module's tensors just as it lies there."""
        return not self.packed and not self.channels_last

    def __str__(self) -> str:
        return "+".join(map(str, self.refs)) + (" channels_last" if self.channels_last else "")
