"""Copies of weights in another form, made for programs to read: 8-bit numbers and their scales.

They are made again, in the same memory, when their weights change. Not every write to a weight can be seen
(``weight.data.copy_()``). So where the host promises that nobody writes for a while (a sampling), all copies are made
anew when that begins and again when a write is seen; otherwise they are made anew at each call, inside its graph where
it has one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch

from ..weights.eight_bits import EIGHT_BITS, EightBits
from ..weights.errors import WeightsChanged
from ..weights.layout import Weight
from ..weights.ref import WeightRef

_Key = tuple[tuple[WeightRef, ...], bool]
_Form = tuple[torch.dtype, torch.Size, torch.device]
_Seen = tuple[int, int, int]  # a tensor's id, address and version


@dataclass
class _Made:
    """One copy: numbers and scales, the weights that it was made of, their forms."""

    tensors: tuple[torch.Tensor, torch.Tensor]
    of: list[_Seen]
    forms: list[_Form]


class Copies:
    """The copies of one store. Not thread-safe: its caller holds the store's lock.

    Args:
        source: gives the tensor of a weight.

    Attributes:
        at_each_call: whether each call has to make copies anew, since the host promises nothing.
        unwritten: what the present call was told by :meth:`begin_call`.
    """

    def __init__(self, source: Callable[[WeightRef], torch.Tensor]) -> None:
        self._source = source
        self._made: dict[_Key, _Made] = {}
        self._while: Hashable = None
        self.at_each_call = True
        self.unwritten: Hashable = None

    @property
    def bytes(self) -> int:
        """The size of all copies."""
        return sum(tensor.nbytes for made in self._made.values() for tensor in made.tensors)

    def tensor(self, weight: Weight) -> torch.Tensor:
        """The tensor that programs read for ``weight``, up to date; at one address while weights keep their form.

        Raises:
            ReferenceError: a weight is gone.
            WeightsChanged: a weight has another dtype, shape or device than when the copy was made.
        """
        layout = EIGHT_BITS[weight.layout]
        key, sources = (weight.refs, layout.rotates), [self._source(ref) for ref in weight.refs]
        made = self._made.get(key)
        if made is not None and made.forms != list(map(_form, sources)):
            del self._made[key]
            raise WeightsChanged(f"the weight {weight} isn't what it was made of any more")
        if made is None:
            if reason := layout().why_not(weight.refs):
                raise WeightsChanged(reason)
            with torch.inference_mode(False), torch.no_grad():
                made = self._made[key] = _Made(layout.both(*sources), _seen(sources), list(map(_form, sources)))
        elif made.of != _seen(sources):
            self._make(made, layout, sources)
        return made.tensors[layout.which]

    def begin_call(self, unwritten: Hashable) -> None:
        """To be called when a call begins.

        Args:
            unwritten: equal in all calls between which nobody writes to weights, as the host promises. None: no
                promise.
        """
        self.at_each_call, self.unwritten = unwritten is None, unwritten
        if not self.at_each_call and self._made and (unwritten != self._while or any(map(self._written, self._made))):
            _settle({device for made in self._made.values() for _, _, device in made.forms})
            self._make_all(list(self._made))
            self._while = unwritten

    def make_again(self, weights: Sequence[Weight]) -> None:
        """Make the copies of these weights anew, in the memory that they have. A graph may capture this."""
        keys = dict.fromkeys(
            (weight.refs, EIGHT_BITS[weight.layout].rotates) for weight in weights if weight.layout in EIGHT_BITS
        )
        self._make_all([key for key in keys if key in self._made])

    def _make_all(self, keys: Sequence[_Key]) -> None:
        """Make these anew. A copy whose weights are gone or have changed their form is dropped."""
        for refs, rotates in keys:
            made = self._made[refs, rotates]
            layout = next(each for each in EIGHT_BITS.values() if each.rotates == rotates)
            with contextlib.suppress(ReferenceError, WeightsChanged):
                sources = [self._source(ref) for ref in refs]
                if made.forms == list(map(_form, sources)):
                    self._make(made, layout, sources)
                    continue
            del self._made[refs, rotates]

    def drop(self) -> None:
        """Release all copies. :meth:`tensor` makes them again."""
        self._made.clear()
        self._while = None

    def _written(self, key: _Key) -> bool:
        """Whether a copy's weights are others, or were visibly written to since."""
        try:
            return self._made[key].of != _seen([self._source(ref) for ref in key[0]])
        except (ReferenceError, WeightsChanged):
            return True

    def _make(self, made: _Made, layout: type[EightBits], sources: Sequence[torch.Tensor]) -> None:
        with torch.inference_mode(False), torch.no_grad():
            for mine, new in zip(made.tensors, layout.both(*sources), strict=True):
                mine.copy_(new)
        made.of = _seen(sources)


def _settle(devices: set[torch.device]) -> None:
    """Wait until nothing on any stream of these devices reads copies."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def _form(tensor: torch.Tensor) -> _Form:
    return tensor.dtype, tensor.shape, tensor.device


def _seen(sources: Sequence[torch.Tensor]) -> list[_Seen]:
    """Writes to inference tensors can't be seen."""
    return [(id(source), source.data_ptr(), _version(source)) for source in sources]


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
