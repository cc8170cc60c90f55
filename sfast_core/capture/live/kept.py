"""What live code returned that somebody holds, and live code that lies among a call's options."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ..rebuilding import rebuilt
from .surroundings import Path, Surroundings, every_tensor_in, tensors_in


class Kept(NamedTuple):
    """A list or a dict that live code returned and that somebody holds: as the model has it, itself, and by whom."""

    models: Any
    own: Any
    by: str

    def put_into(self, result: Any) -> Any:
        """A call's result with the list itself in it, where the model has returned it;
        the very ``result`` where not.
        """
        return rebuilt(result, lambda value, key: self.own if value is self.models else value, anew=False)


def kept_of(models: Any, own: Any, held: Collection[int], by: str) -> list[Kept]:
    """The lists and dicts that somebody holds of what live code has returned.

    Args:
        models: that as the model has it.
        own: itself.
        held: the ids of what is held.
        by: the code's name.
    """
    return [Kept(theirs, each, by) for theirs, each in _pairs(models, own) if id(each) in held]


def _pairs(models: Any, own: Any) -> Iterator[tuple[Any, Any]]:
    """The lists and dicts that a value is, and that are in it, each with the model's own: as far as the model has it
    alike, and not an option of the call's, for which something stands in. What the model has counts as looked up where
    it is asked by its own methods.
    """
    if type(own) is list or isinstance(own, dict):
        yield models, own
    if isinstance(own, dict) and isinstance(models, dict) and dict.keys(models) == dict.keys(own):
        for key, item in dict.items(own):
            yield from _pairs(dict.get(models, key), item)
    elif type(own) in (tuple, list) and type(models) is type(own) and len(models) == len(own):
        for theirs, item in zip(models, own, strict=True):
            yield from _pairs(theirs, item)


def _lists_in(value: Any) -> Iterator[Any]:
    """The lists and dicts that a value is, and that are in it, in order."""
    if type(value) is list or isinstance(value, dict):
        yield value
    for item in dict.values(value) if isinstance(value, dict) else value if type(value) in (tuple, list) else ():
        yield from _lists_in(item)


class Holders:
    """How often what live code is handed is held when it begins, to tell behind it what it keeps.

    Args:
        handed: the tensors.
    """

    def __init__(self, handed: list[torch.Tensor]) -> None:
        self._handed, self._before = handed, _counts(handed)

    def kept(self, box: list[Any], by_us: Iterable[torch.Tensor] = ()) -> frozenset[int]:
        """The ids of what somebody holds by now of what was handed over, and of what was returned: the lists and dicts
        that it is and that are in it, its tensors, and those of which they are views.

        Args:
            box: what was returned, which nobody here holds besides.
            by_us: what was handed over and is held here by now, as often as it is.
        """
        again = Counter(id(tensor) for tensor in (*every_tensor_in(box), *by_us))
        again.update({id(base) for base in _bases(tensors_in(box))})  # all views of one hold it once
        kept = {
            id(tensor)
            for tensor, now, then in zip(self._handed, _counts(self._handed), self._before, strict=True)
            if now > then + again[id(tensor)]
        }
        ours = set(map(id, self._handed))
        twins: dict[int, torch.Tensor] = {}

        def twin(value: Any, key: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            return twins.setdefault(id(value), torch.empty(0) if value._base is None else torch.empty(0).view(-1))

        with torch.inference_mode(False):  # else they have no bases
            alike = [rebuilt(item, twin) for item in box]
        twins.clear()
        counts, least = _counts(_parts(box)), _counts(_parts(alike))
        for value, now, then in zip(_parts(box), counts, least, strict=True):
            if now > then and id(value) not in ours:
                kept.add(id(value))
        memory = set(map(_memory, self._handed))
        shared = _memories(box)
        once = _uses(torch.empty(0)) - 1
        kept.update(
            id(tensor)
            for tensor in tensors_in(box)
            if (own := _memory(tensor)) not in memory and _uses(tensor) > once + shared[own]
        )
        return frozenset(kept)


def _memories(box: list[Any]) -> Counter[int]:
    """How many of the tensors in what was returned, and of those of which they are views, lie in each memory."""
    tensors = tensors_in(box)
    distinct = {id(tensor): tensor for tensor in (*tensors, *_bases(tensors))}
    return Counter(map(_memory, distinct.values()))


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else 0


def _uses(tensor: torch.Tensor) -> int:
    """How many tensors lie in its memory."""
    memory = _memory(tensor)
    return int(torch._C._storage_Use_Count(memory)) if memory else 0


def among(tensor: torch.Tensor, kept: frozenset[int]) -> bool:
    """Whether it is one of these, or a view of one."""
    return id(tensor) in kept or (tensor._base is not None and id(tensor._base) in kept)


def _counts(values: list[Any]) -> list[int]:
    return [sys.getrefcount(value) for value in values]


def _parts(box: list[Any]) -> list[Any]:
    tensors = tensors_in(box)
    return [*(each for item in box for each in _lists_in(item)), *tensors, *_bases(tensors)]


def _bases(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor._base for tensor in tensors if tensor._base is not None]


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
