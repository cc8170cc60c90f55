"""Rotations by cosine and sine: half of what their matrices are, and one for all images where these have the same."""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

from ...ops.norm_rope import norm_rope
from ..constants import known, values
from ..graph import calls_of, insert, named, shape

_FIRST_COLUMN = (-1, 0)  # the dimension, the index


def turn_by_angles(graph: Graph) -> int:
    """Give ``norm_rope`` the first columns of its matrices, where their values are known and turn each pair by an
    angle.

    Models repeat their tables in ways that no graph shows, so the values are compared: of images, and of the two
    columns. Where each head has its own rotations, these are most of what a kernel reads.
    """
    readers = [(node, named(node).rotations) for node in calls_of(graph, norm_rope)]
    there = known(graph) if readers else {}
    firsts: dict[Node, Node] = {}  # of the readers of each table
    for node, tables in readers:
        if tables in there and shape(tables)[-2] == 2:
            firsts.setdefault(tables, node)
    angles = {
        tables: _angles(firsts[tables], tables, matrices)
        for tables, matrices in values(graph, firsts).items()
        if _turn(matrices)
    }
    for node, tables in readers:
        if tables in angles:
            node.replace_input_with(tables, angles[tables])
    return len(angles)


def _turn(matrices: torch.Tensor) -> bool:
    """Whether each of ``matrices`` [..., D / 2, 2, 2] is one of cosine, -sine, sine, cosine."""
    (cosine, minus_sine), (sine, other_cosine) = (row.unbind(-1) for row in matrices.unbind(-2))
    return bool(torch.equal(cosine, other_cosine)) and bool(torch.equal(minus_sine, -sine))


def _angles(before: Node, tables: Node, matrices: torch.Tensor) -> Node:
    """The first column of each matrix; of the first image alone where all have the same."""
    columns = insert(before, torch.select, tables, *_FIRST_COLUMN)
    if len(matrices) > 1 and torch.equal(matrices[1:], matrices[:1].expand_as(matrices[1:])):
        columns = insert(before, torch.narrow, columns, 0, 0, 1)
    return insert(before, torch.Tensor.contiguous, columns)
