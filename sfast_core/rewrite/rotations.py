"""Rotary position embeddings, in the ways in which models spell them.

ComfyUI multiplies pairs by 2x2 matrices, by an operator of comfy-kitchen's or, before that, column by column. diffusers
multiplies heads by cosines, and what has its pairs exchanged and one element of each negated by sines; or pairs, as
complex numbers, by others. Pairs are of neighbours, or of elements half a head apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from ..capture.calls import function_name
from ..capture.functional import cast_like, element, setitem
from ..weights.kitchen import operators
from .graph import calls, calls_of, insert, joins_along_last, named, results_of, shape, sole_user, value

_HEADS_FIRST, _TOKENS_FIRST = 1, 2
#: comfy-kitchen's, of queries and keys, of one of them; matrices last. True: of pairs half a head apart.
_OPERATORS = {"apply_rope": False, "apply_rope1": False, "apply_rope_split_half": True, "apply_rope_split_half1": True}
#: Those that norm each head first: behind the matrices the weights, eps and, of some, how much of a head is rotated, 0
#: for all of it.
_NORMING = {"rms_rope": False, "rms_rope1": False, "rms_rope_split_half": True, "rms_rope_split_half1": True}


class Rotation(NamedTuple):
    """One tensor of queries or keys that is rotated."""

    last: Node  #: whose result it is, as it is or seen in another shape
    x: Node  #: [B, H, L, D] or [B, L, H, D]
    heads: int  #: which dimension H is
    factors: tuple[Node, ...]  #: what makes the matrices, each with a dimension of size 1 for H
    readers: int = 1  #: how many of its nodes read x
    is_kernel: bool = False  #: it is one pass already
    halves: bool = False  #: pairs are of an element of the first half and one of the second
    norm: tuple[Node, float] | None = None  #: weight and eps of the RMSNorm that its operator begins with
    #: what the factors are: "matrices", "columns" of them, "cosines" and sines of each element or of each "pair",
    #: "complex", "assigned": cosines, and sines of the first and of the second half
    form: str = "matrices"

    @property
    def tokens(self) -> int:
        """Which dimension L is."""
        return _HEADS_FIRST + _TOKENS_FIRST - self.heads

    def matrices(self) -> Node:
        """The matrices, [B or 1, L, D / 2, 2, 2], in front of the rotation; [B or 1, L, H, D / 2, 2, 2] where each head
        has its own.
        """
        before, factors = self.last, [self._whole(factor) for factor in self.factors]
        if self.form == "complex":
            joined = _stacked(
                before, *(insert(before, part, factors[0]) for part in (torch.real, torch.imag)), twice=True
            )
        elif self.form == "pair":
            joined = _stacked(before, *factors, twice=True)
        elif self.form == "assigned":
            cosines, first, second = factors
            parts = (insert(before, _half, cosines, 0), first, second, insert(before, _half, cosines, 1))
            joined = insert(before, torch.stack, parts, -1)
        elif self.form == "matrices":
            (joined,) = factors
        elif self.form == "columns":
            joined = insert(before, torch.stack, factors, -1)
        else:
            part = _half if self.halves else _every_other
            joined = _stacked(before, *(insert(before, part, factor, first) for factor in factors for first in (0, 1)))
        length, size, heads = (shape(self.x)[dim] for dim in (self.tokens, -1, self.heads))
        by_head = (heads,) if heads != 1 and shape(joined)[self.heads] == heads else ()
        return insert(before, torch.reshape, joined, (shape(joined)[0], length, *by_head, size // 2, 2, 2))

    def _whole(self, factor: Node) -> Node:
        """``factor`` with all four dimensions: some leave the first away, which has one element."""
        inner = {"matrices": 2, "columns": 1}.get(self.form, 0)
        return (
            factor
            if value(factor).dim() == 4 + inner
            else insert(self.last, torch.reshape, factor, (1, *shape(factor)))
        )


def _stacked(before: Node, *parts: Node, twice: bool = False) -> Node:
    """Matrices of cosines and sines: those of the first element of each pair, and of the second; ``twice``: both have
    the same.
    """
    cosine, sine = parts[0], parts[1 if twice else 2]
    next_cosine, next_sine = (cosine, sine) if twice else (parts[1], parts[3])
    return insert(before, torch.stack, [cosine, insert(before, torch.neg, sine), next_sine, next_cosine], -1)


def rotations(graph: Graph) -> list[Rotation]:
    """All that are in ``graph``, in order."""
    found = [
        *_by_operator(graph),
        *_by_norming_operator(graph),
        *_by_columns(graph),
        *_by_cosines(graph),
        *_by_complex(graph),
        *_by_pairs(graph),
        *_by_assignment(graph),
    ]
    return sorted(found, key=lambda rotation: rotation.last)


def _every_other(x: torch.Tensor, first: int) -> torch.Tensor:
    """Elements ``first``, ``first + 2``, ... of the last dimension."""
    return x[..., first::2]


def _half(x: torch.Tensor, first: int) -> torch.Tensor:
    """The first or the second half of the last dimension."""
    return x.chunk(2, -1)[first]


def _by_operator(graph: Graph) -> Iterator[Rotation]:
    known = {operator: halves for name, halves in _OPERATORS.items() for operator in operators(name)}
    for node in calls_of(graph, *known):
        *tensors, matrices = node.args
        results = {0: node} if len(tensors) == 1 else results_of(node)
        for index, last in results.items():
            if heads := _heads(tensors[index], matrices, 2):
                yield Rotation(last, tensors[index], heads, (matrices,), is_kernel=True, halves=known[node.target])  # type: ignore[index]


def _by_norming_operator(graph: Graph) -> Iterator[Rotation]:
    """Such an operator on [B, L, H, D] is slower than what norms and rotates here: 136 us and 49 for queries and keys
    of [1, 4352, 30, 128] (H100).
    """
    known = {operator: (name, halves) for name, halves in _NORMING.items() for operator in operators(name)}
    for node in calls_of(graph, *known):
        name, halves = known[node.target]  # type: ignore[index]
        count = 1 if name.endswith("1") else 2
        tensors, matrices, (*weights, eps) = (
            node.args[:count],
            node.args[count],
            node.args[count + 1 : 2 * count + 2] or (None,),
        )
        if (
            node.kwargs
            or any(node.args[2 * count + 2 :])
            or len(weights) != count
            or not all(isinstance(weight, Node) for weight in (*weights[:1], matrices))
        ):
            continue
        results = {0: node} if count == 1 else {user.args[1]: user for user in node.users if calls(user, element)}
        for index, last in results.items():
            if heads := _heads(tensors[index], matrices, 2):
                norm: Any = (weights[index] if weights[index] is not None else weights[0], eps)
                yield Rotation(last, tensors[index], heads, (matrices,), halves=halves, norm=norm)  # type: ignore[arg-type]


def _by_columns(graph: Graph) -> Iterator[Rotation]:
    """``first_column * x[..., 0] + second_column * x[..., 1]`` of ``x`` seen as [.., D / 2, 1, 2]."""
    for node in calls_of(graph, torch.add, torch.addcmul):
        columns = [_column(*term) for term in _two_terms(node)]
        if len(columns) != 2 or None in columns:
            continue
        by_index = {column[2]: column for column in columns if column is not None}
        if by_index.keys() != {0, 1} or by_index[0][1] is not by_index[1][1]:
            continue
        pairs = by_index[0][1]
        x = _uncast(pairs.args[0])
        last = _back(node, x)
        if (
            last is not None
            and shape(pairs) == (*shape(x)[:-1], shape(x)[-1] // 2, 1, 2)
            and (heads := _heads(x, by_index[0][0], 1))
        ):
            yield Rotation(last, x, heads, (by_index[0][0], by_index[1][0]), form="columns")


def _by_cosines(graph: Graph) -> Iterator[Rotation]:
    """``x * cosines + turned * sines``, where ``turned`` has ``(-b, a)`` in the place of each pair ``(a, b)``."""
    for node in calls_of(graph, torch.add):
        if not all(calls(arg, torch.mul) and sole_user(arg) is node for arg in node.args):
            continue
        for plain, other in (node.args, node.args[::-1]):
            x, given = _uncast(plain.args[0]), _uncast(other.args[0])
            halves = calls(given, torch.cat)
            turned = _turned_halves(given) if halves else _turned(given)
            last = _back(node, x) if turned is not None and turned is x else None
            cosines, sines = plain.args[1], other.args[1]
            if last is not None and shape(cosines) == shape(sines) and (heads := _heads(x, cosines, 0)):
                readers = len(x.users) if halves and _only_halves(x, plain) else 2
                yield Rotation(last, x, heads, (cosines, sines), readers, halves=halves, form="cosines")
                break


def _by_assignment(graph: Graph) -> Iterator[Rotation]:
    """``y = x * cosines``; to each half of y then the other half of x times sines is added, in place: those of the
    first half are negative.
    """
    for node in calls_of(graph, setitem):
        before: Any = node.args[0]
        whole = before.args[0] if calls(before, setitem) and list(before.users)[-1] is node else None
        if (
            not calls(whole, torch.mul)
            or len(whole.users) != 2
            or len(before.users) != 2
            or not isinstance(whole.args[0], Node)
        ):
            continue
        given, cosines = whole.args
        put: list[Any] = [before.args, node.args]
        sines = []
        for place, (tensor, index, total) in enumerate(put):
            terms: Any = total.args if calls(total, torch.addcmul) and sole_user(total) is not None else ()
            if (
                len(terms) != 3
                or _half_at(index, tensor) != place
                or _half_of(terms[0]) != (tensor, place)
                or _half_of(terms[1]) != (given, 1 - place)
            ):
                break
            sines.append(terms[2])
        x, last = _uncast(given), _back(node, _uncast(given))
        if (
            len(sines) != 2
            or last is None
            or not all(
                isinstance(sine, Node) and shape(sine) == (*shape(cosines)[:-1], shape(x)[-1] // 2) for sine in sines
            )
        ):
            continue
        if heads := _heads(x, cosines, 0):
            yield Rotation(
                last, x, heads, (cosines, *sines), readers=3 if given is x else 1, halves=True, form="assigned"
            )


def _by_complex(graph: Graph) -> Iterator[Rotation]:
    """``view_as_real(view_as_complex(pairs) * factors)``."""
    for node in calls_of(graph, torch.mul):
        last = sole_user(node)
        for given, factors in (node.args, node.args[::-1]):
            if not (
                isinstance(given, Node)
                and function_name(given.target) == "view_as_complex"
                and isinstance(factors, Node)
            ):
                continue
            if (
                last is None
                or function_name(last.target) != "view_as_real"
                or not value(factors).is_complex()
                or sole_user(given) is not node
            ):
                continue
            pairs: Any = given.args[0]
            x = _uncast(pairs.args[0] if calls(pairs, torch.reshape) else pairs)
            if not isinstance(x, Node) or value(x).dim() != 4 or shape(pairs) != (*shape(x)[:-1], shape(x)[-1] // 2, 2):
                continue
            end, heads = _back(last, x), _heads(x, factors, 0, 2)
            if end is not None and heads:
                yield Rotation(end, x, heads, (factors,), form="complex")
                break


def _by_pairs(graph: Graph) -> Iterator[Rotation]:
    """``a * cosines - b * sines`` and ``a * sines + b * cosines`` of the elements of each pair, stacked, or put into a
    tensor's every other place.
    """
    for node in [node for node in graph.nodes if node.target in (torch.stack, setitem)]:
        found = _stacked_pair(node) if node.target is torch.stack else _assigned_pair(node)
        terms = None if found is None else _turned_pair(*found[1:])
        if found is None or terms is None:
            continue
        x, cosines, sines = terms
        last, heads = _back(found[0], _uncast(x)), _heads(_uncast(x), cosines, 0, 2)
        if last is not None and heads and shape(last) == shape(_uncast(x)) and shape(cosines) == shape(sines):
            yield Rotation(
                last,
                _uncast(x),
                heads,
                (cosines, sines),
                readers=len(_uncast(x).users) if _only_pairs(_uncast(x)) else 1,
                form="pair",
            )


def _stacked_pair(node: Node) -> tuple[Node, Node, Node] | None:
    """What a stack of two along a new last dimension is seen as, and the two."""
    parts: Any = node.args[0]
    flat = sole_user(node)
    flat = sole_user(flat) if calls(flat, cast_like) else flat
    if len(parts) != 2 or (*node.args[1:], *node.kwargs.values()) != (-1,) or not calls(flat, torch.reshape):
        return None
    return flat, parts[0], parts[1]


def _assigned_pair(node: Node) -> tuple[Node, Node, Node] | None:
    """The last of two assignments to a tensor's even and odd places, and what is put there."""
    first: Any = node.args[0]
    if not calls(first, setitem) or list(first.users) != [node]:
        return None
    put: list[Any] = [first.args, node.args]
    return (node, put[0][2], put[1][2]) if [_offset(args[1]) for args in put] == [0, 1] else None


