"""What is made of weights and lies beside them, so that a program reads it: their numbers of 8 bits.

Made again, in the same memory, where they change.

Nobody can see every write to a weight (``weight.data.copy_()``). Where the host says that there are none for a while,
all are made anew as such a while begins, and again where a write is seen; else they are made anew at each call, within
its graph where it has one.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch

from ..weights.eight_bits import EIGHT_BITS, EightBits
from ..weights.errors import WeightsChanged
from ..weights.layout import Weight
from ..weights.ref import WeightRef

_Key = tuple[tuple[WeightRef, ...], bool]
_Form = tuple[torch.dtype, torch.Size, torch.device]


@dataclass
class _Made:
    tensors: tuple[torch.Tensor, torch.Tensor]
    # the objects, where they lay and how often they had been written to
    of: list[tuple[weakref.ref[torch.Tensor], int, int]]
    forms: list[_Form]


class Copies:
    """Those of one store. Not thread-safe: its caller holds the store's lock.

    Args:
        source: gives the tensor that a program would read of a weight as it lies.

    Attributes:
        at_each_call: whether the host doesn't say that nobody writes to weights.
        unwritten: equal in all calls between which nobody does, as the host said when the last one began; None: it
            didn't.
    """

    def __init__(self, source: Callable[[WeightRef], torch.Tensor]) -> None:
        self._source = source
        self._made: dict[_Key, _Made] = {}
        self._while: Hashable = None
        self.at_each_call = True
        self.unwritten: Hashable = None

    def __bool__(self) -> bool:
        return bool(self._made)

    @property
    def bytes(self) -> int:
        """What they take beside the weights."""
        return sum(tensor.nbytes for made in self._made.values() for tensor in made.tensors)

    def tensor(self, weight: Weight) -> torch.Tensor:
        """What a program reads: the same memory as long as the weights are alike.

        Raises:
            ReferenceError: a weight is gone.
            WeightsChanged: one is of another dtype, shape or device than what was made of it.
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
        elif (
            [address for _, address, _ in made.of] != [source.data_ptr() for source in sources]
            or not _are(made, sources)
            or _written(made)
        ):
            self._make(made, layout, sources)
        return made.tensors[layout.which]

    def begin_call(self, unwritten: Hashable) -> None:
        """A call begins.

        Args:
            unwritten: equal in all calls between which nobody writes to weights, as the host says. None: it doesn't.
        """
        self.at_each_call, self.unwritten = unwritten is None, unwritten
        if (
            not self.at_each_call
            and self._made
            and (unwritten != self._while or any(map(_written, self._made.values())))
        ):
            _settle({device for made in self._made.values() for _, _, device in made.forms})
            self._make_all(list(self._made))
            self._while = unwritten

    def make_again(self, weights: Sequence[Weight]) -> None:
        """Bring what these programs' weights name up to date, in the memory that it has: a graph may hold this."""
        keys = dict.fromkeys(
            (weight.refs, EIGHT_BITS[weight.layout].rotates) for weight in weights if weight.layout in EIGHT_BITS
        )
        self._make_all([key for key in keys if key in self._made])

    def _make_all(self, keys: Sequence[_Key]) -> None:
        """One whose weights are gone, or others by now, goes."""
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
        """Give the memory back. Whoever reads it asks :meth:`tensor` again."""
        self._made.clear()
        self._while = None

    def _make(self, made: _Made, layout: type[EightBits], sources: Sequence[torch.Tensor]) -> None:
        with torch.inference_mode(False), torch.no_grad():
            for mine, new in zip(made.tensors, layout.both(*sources), strict=True):
                mine.copy_(new)
        made.of = _seen(sources)


def _settle(devices: set[torch.device]) -> None:
    """Wait for whoever reads what is made, on any stream."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def _form(tensor: torch.Tensor) -> _Form:
    return tensor.dtype, tensor.shape, tensor.device


def _seen(sources: Sequence[torch.Tensor]) -> list[tuple[weakref.ref[torch.Tensor], int, int]]:
    return [(weakref.ref(source), source.data_ptr(), _version(source)) for source in sources]


def _are(made: _Made, sources: Sequence[torch.Tensor]) -> bool:
    return all(then() is source for (then, _, _), source in zip(made.of, sources, strict=True))


def _written(made: _Made) -> bool:
    """Whether a write to what it was made of can be seen. Of inference tensors none can."""
    return any((source := then()) is None or _version(source) != version for then, _, version in made.of)


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
