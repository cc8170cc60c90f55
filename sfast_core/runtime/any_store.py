"""What the engine asks of a module's weights, wherever a host keeps them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from ..weights.arriving import Arriving
from ..weights.bound import Bound
from ..weights.layout import Weight
from ..weights.offload import Arrival
from ..weights.ref import WeightRef
from .copies import Copies
from .streaming.kept import Kept


class Store(Protocol):
    """What the engine asks of a module's weights. Not thread-safe but for :meth:`plain`:
    its caller holds :attr:`lock`.
    """

    lock: AbstractContextManager[Any]  #: held while a program runs; the engine sets it

    @property
    def adopted_bytes(self) -> int:
        """The size of the parameters that are laid out anew."""

    def may_pack(self, weight: Weight, device: torch.device | None = None) -> bool:
        """Whether a weight may be laid out as its layout says.

        ``device``: where it is to be read, if it may have to be brought there.
        """

    def leave(self, refs: Collection[WeightRef]) -> None:
        """Never lay these out anew: the module's code asks how they lie."""

    def pinned(self, device: torch.device) -> AbstractContextManager[None]:
        """Hold the weights where programs read them for the length of a call.

        Raises:
            WeightsElsewhere: they can't be held on ``device`` now.
        """

    def tensors(self, weights: Sequence[Weight], device: torch.device) -> list[torch.Tensor]:
        """The tensors for ``weights``, laid out as they ask.

        Raises:
            ReferenceError: a weight is gone, or no more at all of its addresses.
            WeightsElsewhere: a weight isn't on ``device``.
            WeightsChanged: two weights are one by now, or one may not be laid out as it is wanted any more.
        """

    def resolve(
        self, weights: Sequence[Weight], device: torch.device, arrivals: Sequence[Arrival]
    ) -> list[torch.Tensor | Arriving]:
        """As :meth:`tensors`, where some of the weights have to be brought to ``device``.

        Args:
            weights: of a program.
            device: where it runs.
            arrivals: what it says of each.
        """

    def watch(self, weights: Sequence[Weight]) -> Callable[[], bool]:
        """What tells whether the host still does to weights that are brought what it does now, beside what :meth:`bind`
        watches.
        """

    kept: Kept | None  #: copies of weights that are away
    copies: Copies  #: what is made of weights and lies beside them

    steps: int | None  #: of the sampling that goes on, where that is known

    def begin_sampling(self, steps: int | None = None) -> None:
        """Nobody writes to weights that are away before :meth:`end_sampling`. They may move.

        ``steps``: how many it has.
        """

    def end_sampling(self) -> None:
        """Anybody may do to them what they like."""

    def period(self) -> Hashable:
        """Equal at two calls within one such sampling. None: in no sampling."""

    def watch_pins(self, tensors: Sequence[torch.Tensor]) -> Callable[[], bool]:
        """What tells, as long as these live, whether those that are pinned now are pinned still."""

    def bind(self, weights: Sequence[Weight], tensors: Sequence[torch.Tensor | Arriving]) -> Bound:
        """Remember where ``tensors``, just resolved for ``weights``, lie."""

    def plain(self) -> AbstractContextManager[None]:
        """For the length of a run of the module's own forward the weights have the strides that the module gave
        them.
        """

    def renew(self) -> None:
        """In a forked child: what other threads were doing is done by nobody."""

    def lay_plain(self) -> None:
        """Give the weights the strides that the module gave them, at the addresses that graphs read."""

    def lay_again(self, device: torch.device) -> None:
        """In the middle of a call: lay out what others found plain meanwhile as programs read it.

        Raises:
            WeightsElsewhere: see :meth:`pinned`.
        """

    def leave_to_autograd(self) -> None:
        """Gradients are being recorded: what requires them is the module's again, and is laid out no more."""

    def restore(self) -> int:
        """Give every adopted parameter plain storage of its own again. Returns how many there were."""