def _offset(index: Any) -> int | None:
    """Where the places begin, every other one of the last dimension, that an index names."""
    if (
        isinstance(index, tuple)
        and len(index) == 2
        and index[0] is Ellipsis
        and isinstance(index[1], slice)
        and index[1].step == 2
        and index[1].stop is None
    ):
        return index[1].start or 0
    return None


def _turned_pair(first: Any, second: Any) -> tuple[Node, Node, Node] | None:
    """x, cosines and sines of what both elements of a pair become."""
    if not (
        isinstance(first, Node)
        and function_name(first.target) in ("sub", "__sub__")
        and len(first.args) == 2
        and not first.kwargs
    ):
        return None
    terms = (
        [term.args for term in first.args if calls(term, torch.mul)] + _two_terms(second)
        if calls(second, torch.add, torch.addcmul)
        else []
    )
    if len(terms) != 4:
        return None
    taken = [_taken(*term) for term in terms]
    if None in taken:
        return None
    (a, cosines, zero), (b, sines, one), *others = taken  # type: ignore[misc]
    wanted = {(a, sines, zero), (b, cosines, one)}
    return (a, cosines, sines) if a is b and (zero, one) == (0, 1) and set(others) == wanted else None


def _taken(*factors: Any) -> tuple[Node, Node, int] | None:
    """The pairs of which one of a product's two factors is an element, the other, and which element."""
    for given, factor in (factors, factors[::-1]):
        given = _uncast(given)
        if (
            calls(given, element)
            and function_name(given.args[0].target) == "unbind"
            and (*given.args[0].args[1:], *given.args[0].kwargs.values()) == (-1,)
        ):
            pairs: Any = given.args[0].args[0]
            if calls(pairs, torch.reshape) and value(pairs).dim() == 5 and shape(pairs)[-1] == 2:
                return _heads_of(pairs), factor, given.args[1]
        if isinstance(given, Node) and given.target == "__getitem__" and (first := _offset(given.args[1])) is not None:
            return given.args[0], factor, first  # type: ignore[return-value]
    return None


