"""What is in a tensor after another one that shares its memory was written to."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Graph, Node

from .functional import put, setitem, taken
from .nodes import call_function, call_method
from .regions import Place, Region, index_of, place_in


@dataclass(frozen=True)
class Write:
    """A write through another tensor.

    Attributes:
        source: the tensor that was written to.
        node: what has been in that one since.
        index: by which the one is made of the other; where there is none, ``place``. Neither: it can't be said.
        whole: whether the tensor written to has all elements of the one that is read; else it is a part of it.
    """

    source: weakref.ref[torch.Tensor]
    node: Node
    whole: bool = False
    index: tuple[Any, ...] | None = None
    place: Place | None = None
    reshaped: tuple[int, ...] | None = None

    @property
    def known(self) -> bool:
        """Whether it can be said what the write did."""
        return not (self.index is None and self.place is None and self.reshaped is None)


def write_out_of(both: torch.Tensor, other: torch.Tensor, write: Write, writes: list[Write]) -> Write | None:
    """In the place of ``write`` to ``other``: that is a part of ``both``, to which the same was written, the last of
    ``writes``.
    """
    if not writes or writes[-1].source() is not write.source() or not all(one.known for one in writes):
        return None
    found = write_between(both, other, write.node)
    return replace(found, source=write.source) if found.whole and found.known else None


def write_between(target: torch.Tensor, other: torch.Tensor, node: Node) -> Write:
    """``target`` was written to, and then was what ``node`` is; ``other`` shares its memory."""
    source, written, read = weakref.ref(target), Region.of(target), Region.of(other)
    if target.dtype != other.dtype or target.is_conj() != other.is_conj() or target.is_neg() != other.is_neg():
        return Write(source, node)
    with torch._C.DisableTorchFunction():
        dense = target.is_contiguous() and other.is_contiguous()
    if dense and written.offset == read.offset and target.numel() == other.numel():
        return Write(source, node, True, reshaped=read.size)
    if (index := index_of(read, written)) is not None:
        return Write(source, node, True, index)
    if (index := index_of(written, read)) is not None:
        return Write(source, node, False, index)
    if (place := place_in(read, written)) is not None:
        return Write(source, node, True, None, place)
    return Write(source, node, False, None, place_in(written, read))


def current(graph: Graph, node: Node, write: Write) -> Node | None:
    """What ``node``'s tensor holds after ``write``; None where that can't be said."""
    if write.reshaped is not None:
        if write.reshaped == tuple(write.node.meta["val"].shape):
            return write.node
        return call_method(graph, "reshape", (write.node, write.reshaped))
    if write.index is not None:
        if all(item == slice(None) for item in write.index):
            return write.node
        if write.whole:
            return call_method(graph, "__getitem__", (write.node, write.index))
        return call_function(graph, setitem, (node, write.index, write.node))
    if write.place is None:
        return None
    where = (write.place.order, write.place.size, write.place.stride, write.place.offset)
    if write.whole:
        return call_function(graph, taken, (write.node, *where))
    return call_function(graph, put, (node, write.node, *where))
