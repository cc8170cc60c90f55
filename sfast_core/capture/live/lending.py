"""Lends the model's tensors to live code while a call is recorded."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ...weights import WeightRef
from .building import Building
from .call import LiveCall
from .form import copies, lie_together
from .frames import Frames
from .lent import Handing
from .twins import Twin, Twins


class Handed(NamedTuple):
    """What a live call was handed, to look at when all is over.

    Attributes:
        call: it.
        node: its.
        building: collected the tensors.
        lent: what live code has for its result's: which of the model's, with what in it.
        depth: how many graphs were around its own.
    """

    call: LiveCall
    node: torch.fx.Node
    building: Building
    lent: list[tuple[int, int] | None]
    depth: int


class Lending(Frames):
    """Bookkeeping of which tensors live code has for the model's."""

    as_they_lie: set[WeightRef]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.twins = Twins()
        self._depths: list[int] = []  # of each: how many graphs are around the one that it was first in
        self._handed: list[Handed] = []
        self._values: dict[torch.fx.Node, int] = {}

    def _lent(self, building: Building) -> tuple[list[torch.Tensor], set[int]]:
        """What live code gets for the model's tensors: what it has already, or else copies, and of what was there
        before the call, and where nothing is recorded, the very ones; and which of them lie together.
        """
        self.twins.show()
        own, twins = building.tensors, list(map(self.twins.of, building.tensors))
        if building.real:
            return [tensor if twin is None else twin.tensor for tensor, twin in zip(own, twins, strict=True)], set()
        new = [index for index, twin in enumerate(twins) if twin is None and index not in building.very]
        handed = [tensor if twin is None else twin.tensor for tensor, twin in zip(own, twins, strict=True)]
        made = copies([building.forms[index] for index in new], [own[index] for index in new])
        for index, copy in zip(new, made, strict=True):
            handed[index] = copy
        together = lie_together(handed, own, [index for index in range(len(own)) if index not in new])
        for tensor, twin, lent in zip(own, twins, handed, strict=True):
            if twin is None:
                self._add(tensor, lent)
        return handed, together - building.very.keys()

    def _lend(self, own: torch.Tensor, tensor: torch.Tensor, held: frozenset[int]) -> tuple[int, int] | None:
        """Live code has ``tensor`` for what it has returned: it is handed that again. What is written to one of
        inference mode, nobody sees: such a one only where somebody holds it, who may ask which it is.
        """
        if tensor.is_inference() and id(tensor) not in held:
            return None
        return self._add(own, tensor).number, self._value_number(self._node(own, "a result"))

    def _handing(self, building: Building) -> Handing:
        twins = [twin for own in building.tensors if (twin := self.twins.of(own)) is not None]
        return Handing(
            tuple(building.forms),
            tuple([twin.number for twin in twins]),
            tuple(map(self._value_number, building.nodes)),
            unseen=frozenset(twin.number for twin in twins if twin.tensor.is_inference()),
        )

    def _value_number(self, node: torch.fx.Node) -> int:
        """The number of what this node computes."""
        return self._values.setdefault(node, len(self._values))

    def given(self, tensors: list[torch.Tensor]) -> tuple[tuple[int, int], ...]:
        """A function of the model's own is given these by live code, which has them already: their numbers, and those
        of what is in them.
        """
        return tuple(
            [(self._add(tensor, tensor).number, self._value_number(self._node(tensor, ""))) for tensor in tensors]
        )

    def _add(self, own: torch.Tensor, tensor: torch.Tensor) -> Twin:
        depths = (depth for depth, frame in enumerate(self._outer) if own in frame["_nodes"])
        self._depths.append(next(depths, len(self._outer)))
        return self.twins.add(own, tensor)

    def _say_what_is_handed(self, handed: Handed, again: set[int]) -> None:
        """Also which of the model's tensors are handed on later: ``again``, which gets those of this call."""
        building, handing = handed.building, handed.call.handing
        for index, place in building.very.items():
            weight = building.nodes[index].meta.get("source")
            if place is not None:
                handing.very[index] = place
            elif weight is not None and weight.plain and weight.refs[0].part is None:
                handing.very[index] = weight.refs[0]
                self.as_they_lie.add(weight.refs[0])
        # a callback may run again, and be handed what was there before it
        handing.again = frozenset(
            again.union(number for number in handing.numbers if self._depths[number] < handed.depth)
        )
        handing.results = {
            place: lent for place, lent in enumerate(handed.lent) if lent is not None and lent[0] in again
        }
        again.update(handing.numbers)