def _heads_of(pairs: Node) -> Node:
    """The heads that pairs are made of: by now they may be made of what the heads are made of."""
    base: Any = pairs.args[0]
    wanted = (*shape(pairs)[:-2], 2 * shape(pairs)[-2])
    if shape(base) == wanted:
        return base  # type: ignore[no-any-return]
    heads = next(
        (user for user in base.users if calls(user, torch.reshape) and shape(user) == wanted and user < pairs), None
    )
    heads = heads or insert(pairs, torch.reshape, base, wanted)
    pairs.args = (heads, pairs.args[1])
    return heads


def _only_pairs(x: Node) -> bool:
    """Whether all that reads ``x`` takes elements of its pairs."""
    users = [user for reader in x.users for user in (reader.users if calls(reader, cast_like) else [reader])]
    return all(
        calls(user, torch.reshape) or user.target == "__getitem__" or function_name(user.target) == "empty_like"
        for user in users
    )


def _heads(x: Any, factor: Any, inner: int, of_pairs: int = 0) -> int | None:
    """Which dimension of ``x`` has its heads: the one that ``factor``, with ``inner`` dimensions behind its pairs, is
    broadcast along; or, where it has a factor for each head, too, the inner one.
    """
    if (
        not (isinstance(x, Node) and isinstance(factor, Node))
        or value(x).dim() != 4
        or value(factor).dim() not in (3 + inner, 4 + inner)
    ):
        return None
    _, first, second, size = (1, *shape(factor))[-4 - inner :][:4]
    if size != shape(x)[-1] // (of_pairs or (2 if inner else 1)) or any(
        item != 2 for item in shape(factor)[value(factor).dim() - inner :]
    ):
        return None
    if (first, second) == (1, shape(x)[2]):
        return _HEADS_FIRST
    if (first, second) == (shape(x)[1], 1):
        return _TOKENS_FIRST
    return _TOKENS_FIRST if (first, second) == shape(x)[1:3] and value(x).stride(1) >= value(x).stride(2) else None


