"""Rotary position embeddings, in the ways in which models spell them.

ComfyUI multiplies pairs by 2x2 matrices, by an operator of comfy-kitchen's or, before that, column by column. diffusers
multiplies heads by cosines, and what has its pairs exchanged and one element of each negated by sines; or pairs, as
complex numbers, by others. Pairs are of neighbours, or of elements half a head apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Graph, Node

from ...capture.functional import element
from ...weights.kitchen import operators
from ..graph import called, calls, calls_of, results_of, shape, sole_user, value
from ..patterns import uncast
from .by_halves import by_assignment, by_cosines
from .by_pairs import by_pairs
from .rotation import Rotation, back_to, heads_of, two_terms

#: comfy-kitchen's, of queries and keys, of one of them; matrices last. True: of pairs half a head apart.
_OPERATORS = {"apply_rope": False, "apply_rope1": False, "apply_rope_split_half": True, "apply_rope_split_half1": True}
#: Those that norm each head first: behind the matrices the weights, eps and, of some, how much of a head is rotated, 0
#: for all of it.
_NORMING = {"rms_rope": False, "rms_rope1": False, "rms_rope_split_half": True, "rms_rope_split_half1": True}


def rotations(graph: Graph) -> list[Rotation]:
    """All that are in ``graph``, in order."""
    found = [
        *_by_operator(graph),
        *_by_norming_operator(graph),
        *_by_columns(graph),
        *by_cosines(graph),
        *_by_complex(graph),
        *by_pairs(graph),
        *by_assignment(graph),
    ]
    return sorted(found, key=lambda rotation: rotation.last)


def _by_operator(graph: Graph) -> Iterator[Rotation]:
    known = {operator: halves for name, halves in _OPERATORS.items() for operator in operators(name)}
    for node in calls_of(graph, *known):
        *tensors, matrices = node.args
        results = {0: node} if len(tensors) == 1 else results_of(node)
        for index, last in results.items():
            if heads := heads_of(tensors[index], matrices, 2):
                yield Rotation(last, tensors[index], heads, (matrices,), is_kernel=True, halves=known[node.target])


def _by_norming_operator(graph: Graph) -> Iterator[Rotation]:
    """On [B, L, H, D] such an operator is slower than ours: 136 us, not 49, for [1, 4352, 30, 128] twice (H100)."""
    known = {operator: (name, halves) for name, halves in _NORMING.items() for operator in operators(name)}
    for node in calls_of(graph, *known):
        name, halves = known[node.target]
        count = 1 if name.endswith("1") else 2
        tensors = node.args[:count]
        matrices = node.args[count]
        *weights, eps = node.args[count + 1 : 2 * count + 2] or (None,)
        if (
            node.kwargs
            or any(node.args[2 * count + 2 :])
            or len(weights) != count
            or not all(isinstance(weight, Node) for weight in (*weights[:1], matrices))
        ):
            continue
        results = {0: node} if count == 1 else {user.args[1]: user for user in node.users if calls(user, element)}
        for index, last in results.items():
            if heads := heads_of(tensors[index], matrices, 2):
                norm: Any = (weights[index] if weights[index] is not None else weights[0], eps)
                yield Rotation(last, tensors[index], heads, (matrices,), halves=halves, norm=norm)


def _by_columns(graph: Graph) -> Iterator[Rotation]:
    """``first_column * x[..., 0] + second_column * x[..., 1]`` of ``x`` seen as [.., D / 2, 1, 2]."""
    for node in calls_of(graph, torch.add, torch.addcmul):
        columns = [_column(*term) for term in two_terms(node)]
        if len(columns) != 2 or None in columns:
            continue
        by_index = {column[2]: column for column in columns if column is not None}
        if by_index.keys() != {0, 1} or by_index[0][1] is not by_index[1][1]:
            continue
        pairs = by_index[0][1]
        x = uncast(pairs.args[0])
        last = back_to(node, x)
        if (
            last is not None
            and shape(pairs) == (*shape(x)[:-1], shape(x)[-1] // 2, 1, 2)
            and (heads := heads_of(x, by_index[0][0], 1))
        ):
            yield Rotation(last, x, heads, (by_index[0][0], by_index[1][0]), form="columns")


def _by_complex(graph: Graph) -> Iterator[Rotation]:
    """``view_as_real(view_as_complex(pairs) * factors)``."""
    for node in calls_of(graph, torch.mul):
        last = sole_user(node)
        for given, factors in (node.args, node.args[::-1]):
            if not (called(given, "view_as_complex") and isinstance(factors, Node)):
                continue
            if not called(last, "view_as_real") or not value(factors).is_complex() or sole_user(given) is not node:
                continue
            pairs: Any = given.args[0]
            x = uncast(pairs.args[0] if calls(pairs, torch.reshape) else pairs)
            if not isinstance(x, Node) or value(x).dim() != 4 or shape(pairs) != (*shape(x)[:-1], shape(x)[-1] // 2, 2):
                continue
            end, heads = back_to(last, x), heads_of(x, factors, 0, 2)
            if end is not None and heads:
                yield Rotation(end, x, heads, (factors,), form="complex")
                break


def _column(factor: Any, taken: Any) -> tuple[Node, Node, int] | None:
    """A column of matrices, the pairs that it is multiplied with, and which element of each."""
    if (
        isinstance(factor, Node)
        and isinstance(taken, Node)
        and taken.target == "__getitem__"
        and calls(taken.args[0], torch.reshape)
    ):
        index = taken.args[1]
        if isinstance(index, tuple) and len(index) == 2 and index[0] is Ellipsis and index[1] in (0, 1):
            return factor, taken.args[0], index[1]
    return None
