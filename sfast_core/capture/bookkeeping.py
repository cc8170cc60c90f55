"""Which node of a graph stands for which tensor of a recorded call: inputs, weights, tensors from elsewhere, and what
was computed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace

import torch

from ..reporting.reasons.records import BROUGHT, FROM_ELSEWHERE
from ..weights import Weight, WeightRef, WeightTable
from ..weights.part import has_parts, is_plain
from ..weights.tensor_map import TensorMap
from .errors import CaptureError
from .externals import Found
from .input_writes import InputWrites, overlaps_itself
from .nodes import new_graph
from .regions import Region, apart
from .unchanged import Unchanged
from .written import Write, current, write_between, write_out_of


class HasParts(Exception):
    """A call is given a tensor that is made of others."""


MADE = "made"  #: among what is known of a tensor from elsewhere: its memory is one that the graph makes


class Bookkeeping:
    """A graph and the tensors that its nodes stand for.

    Args:
        inputs: the call's own tensors: the first placeholders.
        table: finds weights.
    """

    _note_reader: Callable[[torch.fx.Node], None]  # who is at work, of a node that may come to nothing,
    _blame_reader: Callable[[torch.fx.Node], None]  # and that it is what the recording came to nothing in

    def __init__(self, inputs: list[torch.Tensor], table: WeightTable) -> None:
        self.graph = new_graph()
        self._table = table
        self._nodes = TensorMap[torch.fx.Node]()
        self._writes = TensorMap[list[Write]]()  # through tensors that share its memory, since its node was made
        self._aliases: dict[int, list[weakref.ref[torch.Tensor]]] = {}
        self._weights: dict[WeightRef, torch.fx.Node] = {}
        # tensors from elsewhere, and what reads them first
        self._externals: list[tuple[torch.Tensor, torch.fx.Node, str]] = []
        self._unchanged = Unchanged()
        self._metas: dict[Hashable, torch.Tensor] = {}
        self._foreign: set[int] = set()  # storages of inputs and weights: a write to one would be a side effect
        self._inputs: dict[int, list[tuple[int, torch.Tensor]]] = {}  # by storage
        self._kept: set[int] = set()  # storages of weights and of tensors from elsewhere
        self.input_writes = InputWrites()
        self._last_placeholder: torch.fx.Node | None = None
        self.device: torch.device | None = None  # that the call runs on, where it is known
        for index, tensor in enumerate(inputs):
            self._bind(tensor, self._placeholder(f"input_{index}", tensor))
            self._inputs.setdefault(self._storage(tensor), []).append((index, tensor))
            self._foreign.add(self._storage(tensor))
            self._unchanged.add(tensor, "an input")

    def _value(self, node: torch.fx.Node, tensor: torch.Tensor) -> torch.fx.Node:
        node.meta["val"], node.meta["device"] = self._meta(tensor), tensor.device
        return node

    def _meta(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor on the meta device with the same shape, dtype and strides: one for all that are alike, 110 for
        SDXL's 4,900.
        """
        like = (tensor.shape, tensor.stride(), tensor.dtype)
        meta = self._metas.get(like)
        if meta is None:
            meta = self._metas[like] = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta"
            )
        return meta

    def _bind(self, tensor: torch.Tensor, node: torch.fx.Node) -> None:
        if "val" not in node.meta:
            self._value(node, tensor)
        self._nodes[tensor] = node
        self._aliases.setdefault(self._storage(tensor), []).append(weakref.ref(tensor))

    def stands_for(self, tensor: torch.Tensor, computed: torch.Tensor) -> None:
        """``tensor``, which lies as ``computed`` does, is what the graph computes there."""
        self._bind(tensor, self._node(computed, "what stands for it"))

    def computes(self, tensor: torch.Tensor) -> bool:
        """Whether it is what the graph makes of others."""
        node = self._nodes.get(tensor)
        return node is not None and node.op != "placeholder"

    def kept_in(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """What the graph reads of what was there before the call, but for its inputs, that lies in this memory."""
        storage = self._storage(tensor)
        if storage not in self._kept:
            return []
        weights = (ref.tensor() for ref in self._weights if ref.part is None)
        read = (*weights, *(external for external, _, _ in self._externals))
        return [each for each in read if self._storage(each) == storage]

    def _node(self, tensor: torch.Tensor, name: str) -> torch.fx.Node:
        if (node := self._nodes.get(tensor)) is not None:
            return self._current(tensor, node, name) if tensor in self._writes else node
        if has_parts(tensor):
            raise HasParts
        ref = self._table.find(tensor)
        return self._external(tensor, name) if ref is None else self._weight(ref, tensor)

    def _current(self, tensor: torch.Tensor, node: torch.fx.Node, name: str) -> torch.fx.Node:
        """The node of a tensor that was written to through others, now that it is read."""
        for write in self._writes.get(tensor) or ():
            written = current(self.graph, node, write)
            if written is None:
                raise CaptureError(
                    f"{name} reads a tensor whose view was changed in place, and where it lies in that can't be said"
                )
            node = written if written is write.node else self._value(written, tensor)
        del self._writes[tensor]
        self._nodes[tensor] = node
        return node

    def _written_through(self, target: torch.Tensor, node: torch.fx.Node, others: list[torch.Tensor]) -> None:
        """``others`` share ``target``'s memory, in which is what ``node`` is: where they have elements in common, it is
        that once it is read.
        """
        crossing = []
        for other in others:
            if target.dtype == other.dtype and apart(Region.of(target), Region.of(other)):
                continue
            writes = self._writes.get(other)
            if writes is None:
                writes = self._writes[other] = []
            writes.append(write_between(target, other, node))
            if not writes[-1].known:
                crossing.append(other)
        for other in crossing:  # each has elements that the other lacks: it is read out of a tensor that has both's
            writes = self._writes.get(other) or []
            for both in others:
                if both is not other and (found := write_out_of(both, other, writes[-1], self._writes.get(both) or [])):
                    writes[-1] = replace(found, node=self._node(both, "an operation in place"))
                    break

    def _external(self, tensor: torch.Tensor, name: str) -> torch.fx.Node:
        """A tensor from elsewhere. Where, is asked when the call is over."""
        if not is_plain(tensor) or tensor.layout is not torch.strided:
            raise CaptureError(FROM_ELSEWHERE(name=name, what=type(tensor).__name__))
        node = self._placeholder(f"external_{len(self._externals)}", tensor)
        node.meta[MADE] = self._lies_in_made(tensor)
        if self._is_elsewhere(tensor):
            self._note_reader(node)
        self._externals.append((tensor, node, name))
        self._nodes[tensor] = node
        self._keep(tensor, f"a tensor of shape {tuple(tensor.shape)} from elsewhere")
        return node

    def _lies_in_made(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor that the graph doesn't know lies in memory that it makes."""
        storage = self._storage(tensor)
        return storage in self._aliases and storage not in self._foreign and self._table.find(tensor) is None

    def _is_elsewhere(self, tensor: torch.Tensor) -> bool:
        return self.device is not None and tensor.device != self.device

    def _name_externals(self, found: Found) -> None:
        for tensor, node, name in self._externals:
            if not node.users:
                self.graph.erase_node(node)
                continue
            if self._is_elsewhere(tensor):  # no weight, so nothing brings it but the code that reads it
                self._blame_reader(node)
                raise CaptureError(BROUGHT(name=name, where=tensor.device, device=self.device))
            ref = found(tensor)
            if ref is None:
                raise CaptureError(FROM_ELSEWHERE(name=name, what=f"tensor of shape {tuple(tensor.shape)}"))
            node.meta["source"] = Weight((ref,))
            self._weights[ref] = node

    def _weight(self, ref: WeightRef, tensor: torch.Tensor, stays: bool = True) -> torch.fx.Node:
        node = self._weights.get(ref)
        if node is None:
            if not is_plain(tensor):
                raise CaptureError(f"the weight {ref} is a {type(tensor).__name__}")
            name = str(ref)
            node = self._placeholder(f"weight_{name}".replace(".", "_"), tensor)
            node.meta["source"] = Weight((ref,))
            self._weights[ref] = node
            self._keep(tensor, f"the weight {name}" if ref.part is None else f"a part of the weight {name}", stays)
        return node

    def name_weight(self, tensor: torch.Tensor, ref: WeightRef) -> None:
        """Declare that this tensor is what ``ref`` names, which the table doesn't know."""
        if tensor not in self._nodes:
            self._bind(tensor, self._weight(ref, tensor))

    def _keep(self, tensor: torch.Tensor, what: str, stays: bool = True) -> None:
        """The call is not to write to this tensor, by operations that say so or from within others."""
        storage = self._storage(tensor)
        self._foreign.add(storage)
        self._kept.add(storage)
        self._unchanged.add(tensor, what, stays)

    def let_go(self, tensors: Sequence[torch.Tensor]) -> None:
        """These weights get other memory, and theirs may be anybody's: a write to it is none to a weight any more."""
        for storage in map(self._storage, tensors):
            if storage not in self._inputs:
                self._foreign.discard(storage)
                self._kept.discard(storage)

    def _input_in(self, tensor: torch.Tensor) -> tuple[int, torch.Tensor] | None:
        """The one input whose memory this tensor lies in, and which number it has; None where it isn't that one's
        alone.
        """
        found = self._inputs.get(self._storage(tensor), ())
        if len(found) == 1 and self._storage(tensor) not in self._kept and not overlaps_itself(found[0][1]):
            return found[0]
        return None

    def _written_inputs(self) -> tuple[torch.fx.Node, ...]:
        """What is in the inputs that were written to, now that the call is over.

        Raises:
            CaptureError: one of them is also something else.
        """
        tensors = {index: tensor for found in self._inputs.values() for index, tensor in found}
        written = [tensors[index] for index in self.input_writes.indices]
        if any(self._input_in(tensor) is None for tensor in written):
            raise CaptureError("the call writes to an input that shares memory with a weight")
        return tuple(self._node(tensor, "the call's end") for tensor in written)

    def _placeholder(self, name: str, tensor: torch.Tensor) -> torch.fx.Node:
        if self._last_placeholder is None:
            node = self.graph.create_node("placeholder", name, name=name)
        else:
            with self.graph.inserting_after(self._last_placeholder):
                node = self.graph.create_node("placeholder", name, name=name)
        if node.target != node.name:  # FX makes names unique, arguments of the generated code take the target
            node.target = node.name
        self._last_placeholder = node
        return self._value(node, tensor)

    def _live_aliases(self, target: torch.Tensor) -> Iterator[torch.Tensor]:
        for ref in self._aliases.get(self._storage(target), ()):
            other = ref()
            if (
                other is not None
                and other is not target
                and other in self._nodes
                and self._storage(other) == self._storage(target)
            ):
                yield other

    def _is_foreign(self, tensor: torch.Tensor) -> bool:
        """Whether a write to this tensor would be seen outside of the call."""
        return self._storage(tensor) in self._foreign

    @staticmethod
    def _storage(tensor: torch.Tensor) -> int:
        return _address_of_storage(tensor)


def _by_its_object(tensor: torch.Tensor) -> int:
    with torch._C.DisableTorchFunction():
        return int(tensor.untyped_storage()._cdata)


#: Which storage a tensor lies in. It is asked 17,000 times in a recorded call of SDXL, and PyTorch's newer function
#: makes no object for it.
_address_of_storage: Callable[[torch.Tensor], int] = getattr(torch._C, "_storage_address", _by_its_object)