def _two_terms(node: Node) -> list[tuple[Any, Any]]:
    """The factors of both products where ``node`` is a sum of two."""
    first, *second = node.args
    products = [
        arg.args
        for arg in (node.args if calls(node, torch.add) else [first])
        if calls(arg, torch.mul) and sole_user(arg) is node
    ]
    return [*products, tuple(second)] if calls(node, torch.addcmul) else products


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


def _turned(node: Any) -> Node | None:
    """What ``node`` is with its pairs exchanged and the first of each negated."""
    stack = node.args[0] if calls(node, torch.reshape) else None
    if (
        not isinstance(stack, Node)
        or stack.target is not torch.stack
        or (*stack.args[1:], *stack.kwargs.values()) != (-1,)
    ):
        return None
    negated, second = stack.args[0]
    if not (isinstance(negated, Node) and function_name(negated.target) in ("neg", "__neg__", "negative")):
        return None
    items: tuple[Any, Any] = negated.args[0], second
    if (
        not all(calls(item, element) for item in items)
        or [item.args[1] for item in items] != [1, 0]
        or items[0].args[0] is not items[1].args[0]
    ):
        return None
    unbound = items[0].args[0]
    if function_name(unbound.target) != "unbind" or (*unbound.args[1:], *unbound.kwargs.values()) != (-1,):
        return None
    pairs: Any = unbound.args[0]
    if not calls(pairs, torch.reshape) or shape(pairs) != (
        *shape(pairs.args[0])[:-1],
        shape(pairs.args[0])[-1] // 2,
        2,
    ):
        return None
    return pairs.args[0] if shape(node) == shape(pairs.args[0]) else None


