"""Tokens that a model modulates in parts, what it makes beside what it makes it after: each part with a row of its own,
and all of them together again.

Some join the parts, others write each in its place. Here it is one operation on all tokens, with a row for each part
(:func:`.of_each_token`), which the passes that fuse norms and modulations know.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from ...capture.functional import setitem
from ...ops.gated_sum import gated_sum
from ...ops.token_rows import of_each_token
from ..graph import alike, calls, calls_of, insert, is_tensor, named, replace, shape, value
from ..parts import Part, part_at, part_of
from ..patterns import HasImpl

_ELEMENTWISE = (torch.add, torch.mul, torch.addcmul)
_TOKENS = 1  #: the dimension


class _Piece(NamedTuple):
    """What tokens ``start`` to ``stop`` are."""

    start: int
    stop: int
    node: Node


def join_parts(graph: Graph, has_impl: HasImpl) -> int:
    """Sums and products of all parts of tokens, where nobody else reads them and a kernel knows such rows."""
    last_write_first = reversed(calls_of(graph, torch.cat, setitem))
    return sum([_join(node, has_impl) for node in last_write_first if node.users])


def _join(node: Node, has_impl: HasImpl) -> bool:
    if not is_tensor(node) or value(node).dim() != 3:
        return False
    joint = _Joint(node, has_impl)
    pieces = joint.pieces()
    if pieces is None or not all(calls(piece.node, *_ELEMENTWISE) for piece in pieces):
        return False
    whole = joint.whole([piece.node for piece in pieces])
    if (
        not alike(whole, node)
        or not joint.has_rows
        or any(set(taken.users) - joint.taken for taken in joint.taken - {node})
    ):
        return False
    replace(node, whole)
    return True


class _Joint:
    """What ``node`` joins, put together from what its pieces are computed of."""

    def __init__(self, node: Node, has_impl: HasImpl) -> None:
        self.node, self._has_impl = node, has_impl
        self.taken = {node}  #: what is computed otherwise now
        self.has_rows = False
        self._ranges: list[tuple[int, int]] = []

    def pieces(self) -> list[_Piece] | None:
        """The pieces that make up all tokens, in order, of which all but the last are as long as one another."""
        node = self.node
        found = self._joined() if calls(node, torch.cat) else self._written()
        found = sorted(found or ())
        self._ranges = [(piece.start, piece.stop) for piece in found]
        bounds = [0, *(piece.stop for piece in found)]
        lengths = {stop - start for start, stop in self._ranges[:-1]}
        is_whole = [start for start, _ in self._ranges] == bounds[:-1] and bounds[-1] == shape(node)[_TOKENS]
        return found if len(found) > 1 and is_whole and len(lengths) == 1 else None

    def _joined(self) -> list[_Piece] | None:
        call: Any = named(self.node)
        if call.dim not in (_TOKENS, _TOKENS - 3) or not all(map(is_tensor, call.tensors)):
            return None
        stops = itertools.accumulate(shape(piece)[_TOKENS] for piece in call.tensors)
        return [
            _Piece(stop - shape(piece)[_TOKENS], stop, piece) for piece, stop in zip(call.tensors, stops, strict=True)
        ]

    def _written(self) -> list[_Piece] | None:
        """What is written last to each place, where writes are to the same place or to places apart."""
        found: dict[tuple[int, int], Node] = {}
        node: Any = self.node
        while (place := _place(node)) is not None:
            self.taken.add(node)
            found.setdefault((place.start, place.stop), named(node).value)
            node = place.x
        return [_Piece(*place, piece) for place, piece in found.items()]

    def whole(self, pieces: list[Any]) -> Any:
        """What for all tokens stands in the place of ``pieces``, None where nothing does."""
        first = pieces[0]
        if not isinstance(first, Node):
            return first if all(type(piece) is type(first) and piece == first for piece in pieces) else None
        if not all(map(is_tensor, pieces)) or len({value(piece).dtype for piece in pieces}) > 1:
            return None
        if shape(first)[1:] == (1, shape(self.node)[-1]) and all(shape(piece) == shape(first) for piece in pieces):
            return self._rows(pieces)
        if (x := self._parted(pieces)) is not None:
            return x
        if not all(calls(piece, first.target) for piece in pieces) or not calls(first, *_ELEMENTWISE):
            return None
        self.taken.update(pieces)
        operands = [self.whole(list(each)) for each in zip(*(piece.args for piece in pieces), strict=True)]
        if any(operand is None for operand in operands):
            return None
        return insert(self.node, first.target, *operands)

    def _parted(self, pieces: list[Node]) -> Node | None:
        """The tokens of which these are the parts."""
        found = [self._part(piece) for piece in pieces]
        if found[0] is None or shape(found[0].x) != shape(self.node):
            return None
        x = found[0].x
        whole = [Part(x, _TOKENS, *bounds) for bounds in self._ranges]
        return x if found == whole else None

    def _part(self, piece: Node) -> Part | None:
        """Which part of tokens a piece is, as they were before others were written."""
        part, by = part_of(piece), piece
        while part is not None and (place := _place(part.x)) is not None and _are_apart(part, place):
            self.taken.add(by)
            part = part._replace(x=place.x)
        return part

    def _rows(self, pieces: list[Node]) -> Node | None:
        """One row for each part; what is 1 more than others stays so."""
        if all(calls(piece, torch.add) and piece.args[1:] in ((1,), (1.0,)) for piece in pieces):
            rows = self.whole([piece.args[0] for piece in pieces])
            return None if rows is None else insert(self.node, torch.add, rows, 1)
        part, length = self._ranges[0][1], shape(self.node)[_TOKENS]
        rows = _stacked(self.node, pieces)
        if not self._has_impl(gated_sum, value(self.node), value(rows), None, "none", part):
            return None
        self.has_rows = True
        return insert(self.node, of_each_token, rows, part, length)


def _place(node: Any) -> Part | None:
    """Where a node writes to tokens."""
    if not calls(node, setitem) or not is_tensor(named(node).value) or value(node).dim() != 3:
        return None
    place = part_at(named(node).x, named(node).index)
    return place if place is not None and place.dim == _TOKENS else None


def _are_apart(part: Part, place: Part) -> bool:
    return part.dim == place.dim and (part.stop <= place.start or place.stop <= part.start)


def _stacked(before: Node, rows: list[Node]) -> Node:
    """Rows for each image, [B, 1, C], behind one another, [B, P, C]: a view where a model has made them so."""
    images, _, channels = shape(rows[0])
    sources = [row.args[0] if calls(row, torch.reshape) else row for row in rows]
    found = [part_of(source) for source in sources]
    base = found[0].x if found[0] is not None else None
    if base is not None and shape(base)[0] == images * len(rows) and value(base).numel() == shape(base)[0] * channels:
        if found == [Part(base, 0, index * images, (index + 1) * images) for index in range(len(rows))]:
            stacked = insert(before, torch.reshape, base, (len(rows), images, channels))
            return insert(before, torch.permute, stacked, (1, 0, 2))
    if base is not None and shape(base) == (images, len(rows), channels):
        if found == [Part(base, 1, index, index + 1) for index in range(len(rows))]:
            return base
    return insert(before, torch.cat, rows, 1)
