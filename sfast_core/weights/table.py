"""Finds where a module keeps a tensor that a recorded call reads."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from .blocks import is_of_blocks
from .part import Part, has_functions, has_parts, is_plain, parts_of
from .ref import WeightRef
from .tensor_map import TensorMap

#: The types of most attributes. Asking each of SDXL's 45,000 attributes whether it is a tensor takes 17 ms, and asking
#: only those of other types 6.
_NO_TENSORS = frozenset({bool, int, float, str, type(None), tuple, list, dict, OrderedDict})


def tensors_in(*tables: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in a module's parameters, buffers or attributes, by name."""
    for table in tables:
        for name, value in table.items():
            if type(value) not in _NO_TENSORS and isinstance(value, torch.Tensor):
                yield name, value


class WeightTable:
    """Finds the :class:`WeightRef` of a tensor object below ``root``, be it a parameter, a buffer or an attribute.

    A tensor that is found in several places has one ref: that of the first place, which knows the others.

    Attributes:
        with_functions: the classes among its tensors that intercept torch's functions.
        float8: whether one of the tensors is float8.
        in_blocks: whether one is in GGUF's blocks.
    """

    def __init__(self, root: torch.nn.Module) -> None:
        self._refs = TensorMap[WeightRef]()
        self._paths: dict[int, str] = {}
        # the modules that have a tensor subclass, each with that tensor
        self._of_classes: list[tuple[torch.nn.Module, torch.Tensor]] = []
        self.with_functions: set[type] = set()
        self.float8 = self.in_blocks = False
        for path, module in root.named_modules():
            self._paths[id(module)] = path
            for name, tensor in tensors_in(module._parameters, module._buffers, module.__dict__):
                ref, first = WeightRef(path, name, weakref.ref(module)), self._refs.get(tensor)
                self._refs[tensor] = replace(first, others=(*first.others, ref)) if first else ref
                self.float8 = self.float8 or (tensor.itemsize == 1 and tensor.is_floating_point())
                if not is_plain(tensor):
                    self.in_blocks = self.in_blocks or is_of_blocks(tensor)
                    self._of_classes.append((module, tensor))
                    if has_parts(tensor):
                        self._add_parts(tensor, ref)
                elif (
                    type(tensor) is not torch.nn.Parameter
                    and type(tensor) is not torch.Tensor
                    and has_functions(type(tensor))
                ):
                    self.with_functions.add(type(tensor))

    def _add_parts(self, whole: torch.Tensor, ref: WeightRef) -> None:
        for where, tensor in parts_of(whole):
            part, first = replace(ref, part=Part(whole, where)), self._refs.get(tensor)
            self._refs[tensor] = replace(first, others=(*first.others, part)) if first else part

    def closed(self, classes: Collection[type] = ()) -> list[torch.nn.Module]:
        """The modules with a tensor of a class that doesn't tell what it is made of, or that is in ``classes``."""
        found = [module for module, tensor in self._of_classes if not has_parts(tensor) or type(tensor) in classes]
        return list(dict.fromkeys(module for module in found if self._paths[id(module)]))

    def weights_of(self, module: torch.nn.Module) -> Iterator[tuple[WeightRef | None, torch.Tensor]]:
        """The plain tensors of a module and those below it with their refs, and other tensors without one."""
        for below in module.modules():
            for _, tensor in tensors_in(below._parameters, below._buffers):
                if is_plain(tensor):
                    yield self.find(tensor), tensor
                elif has_parts(tensor):
                    yield from ((self.find(part), part) for _, part in parts_of(tensor))
                else:
                    yield None, tensor

    def path(self, module: torch.nn.Module) -> str:
        """The path of a module; empty for the root, and for modules that aren't below it."""
        return self._paths.get(id(module), "")

    def find(self, tensor: torch.Tensor) -> WeightRef | None:
        """The ref of this very tensor object, or None."""
        return self._refs.get(tensor)

    def ref(self, module: torch.nn.Module, name: str) -> WeightRef | None:
        """The ref of ``module.name``, or None when the module isn't below the root."""
        path, tensor = self._paths.get(id(module)), getattr(module, name, None)
        if path is None:
            return None
        found = self._refs.get(tensor) if isinstance(tensor, torch.Tensor) else None
        return found or WeightRef(path, name, weakref.ref(module))