def _turned_halves(node: Node) -> Node | None:
    """What ``node`` is with its halves exchanged and the second of them, now in front, negated."""
    if not joins_along_last(node) or len(node.args[0]) != 2:  # type: ignore[arg-type]
        return None
    negated, second = node.args[0]  # type: ignore[misc]
    if not (isinstance(negated, Node) and function_name(negated.target) in ("neg", "__neg__", "negative")):
        return None
    halves = [_half_of(item) for item in (second, negated.args[0])]
    if None in halves or halves[0][0] is not halves[1][0] or [half[1] for half in halves] != [0, 1]:  # type: ignore[index]
        return None
    return halves[0][0]  # type: ignore[index]


def _half_of(node: Any) -> tuple[Node, int] | None:
    """Of which node another is a half, and which."""
    x: Any
    if (
        calls(node, element)
        and calls(chunks := named(node).results, torch.chunk)
        and (call := named(chunks)).chunks == 2
    ):
        return (
            (call.input, named(node).index)
            if call.dim % value(call.input).dim() == value(call.input).dim() - 1
            else None
        )
    if not (isinstance(node, Node) and node.target == "__getitem__" and isinstance(node.args[1], tuple)):
        return None
    x = node.args[0]
    half = _half_at(node.args[1], x)
    return None if half is None else (x, half)


def _half_at(index: Any, x: Node) -> int | None:
    """Which half of the last dimension of ``x`` an index names."""
    *before, last = index
    middle = shape(x)[-1] // 2
    whole = before == [Ellipsis] or (len(before) == value(x).dim() - 1 and all(item == slice(None) for item in before))
    if not whole or not isinstance(last, slice) or last.step is not None:
        return None
    if (last.start or 0, last.stop) == (0, middle):
        return 0
    return 1 if last.start == middle and last.stop in (None, 2 * middle) else None


def _only_halves(x: Node, plain: Node) -> bool:
    """Whether all that reads ``x`` is what multiplies it by cosines, and what takes its halves."""
    return all(
        user is plain or user.target is cast_like or calls(user, torch.chunk) or user.target == "__getitem__"
        for user in x.users
    )


def _uncast(node: Any) -> Any:
    return node.args[0] if calls(node, cast_like) else node


def _back(node: Node, x: Any) -> Node | None:
    """``node``, or where it isn't of ``x``'s dtype, the cast to that behind a reshape to its shape; None where there is
    neither.
    """
    if not isinstance(x, Node) or value(node).dtype == value(x).dtype:
        return node if isinstance(x, Node) else None
    reshaped = sole_user(node)
    cast = sole_user(reshaped) if calls(reshaped, torch.reshape) else reshaped
    return cast if calls(cast, cast_like) and shape(cast) == shape(x) and value(cast).dtype == value(x).dtype else None
