"""What every weight store has in common: it gives programs a module's weights, wherever a host keeps them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ..weights.arriving import Arriving
from ..weights.bound import Bound
from ..weights.layout import Weight
from ..weights.offload import Arrival
from ..weights.ref import WeightRef
from .copies import Copies
from .streaming.kept import KeptWeights


class Store:
    """The weights of one module. Not thread-safe except :meth:`plain`: callers hold :attr:`lock`.

    A weight is *away* where it isn't on the device that reads it, and has to be *brought* there (copied) first.

    Methods that this class has do what is right where no weight is laid out otherwise than the module has it, and none
    is away. A store has to have those that raise ``NotImplementedError``.

    Attributes:
        lock: held while a program runs. The engine sets it.
        kept: copies of weights that are away, kept on the device between calls.
        copies: copies of weights in another form (8 bits).
        steps: of the present sampling, where that is known.
    """

    lock: AbstractContextManager[Any] = nullcontext()
    kept: KeptWeights | None = None
    copies: Copies
    steps: int | None = None

    @property
    def adopted_bytes(self) -> int:
        """The size of the parameters that lie in another layout than the module's own."""
        return 0

    def may_pack(self, weight: Weight, device: torch.device | None = None) -> bool:
        """Whether a weight may be laid out as its layout says.

        ``device``: where it is to be read, if it may be brought there.
        """
        raise NotImplementedError

    def leave(self, refs: Collection[WeightRef]) -> None:
        """Never lay these out: the module's code asks for their strides."""

    def pinned(self, device: torch.device) -> AbstractContextManager[None]:
        """Keep the weights where programs read them for the length of a call.

        Raises:
            WeightsElsewhere: they can't be held on ``device`` now.
        """
        return nullcontext()

    def tensors(self, weights: Sequence[Weight], device: torch.device) -> list[torch.Tensor]:
        """The tensors for ``weights``, laid out as they ask.

        Raises:
            ReferenceError: a weight is gone, from the module or, where it is tied, from one of its places.
            WeightsElsewhere: a weight isn't on ``device``.
            WeightsChanged: two weights are one tensor by now, or one may not be laid out as it asks any more.
        """
        raise NotImplementedError

    def resolve(
        self, weights: Sequence[Weight], device: torch.device, arrivals: Sequence[Arrival]
    ) -> list[torch.Tensor | Arriving]:
        """As :meth:`tensors`, with an :class:`Arriving` for each weight that has to be brought to ``device``.

        Args:
            weights: of a program.
            device: where it runs.
            arrivals: the program's, one for each weight.
        """
        raise NotImplementedError

    def watch(self, weights: Sequence[Weight]) -> Callable[[], bool]:
        """A function that tells whether the host still computes of these weights, on their way, what it does now.

        Where they lie, :meth:`bind` watches.
        """
        return lambda: True

    def begin_sampling(self, steps: int | None = None) -> None:
        """The host promises that nobody writes to weights that are away before :meth:`end_sampling`. They may move.

        ``steps``: how many steps it has.
        """

    def end_sampling(self) -> None:
        """The promise ends."""

    def period(self) -> Hashable:
        """Equal at two calls within one sampling. None: outside of any."""
        return None

    def watch_pins(self, tensors: Sequence[torch.Tensor]) -> Callable[[], bool]:
        """A function that tells whether those of these tensors that are pinned now still are."""
        return lambda: True

    def bind(self, weights: Sequence[Weight], tensors: Sequence[torch.Tensor | Arriving]) -> Bound:
        """Remember where ``tensors``, just resolved for ``weights``, lie."""
        raise NotImplementedError

    def plain(self) -> AbstractContextManager[None]:
        """A context for a run of the module's own forward: the weights have the strides that the module gave them."""
        return nullcontext()

    def renew(self) -> None:
        """Start afresh in a forked child process, where other threads' unfinished work will never end."""

    def lay_plain(self) -> None:
        """Give the weights the strides that the module gave them, at the addresses that graphs read."""

    def lay_again(self, device: torch.device) -> None:
        """In the middle of a call: lay weights out for programs again that :meth:`lay_plain` has turned back.

        Raises:
            WeightsElsewhere: see :meth:`pinned`.
        """

    def leave_to_autograd(self) -> None:
        """Gradients are being recorded: give back the weights that require them, and don't lay them out again."""

    def restore(self) -> int:
        """Give every parameter that was laid out memory and strides of its own again. Returns how many there were."""
        return 0
