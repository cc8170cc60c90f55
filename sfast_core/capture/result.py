"""How a call's result is put together from what its graph computes."""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch

from .call_tensors import CallTensors, Given, Kept, Lazily, Leaf, Slot, View, found_in
from .callers_own import CallersOwn
from .errors import CaptureError
from .guards import Effects, Made, taken_apart
from .guards.containers import NewContainers
from .guards.kinds import Kind, kind_of
from .input_writes import InputWrites, overlaps_itself

_LEAVES = (Slot, Given, Kept, View, Lazily)


@dataclass(frozen=True)
class OutputSpec:
    """How to build a call's result from the graph's tensors.

    Attributes:
        tree: how it is built.
        leaves: what isn't a tensor as it is, and of each tensor what it is.
        effects: what the call leaves elsewhere.
        states: tensors of the result that are to be written into an input, with the number of that.
        writes: to inputs.
        returned: the recorded call's tensors that the graph returns and that its result is made of.
        left: those that it has only left elsewhere.
    """

    tree: Made
    leaves: tuple[Any, ...]
    effects: Effects = field(default_factory=Effects)
    states: Mapping[int, int] = field(default_factory=dict)
    writes: InputWrites = field(default_factory=InputWrites)
    returned: list[weakref.ref[torch.Tensor]] = field(default_factory=list)
    left: list[torch.Tensor] = field(default_factory=list)

    @property
    def has_callers_own(self) -> bool:
        """Whether a list or dict of the call's arguments has a place in its result."""
        return any(type(leaf) is CallersOwn for leaf in self.leaves)

    def build(self, tensors: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> Any:
        """The result with ``tensors`` in it, and :class:`CallersOwn` where a list or dict of the call's arguments is.
        ``inputs``: this call's.
        """
        leaves = [found_in(leaf, tensors, inputs) if isinstance(leaf, _LEAVES) else leaf for leaf in self.leaves]
        return self.tree.build(leaves)

    def first(
        self,
        result: Any,
        made: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor],
        deliver: Callable[[Sequence[torch.Tensor]], list[torch.Tensor]],
        inputs: Sequence[torch.Tensor],
    ) -> Any:
        """What the recorded call itself is to return: what later calls will for the same arguments.

        Args:
            result: what it returned.
            made: its tensors, see :meth:`recorded`.
            results: what the program makes of its arguments.
            deliver: makes these the caller's own.
            inputs: the call's.
        """
        if not self.effects.leaves_tensors():
            return self.build(deliver(results), inputs)
        # What it has left elsewhere may be what it returns, and stays the same object: it gets the program's values.
        for mine, value in zip(made, results, strict=False):
            if not overlaps_itself(mine):
                mine.copy_(value)
        return result

    def repeat(self, tensors: list[torch.Tensor], inputs: list[torch.Tensor]) -> None:
        """Do again what the recorded call did besides computing its result. ``inputs``: this call's."""
        if self.effects:
            self.effects.repeat(tensors, inputs)
        if self.writes.indices:
            self.writes.repeat(tensors, inputs)

    def recorded(self, inputs: list[torch.Tensor], result: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """What the recorded call was given and what it made of that, once: both belong to that call alone.

        Args:
            inputs: its tensors, as it has left them.
            result: what it returned, or the tensors of that in order: those are meant where this is asked again.
        """
        returned = [tensor for ref in self.returned if (tensor := ref()) is not None]
        made = returned if returned and len(returned) == len(self.returned) else self._made_of(result)
        given, made = self.writes.given(inputs), [*made, *self.left, *self.writes.left(inputs)]
        self.returned.clear()
        self.left.clear()
        self.writes.forget()
        return given, made

    def _made_of(self, result: Any) -> list[torch.Tensor]:
        tensors = tensors_of(result)
        told = [leaf for leaf in self.leaves if isinstance(leaf, _LEAVES)]
        found = {leaf.index: tensor for leaf, tensor in zip(told, tensors, strict=True) if isinstance(leaf, Slot)}
        return [found[index] for index in sorted(found)] or tensors[:1]


def split_result(
    result: Any,
    tensors: CallTensors,
    containers: NewContainers | None = None,
    own: Mapping[int, CallersOwn] = MappingProxyType({}),
) -> OutputSpec:
    """Take a call's result apart.

    Args:
        result: what it returned.
        tensors: is told of those in the result.
        containers: is told of the lists and dicts in it.
        own: those of its arguments, by their ids.

    Raises:
        CaptureError: it holds an object of an unknown class, or itself, or a list or dict that is found elsewhere.
    """
    try:
        if (why := (containers or NewContainers()).why_not(result, own)) is not None:
            raise CaptureError(f"the result holds {why}")
        leaves, tree = taken_apart(result, own)
    except RecursionError:
        raise CaptureError("the result holds itself, or is too deep") from None
    found = iter(tensors.of_all([leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]))
    told: list[Leaf | Any] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            told.append(next(found))
        elif leaf is None or isinstance(leaf, (enum.Enum, CallersOwn)) or kind_of(leaf) is Kind.VALUE:
            told.append(leaf)
        else:
            raise CaptureError(f"the result holds a {type(leaf).__name__}")
    if not tensors.computed:  # it is made of arguments and weights, and a graph has to return something
        first = next((leaf for leaf in leaves if isinstance(leaf, torch.Tensor)), None)
        if first is None:
            raise CaptureError("the result holds no tensor")
        tensors.computed.append(first)
    return OutputSpec(tree, tuple(told), returned=list(map(weakref.ref, tensors.computed)))


def tensors_of(result: Any) -> list[torch.Tensor]:
    """The tensors in a result, in order."""
    return [leaf for leaf in taken_apart(result)[0] if isinstance(leaf, torch.Tensor)]
