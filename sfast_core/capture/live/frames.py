"""Graphs within graphs: what live code calls of the model while it runs is a graph of its own, and tensors that live
code has seen may lie together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..bookkeeping import Bookkeeping
from ..errors import CaptureError
from .call import LiveCall, Recalled
from .form import Form
from .twins import Twins

FRAME = ("graph", "_nodes", "_writes", "_aliases", "_weights", "_externals", "_last_placeholder")


class Frames(Bookkeeping):
    """Bookkeeping of several graphs, of which one is written at a time."""

    twins: Twins

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.live: list[LiveCall] = []
        self._outer: list[dict[str, Any]] = []  # the graphs around the one that is written now
        self._callback: list[list[torch.fx.Node]] = []  # what each of those reads of the graphs around it
        self._from_live: list[StorageWeakRef] = []
        self._kept_own: list[torch.Tensor] = []  # of which live code keeps copies
        self._joined: list[tuple[StorageWeakRef, StorageWeakRef]] = []
        self._lying: dict[int, list[tuple[StorageWeakRef, LiveCall]]] = {}  # who knows a memory, by it
        # who may keep a memory, by it, and its place there
        self._maybe_kept: dict[int, list[tuple[StorageWeakRef, LiveCall, int]]] = {}
        self._frames: list[tuple[Recalled, dict[str, Any]]] = []

    # -- where tensors lie that live code has seen ------------------------------------------------------------------

    def _bind_form(self, tensor: torch.Tensor, node: torch.fx.Node, form: Form) -> None:
        self._set_form(node, form)
        self._bind(tensor, node)

    def _set_form(self, node: torch.fx.Node, form: Form) -> None:
        node.meta["val"] = torch.empty_strided(form.shape, form.stride, dtype=form.dtype, device="meta")
        node.meta["device"] = form.device

    def _join(self, one: torch.Tensor, other: torch.Tensor, call: LiveCall) -> None:
        """The one has come out of a live call to which the other was handed. At another call they may lie at one place,
        or not, if they do in this one: where something is written to either, that is to be as it is.
        """
        with torch._C.DisableTorchFunction():
            mine, theirs = (StorageWeakRef(tensor.untyped_storage()) for tensor in (one, other))
        for ref in (mine, theirs):
            self._lying.setdefault(ref.cdata, []).append((ref, call))
        if mine.cdata != theirs.cdata and (one.dtype, one.shape) == (other.dtype, other.shape):
            self._joined.append((mine, theirs))

    def comes_from_live(self, tensor: torch.Tensor) -> bool:
        """Whether live code has returned something that lies in its memory."""
        own = self._storage(tensor)
        return any(ref.cdata == own and not ref.expired() for ref in self._from_live)

    def _may_be_kept(self, call: LiveCall, returned: list[torch.Tensor], own: list[torch.Tensor]) -> None:
        """Live code has returned these, and has the model's ``own``."""
        places = [*enumerate(returned), *((~index, tensor) for index, tensor in enumerate(own))]
        with torch._C.DisableTorchFunction():
            self._from_live += [StorageWeakRef(tensor.untyped_storage()) for tensor in returned]
            for place, tensor in places:
                ref = StorageWeakRef(tensor.untyped_storage())
                self._maybe_kept.setdefault(ref.cdata, []).append((ref, call, place))
        self._kept_own += [own[~place] for place in call.kept if place < 0]

    def _take(self, tensor: torch.Tensor) -> None:
        """The model writes to it, or returns it: what live code has and keeps of it would have to change alike."""
        for ref, call, place in self._maybe_kept.get(self._storage(tensor), ()):
            if not ref.expired():
                call.taken |= {place}

    def taken_and_kept(self, result: list[torch.Tensor]) -> LiveCall | None:
        """A live call that keeps something that the model has written to, or returns in its ``result``."""
        for tensor in result if self.live else ():
            self._take(tensor)
        with torch._C.DisableTorchFunction():
            self.twins.show()
        return next((call for call in self.live if call.taken & call.kept), None)

    def _written_through(self, target: torch.Tensor, node: torch.fx.Node, others: list[torch.Tensor]) -> None:
        for ref, call in self._lying.get(self._storage(target), ()):
            call.placed = call.placed or not ref.expired()
        self._take(target)
        super()._written_through(target, node, others)

    def _storages(self, tensor: torch.Tensor) -> list[int]:
        own = self._storage(tensor)
        found = [own]
        for one, other in self._joined:
            for a, b in ((one, other), (other, one)):
                if a.cdata == own and not a.expired() and not b.expired():
                    found.append(b.cdata)
        return found

    def _input_in(self, tensor: torch.Tensor) -> tuple[int, torch.Tensor] | None:
        """None where code that runs live may see that input, too: what is written to it is written when the call is
        over.
        """
        return None if self._outer or self.live else super()._input_in(tensor)

    def _may_be_seen_through(self, target: torch.Tensor) -> Iterator[torch.Tensor]:
        """Those through which a write to ``target`` can be seen, in this call or in another one."""
        for storage in self._storages(target):
            for ref in self._aliases.get(storage, ()):
                other = ref()
                if (
                    other is not None
                    and other is not target
                    and other in self._nodes
                    and self._storage(other) == storage
                ):
                    yield other

    def input_place(self, tensor: torch.Tensor) -> int | None:
        """Which of the call's inputs this very tensor is."""
        return next((index for index, own in self._inputs.get(self._storage(tensor), ()) if own is tensor), None)

    def was_there(self, tensor: torch.Tensor, node: torch.fx.Node) -> bool:
        """Whether it is an input or a weight itself, or another tensor that was there before the call.

        Args:
            tensor: that is handed on.
            node: of it.

        Raises:
            CaptureError: an input that the call has written to: what is in the caller's own, it has not written yet.
        """
        if self.input_place(tensor) is not None:
            nodes = self._outer[0]["_nodes"] if self._outer else self._nodes
            own = nodes.get(tensor)
            if own is None or own.op != "placeholder":
                raise CaptureError("an input that the call has written to is handed on")
            return True
        if node.op != "placeholder" or str(node.target).startswith(("given_", "outer_")):
            return False
        return any(tensor is each for each, _, _ in self._externals) or self._table.find(tensor) is not None

    # -- graphs of callbacks ----------------------------------------------------------------------------------------

    def _node(self, tensor: torch.Tensor, name: str) -> torch.fx.Node:
        if self._outer and tensor not in self._writes and self._nodes.get(tensor) is None:
            for depth in range(len(self._outer) - 1, -1, -1):
                frame = self._outer[depth]
                node = frame["_nodes"].get(tensor)
                if tensor in frame["_writes"]:
                    raise CaptureError(f"{name} reads a tensor whose view was changed in place")
                if node is not None and "source" not in node.meta:
                    return self._from_outside(tensor, node, depth)
        return super()._node(tensor, name)

    def _from_outside(self, tensor: torch.Tensor, node: torch.fx.Node, depth: int) -> torch.fx.Node:
        """A value of the graph at ``depth``, handed down through those between."""
        if depth != len(self._outer) - 1:
            raise CaptureError("a callback within a callback reads what was computed around both")
        inner = self._placeholder(f"outer_{len(self._callback[-1])}", tensor)
        self._callback[-1].append(node)
        self._nodes[tensor] = inner
        self._keep(tensor, "a tensor that was computed around a callback")
        return inner

    def _enter_frame(self, tensors: list[torch.Tensor]) -> None:
        self._outer.append({name: getattr(self, name) for name in FRAME})
        self._callback.append([])
        fresh = Bookkeeping([], self._table)
        for name in FRAME:
            setattr(self, name, getattr(fresh, name))
        for index, tensor in enumerate(tensors):
            self._bind(tensor, self._placeholder(f"given_{index}", tensor))

    def _leave_frame(self) -> tuple[dict[str, Any], list[torch.fx.Node]]:
        inner = {name: getattr(self, name) for name in FRAME}
        for name, value in self._outer.pop().items():
            setattr(self, name, value)
        return inner, self._callback.pop()

    def all_weights(self) -> dict[Any, torch.fx.Node]:
        """The weights of all graphs that are used."""
        found = {ref: node for ref, node in self._weights.items() if node.users}
        for _, frame in self._frames:
            found |= {ref: node for ref, node in frame["_weights"].items() if node.users}
        return found
