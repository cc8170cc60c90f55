"""Tensors that a forward reads and that are neither arguments nor a module's: in lists and objects, in what functions
close over or cache.
"""

from __future__ import annotations

import gc
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ..weights import WeightRef, WeightTable
from ..weights.ref import beside
from .guards import Lead, Leads, ReadSet
from .guards.containers import CHANGEABLE
from .guards.made import is_made_of_parts

Found = Callable[[torch.Tensor], WeightRef | None]
_DEEPEST = 4


class _Holder(torch.nn.Module):
    """Owns one tensor, so that it can be named as the weights of modules are."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self.__dict__["tensor"] = tensor


class Externals:
    """Says where such a tensor is kept, so that a guard can watch the place.

    Args:
        reads: what the call has read; it is over.
        leads: the ways to what functions of others have read.
        placed: the call's tensors that its signature finds by their places.

    Attributes:
        places: where functions of others lead to tensors that are read where they were found, and these: a later call's
            may be found there.
        missed: likewise, to tensors that the signature finds by other places alone.
        ambiguous: places that tell nothing, since something else leads to what is there, too.
        fixed: the ids of those tensors that have to stay the very objects where they were found.
        holders: what keeps them; whoever keeps the trace keeps these.
    """

    def __init__(self, reads: ReadSet, leads: Leads, placed: Mapping[Lead, torch.Tensor]) -> None:
        self._reads, self._leads, self._placed = reads, leads, placed
        self.places: dict[Lead, torch.Tensor] = {}
        self.missed: set[Lead] = set()
        self.ambiguous: set[Lead] = set()
        self._where: dict[int, tuple[torch.Tensor, Any, str]] | None = None
        self.fixed: set[int] = set()
        self.holders: list[torch.nn.Module] = []

    def __call__(self, tensor: torch.Tensor) -> WeightRef | None:
        """A name for this very tensor, or None where nothing that is watched keeps it."""
        if self._where is None:
            self._where = {}
            for found, owner, name in self._kept():
                self._where.setdefault(id(found), (found, owner, name))
        entry = self._where.get(id(tensor))
        if entry is None:
            return None
        _, owner, name = entry
        if isinstance(owner, torch.nn.Module):  # one that isn't below the root
            return beside(owner, name)
        if type(tensor) is torch.Tensor and not self._in_caches(tensor):
            self.places.update(dict.fromkeys(self._leads.to(tensor), tensor))
        self.fixed.add(id(tensor))
        holder = _Holder(tensor)
        self.holders.append(holder)
        return beside(holder, "tensor", name or "elsewhere")

    def watches(self, module: torch.nn.Module) -> bool:
        """Whether the call found this module somewhere, where a guard looks for it."""
        seen = self._reads.seen.get(id(module))
        return seen is not None and seen.get() is module and not seen.made

    def also_kept(self, inputs: Iterable[torch.Tensor], table: WeightTable) -> str | None:
        """Where one of a call's own tensors is found besides, as a weight or by what the call reads: which of the two
        was meant, nobody can say.

        A tensor that its signature finds at a place may be there, and nowhere else.
        """
        inputs = [tensor for tensor in inputs if not self._is_placed(tensor)]
        if (kept := self._also_kept(inputs, table)) is not None:
            own = set(map(id, inputs))
            self.ambiguous.update(lead for lead, tensor in self._placed.items() if id(tensor) in own)
        return kept

    def _is_placed(self, tensor: torch.Tensor) -> bool:
        ways = self._leads.to(tensor)
        if not ways or self._in_caches(tensor) or not any(tensor is each for each in self._placed.values()):
            return False
        self.missed.update(way for way in ways if self._placed.get(way) is not tensor)
        return self.missed.isdisjoint(ways)

    def _in_caches(self, tensor: torch.Tensor) -> bool:
        return any(found is tensor for cache in self._reads.cached.values() for found in _in_cache(cache, 0))

    def _also_kept(self, inputs: Sequence[torch.Tensor], table: WeightTable) -> str | None:
        for ref in map(table.find, inputs):
            # a plain attribute counts where it is read
            if ref is not None and ref.table() is not ref.module().__dict__:
                return str(ref)
        given = {id(tensor) for tensor in inputs}
        all_seen = [seen for seen in self._reads.seen.values() if not seen.made]  # what the call makes, keeps none
        found = list(itertools.chain.from_iterable(seen.found.values() for seen in all_seen))  # SDXL's are 13,000
        for seen in (
            all_seen if any(any(map(operator.is_, found, itertools.repeat(tensor))) for tensor in inputs) else ()
        ):
            for name, then in seen.found.items():
                if id(then) in given and not _is_item_of(seen.get(), then):
                    return name
        return next((name for tensor, _, name in self._kept_elsewhere() if id(tensor) in given), None)

    def containers(self) -> set[int]:
        """The ids of lists, dicts and objects that were there before the call: it was given them, or looked where they
        are.
        """
        reads = self._reads
        found = [place.then for place in reads.places.values()]
        found += [then for seen in reads.seen.values() if not seen.made for then in seen.found.values()]
        for function in reads.functions.values():
            found += [content for _, content in function.cells]
            found += (*(function.defaults or ()), *(function.keywords or {}).values())
        for held in reads.held.values():
            found += held.before[1] if isinstance(held.before, tuple) else held.before
        found += itertools.chain.from_iterable(reads.classes.values())
        found += [asked.then for asked in reads.asked.values()]
        for cache in reads.cached.values():
            found += _in_cache(cache, 0)
        first = {type(value): value for value in found}  # one of each class tells: there are thousands
        counts = {cls for cls, value in first.items() if isinstance(value, CHANGEABLE) or is_made_of_parts(value)}
        there = {id(value) for value in found if type(value) in counts}
        there |= {id(seen.get()) for seen in reads.seen.values() if not seen.made}
        return reads.given | there

    def _kept(self) -> Iterator[tuple[torch.Tensor, Any, str]]:
        for seen in self._reads.seen.values():
            value = seen.get()
            for name, then in seen.found.items():
                if isinstance(then, torch.Tensor):
                    yield then, value if isinstance(value, torch.nn.Module) else None, name
                else:
                    yield from _tensors(then, name)
        yield from self._kept_elsewhere()

    def _kept_elsewhere(self) -> Iterator[tuple[torch.Tensor, Any, str]]:
        reads = self._reads
        for place in reads.places.values():
            yield from _tensors(place.then, str(place.name))
        for held in reads.held.values():
            if held.read:
                keys, values = held.before if isinstance(held.before, tuple) else ((), held.before)
                for value in (*keys, *values):
                    yield from _tensors(value, str(held.origin))
        for function in reads.functions.values():
            yield from _tensors([content for _, content in function.cells], function.function.__name__)
            yield from _tensors(function.defaults, function.function.__name__)
        for asked in reads.asked.values():
            yield from _tensors(asked.then, str(asked.origin))
        for cache in reads.cached.values():
            name = getattr(cache, "__name__", "cached")
            yield from ((found, None, name) for found in _in_cache(cache, 0) if isinstance(found, torch.Tensor))


def _tensors(value: Any, name: str, depth: int = 0) -> Iterator[tuple[torch.Tensor, Any, str]]:
    if isinstance(value, torch.Tensor):
        yield value, None, name
    elif isinstance(value, (tuple, list)) and depth < _DEEPEST:
        for item in value:
            yield from _tensors(item, name, depth + 1)


def _in_cache(value: Any, depth: int) -> Iterator[Any]:
    """What ``functools.lru_cache`` has kept, and what is in it: nothing but the collector sees it.

    A function's result for the same arguments is taken to be the same.
    """
    for inner in gc.get_referents(value):
        is_link = type(inner).__name__ == "_lru_list_elem"
        if not is_link:
            yield inner
        if depth < _DEEPEST and (is_link or type(inner) in (dict, tuple, list)):
            yield from _in_cache(inner, depth + 1)


def _is_item_of(value: Any, tensor: Any) -> bool:
    """Whether it is one thing: outputs of transformers' are dicts that have each of their items as an attribute,
    too.
    """
    return isinstance(value, dict) and any(item is tensor for item in value.values())
