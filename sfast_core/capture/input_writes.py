"""What a call writes into the tensors that it is given: done again at each call, in that call's own tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import pairwise

import torch

from .errors import OnlyThisCall
from .regions import Region


class InputWrites:
    """Which of a recorded call's inputs it has written to.

    Attributes:
        indices: of those among the signature's tensors, in the order in which the graph returns what is in them behind
            the call.
    """

    def __init__(self) -> None:
        self._before: dict[int, torch.Tensor] = {}
        self._versions: dict[int, int] = {}
        self._unseen: frozenset[int] = frozenset()  # those of which autograd isn't told that they were written to
        self.indices: tuple[int, ...] = ()

    def keep(self, index: int, tensor: torch.Tensor) -> None:
        """Keep what is in an input that may be written to next. What was there in front of the first write counts."""
        if index not in self._before:
            with torch._C.DisableTorchFunction():
                kept = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
                self._before[index] = kept.copy_(tensor.detach())
                if not tensor.is_inference():
                    self._versions[index] = tensor._version

    def add(self, index: int) -> bool:
        """It was written to; False where nobody has kept what was in it."""
        if index in self._before and index not in self.indices:
            self.indices = (*self.indices, index)
        return index in self.indices

    def finish(self, inputs: Sequence[torch.Tensor]) -> None:
        """The recorded call is over: what was written by way of ``tensor.data`` left no mark on the tensor."""
        self._unseen = frozenset(
            index for index in self.indices if self._versions.get(index) == _version(inputs[index])
        )

    def given(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The recorded call's inputs as they were in front of it."""
        return [self._before.get(index, tensor) for index, tensor in enumerate(inputs)]

    def left(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What is in them now."""
        return [inputs[index] for index in self.indices]

    def put_back(self, inputs: Sequence[torch.Tensor]) -> None:
        """The recorded call came to nothing and is made once more: its inputs hold again what they were given with."""
        with torch._C.DisableTorchFunction():
            for index in self.indices:
                inputs[index].copy_(self._before[index])

    def forget(self) -> None:
        """What they were is the recorded call's alone."""
        self._before.clear()

    def repeat(self, results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        """Write to a call's ``inputs`` what the program has made of them: the last of ``results``."""
        for index, result in zip(self.indices, results[-len(self.indices) :], strict=True):
            (inputs[index].data if index in self._unseen else inputs[index]).copy_(result)

    def check(self, inputs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]) -> None:
        """Whether a write to one of a call's inputs is a write to that one alone, as it was in the recorded call.

        Raises:
            OnlyThisCall: another input or a weight lies in the same memory, or it may not be written to here.
        """
        check_writes(self.indices, inputs, weights)


def check_writes(indices: Collection[int], inputs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]) -> None:
    """As :meth:`InputWrites.check`, of these inputs."""
    unshared = alone(indices, (*inputs, *weights)) if indices else ()
    for index in indices:
        if inputs[index].is_inference() and not torch.is_inference_mode_enabled():
            raise OnlyThisCall("the call writes to a tensor of inference mode outside of it")
        if index not in unshared:
            raise OnlyThisCall("the call writes to an input that shares memory with another one or with a weight")


def alone(indices: Collection[int], tensors: Sequence[torch.Tensor]) -> set[int]:
    """Those of the ``tensors`` of these numbers whose memory no other of them has."""
    memory = list(map(_memory, tensors))
    count = Counter(memory)
    return {index for index in indices if count[memory[index]] == 1}


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two of its elements may be one, as those of an expanded tensor are."""
    steps = Region.of(tensor).steps
    return any(step < inner * count for (step, _), (inner, count) in pairwise(steps)) or bool(
        steps and steps[-1][0] == 0
    )


def _version(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def _memory(tensor: torch.Tensor) -> int:
    with torch._C.DisableTorchFunction():
        return tensor.untyped_storage().data_ptr()
