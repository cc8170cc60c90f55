"""Which tensors live code has for the model's: the same one whenever a call hands the same one, since code may ask
which it is: by ``is``, by its ``id``, as a key of a dict.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch

from ...weights import WeightRef
from .form import Form, copies, fill

if TYPE_CHECKING:
    from .surroundings import Surroundings


def version_of(tensor: torch.Tensor) -> int:
    """How often a tensor was written to; 0 of a tensor of inference mode, which doesn't know."""
    return 0 if tensor.is_inference() else tensor._version


class Ref(weakref.ref[torch.Tensor]):
    """A weak reference of ours: shared with nobody."""

    __slots__ = ()


def references(tensor: torch.Tensor) -> int:
    """How many weak references others have to a tensor."""
    if not weakref.getweakrefcount(tensor):
        return 0
    return sum(type(ref) is not Ref for ref in weakref.getweakrefs(tensor))


def referred_to(
    handed: Sequence[torch.Tensor],
    before: Sequence[int],
    returned: Sequence[torch.Tensor | None],
    exempt: Collection[int],
) -> bool:
    """Whether others refer weakly to what was handed over, or returned: it may go before the model's own does.

    Args:
        handed: the tensors.
        before: how many such references there were to each.
        returned: likewise.
        exempt: the ids of tensors that stay.
    """
    own = set(map(id, handed))
    return any(
        references(tensor) > then and id(tensor) not in exempt for tensor, then in zip(handed, before, strict=True)
    ) or any(
        tensor is not None and references(tensor) and id(tensor) not in exempt and id(tensor) not in own
        for tensor in returned
    )


class Lent(NamedTuple):
    """A tensor that live code has for one of the model's.

    Attributes:
        tensor: it.
        value: which of the model's values is in it.
        before: what was in it before it was handed over, where it is the very tensor of the caller or a module.
    """

    tensor: torch.Tensor
    value: int
    before: torch.Tensor | None = None


@dataclass(eq=False)
class Handing:
    """Which tensors one live call is handed.

    Attributes:
        forms: theirs.
        numbers: which of the model's tensors each is.
        values: what is in each: values have numbers, too.
        after: likewise behind the call.
        very: where the very tensor is that the model hands on, by its index: among the call's inputs, or a weight.
        results: tensors of the result that are handed on later, by their place: which of the model's, with what in it.
        again: those of the model's tensors that are handed on later.
        unseen: of which tensors that counts as written to, whether or not it can be seen.
    """

    forms: tuple[Form, ...]
    numbers: tuple[int, ...] = ()
    values: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    very: dict[int, int | WeightRef] = field(default_factory=dict)
    results: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    again: frozenset[int] = frozenset()
    unseen: frozenset[int] = frozenset()

    def hand(self, given: Sequence[torch.Tensor], around: Surroundings) -> list[torch.Tensor]:
        """What live code gets for what is ``given``: what it has already, the very tensors, and copies."""
        if not around.lent and not self.very:
            return copies(self.forms, given)
        handed: list[torch.Tensor] = list(given)
        missing, stale = [], []
        for index, number in enumerate(self.numbers):
            lent = around.lent.get(number)
            if lent is None and (where := self.very.get(index)) is not None:
                lent = _very(where, self.forms[index], self.values[index], around)
                if lent is not None:
                    around.lent[number] = lent
            if lent is None:
                missing.append(index)
                continue
            handed[index] = lent.tensor
            if lent.value != self.values[index] and index not in self.very:
                stale.append(index)
        for index, copy in zip(
            missing, copies([self.forms[index] for index in missing], [given[index] for index in missing]), strict=True
        ):
            handed[index] = copy
        with torch.inference_mode(torch.is_inference_mode_enabled() or any(handed[at].is_inference() for at in stale)):
            fill([handed[index] for index in stale], [given[index] for index in stale])
        return handed

    def taken_back(self, changed: Sequence[int], around: Surroundings) -> dict[int, torch.Tensor]:
        """What live code has written to the very tensors of the caller, or of modules, by index: they get what was in
        them before, so that the original forward can run from its start.
        """
        found = {}
        for index in changed:
            lent = around.lent.get(self.numbers[index]) if index in self.very else None
            if lent is not None and lent.before is not None:
                found[index] = lent.tensor.detach().clone()
                lent.tensor.detach().copy_(lent.before)
        return found

    def keep(self, handed: Sequence[torch.Tensor], found: Sequence[torch.Tensor | None], around: Surroundings) -> None:
        """The call is over and has returned what was ``found``: keep what is handed on later."""
        lent = around.lent
        if lent or self.again:
            for index, number in enumerate(self.numbers):
                if number not in self.again:
                    lent.pop(number, None)
                elif index not in self.very or number not in lent:
                    lent[number] = Lent(handed[index], self.after[index])
        for place, (number, value) in self.results.items():
            tensor = found[place]
            if tensor is not None and (number in self.unseen or not tensor.is_inference()):
                lent[number] = Lent(tensor, value)


def _very(where: int | WeightRef, form: Form, value: int, around: Surroundings) -> Lent | None:
    """The very tensor that is there; None where a copy has to do: what is written to one of inference mode, nobody can
    see and take back, and a weight that was brought to the device lies elsewhere.
    """
    if isinstance(where, int):
        tensor = None if around.inputs is None else around.inputs[where]
        if tensor is None or tensor.is_inference():
            return None
    else:
        tensor = where.table().get(where.name)
    if not isinstance(tensor, torch.Tensor) or not form.fits(tensor):
        return None
    return Lent(tensor, value, None if tensor.is_inference() else tensor.detach().clone())


class Written:
    """Notes which of these tensors are written to meanwhile.

    Args:
        refs: to them.
    """

    def __init__(self, refs: Sequence[Ref]) -> None:
        self._then = [(ref, version_of(tensor)) for ref in refs if (tensor := ref()) is not None]

    def beside(self, handed: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors that were there before and don't lie in what was handed over."""
        found = [tensor for ref, then in self._then if (tensor := ref()) is not None and version_of(tensor) != then]
        if not found:
            return []
        memory = {each.untyped_storage()._cdata for each in handed}
        return [tensor for tensor in found if tensor.untyped_storage()._cdata not in memory]
