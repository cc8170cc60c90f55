"""Remembers where a program's weights lie, and tells at each call whether they are still there and the module's."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .errors import WeightsChanged
from .layout import Layouts, Weight
from .part import is_stamped, stamped
from .ref import WeightRef


class Bound:
    """Where a program's weights were when they were resolved, and whether they still are. It keeps none of them alive.

    Args:
        tensors: the resolved weights.
        weights: what they were resolved from.
        layouts: the store's.
    """

    def __init__(self, tensors: Sequence[Any], weights: Sequence[Weight], layouts: Layouts) -> None:
        self.pointers = tuple(tensor.data_ptr() for tensor in tensors)
        pairs = zip(tensors, weights, strict=False)  # a host may bind by something else than the weights
        self._beside = [weakref.ref(tensor) for tensor, weight in pairs if layouts[weight.layout].beside]
        self._tables: list[dict[str, Any]] = []
        self._names: list[str] = []
        self._attributes: list[WeightRef] = []  # not the root's dictionary: it leads to the compiled state, a cycle
        # of which whole, and how they are found in it
        self._parts: list[tuple[int, Callable[[Any], torch.Tensor]]] = []
        wholes: dict[tuple[int, str], tuple[int, dict[str, Any]]] = {}
        refs = {ref: layouts[weight.layout] for weight in weights for ref in weight.refs}
        for ref, layout in refs.items():  # a tied one's other places are compared where the model reads them
            table, name = layout.place(ref)
            if table is ref.module().__dict__ and not ref.path:
                self._attributes.append(ref)
            elif ref.part is not None:
                whole, _ = wholes.setdefault((id(table), name), (len(wholes), table))
                self._parts.append((whole, ref.part.of))
            else:
                self._tables.append(table)
                self._names.append(name)
        self._whole_tables, self._whole_names = [table for _, table in wholes.values()], [name for _, name in wholes]
        self._wholes = list(map(stamped, self._wholes_now()))
        current = self._current()
        # not weakly, for which torch would refuse to swap them (``torch.utils.swap_tensors``)
        self._addresses = list(map(_address, current))
        self._strides, self._dtypes = list(map(_strides, current)), list(map(_dtype, current))
        self._sizes = list(map(_size, current))

    @property
    def sources(self) -> list[int]:
        """The addresses of the module's own tensors."""
        return self._addresses

    def valid(self) -> bool:
        """Whether it is both :meth:`readable` and :meth:`current`."""
        return self.readable() and self.current()

    def readable(self) -> bool:
        """Whether the module's tensors lie at the addresses that were resolved, so that a graph which reads them reads
        nobody else's memory.

        This and :meth:`current` run at every call, so without a Python loop: that took 1 ms for SD1.5's 686 weights,
        where a replay takes 5.
        """
        try:
            return list(map(_address, self._current())) == self._addresses and None not in map(_alive, self._beside)
        except (ReferenceError, WeightsChanged, AttributeError, TypeError):  # a module is gone, or a tensor
            return False

    def current(self) -> bool:
        """Whether what the module has, where it is :meth:`readable`, is still of the same sizes, strides and dtypes:
        ``weight.data = weight.data.t()`` changes those at the same address.
        """
        try:
            now = self._current()
            same = all(map(is_stamped, self._wholes_now(), self._wholes))
        except (ReferenceError, WeightsChanged, AttributeError):  # a module is gone, or a tensor, or it has other parts
            return False
        same = same and list(map(_strides, now)) == self._strides and list(map(_dtype, now)) == self._dtypes
        return same and list(map(_size, now)) == self._sizes

    def _current(self) -> list[torch.Tensor]:
        wholes = self._wholes_now() if self._parts else []
        parts = [of(wholes[whole]) for whole, of in self._parts]
        return [*map(dict.get, self._tables, self._names), *(ref.tensor() for ref in self._attributes), *parts]

    def _wholes_now(self) -> list[Any]:
        return list(map(dict.get, self._whole_tables, self._whole_names))


_alive = weakref.ref.__call__
_address = torch.Tensor.data_ptr
_strides = torch.Tensor.stride
_size = torch.Tensor.numel
_dtype = operator.attrgetter("dtype")
