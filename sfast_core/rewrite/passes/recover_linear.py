"""A product with a weight that lies turned is a linear layer, however a library writes it:
``torch.mm(x.reshape(-1, K), weight.t()) + bias``.

Quantised weights come so (torchao, optimum-quanto): what makes numbers and scales a matrix stands in front of the
product, turned before or behind, and where there is one scale for each column of the result, it may stand behind the
product. As a layer it has the epilogues of one, and its weight is what other passes know.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ...capture.functional import cast_like
from ...ops.scaled_linear import scaled_linear
from ..graph import called, calls, insert, insert_as, metas, other_of, replace, reshaped, shape, sole_user, value
from ..patterns import HasImpl

_PRODUCTS = ("mm", "matmul", "__matmul__", "addmm")
_ELEMENTWISE = (torch.mul, torch.add, torch.sub, torch.div)
_QUANTO = "quanto::qbytes_mm"
_MOST_STEPS = 16  #: between a weight and its product
_Unturned = Callable[[Node], Node]  # puts what a node is the transposed of in front of another


def recover_linear(graph: Graph, has_impl: HasImpl) -> int:
    """Each product of rows with what is made of weights alone and lies turned. Returns how many there were.

    optimum-quanto has an operator of its own, which stays where no kernel of ours computes what it does.
    """
    found = 0
    for node in list(graph.nodes):
        if called(node, *_PRODUCTS) and not node.kwargs:
            found += _recover(node)
        elif (
            node.op == "call_function"
            and getattr(node.target, "_schema", None) is not None
            and node.target._schema.name == _QUANTO
        ):
            found += _recover_quanto(node, has_impl)
    return found


def _recover(node: Node) -> bool:
    given = list(node.args)
    bias = given.pop(0) if called(node, "addmm") else None
    if len(given) != 2 or not all(isinstance(arg, Node) for arg in given):
        return False
    x, turned = given
    if (
        value(turned).dim() != 2
        or value(x).dim() < 2
        or value(x).dtype != value(turned).dtype
        or not value(x).is_floating_point()
    ):
        return False
    weight = _unturned(turned, _MOST_STEPS)
    if weight is None or (bias is not None and not _is_row(bias, node)):
        return False
    last, scale, bias = (node, None, bias) if bias is not None else _behind(node)
    _put(node, last, x, weight, scale, bias)
    return True


def _recover_quanto(node: Node, has_impl: HasImpl) -> bool:
    """``x @ (numbers * scales).T``."""
    if len(node.args) != 3 or node.kwargs:
        return False
    x, numbers, scales = node.args
    dtype = value(scales).dtype
    if (
        not {value(x).dtype, value(node).dtype} == {dtype}
        or value(numbers).itemsize != 1
        or shape(scales) != (shape(numbers)[0], 1)
    ):
        return False
    wide = value(scales).new_empty(shape(scales), dtype=torch.float32)
    if not has_impl(scaled_linear, *metas((x, numbers)), wide, None, None, dtype):
        return False
    last, _, bias = _behind(node)
    _put(
        node,
        last,
        x,
        lambda before: insert(before, torch.mul, insert(before, cast_like, numbers, dtype), scales),
        None,
        bias,
    )
    return True


def _behind(product: Node) -> tuple[Node, Node | None, Node | None]:
    """What is done to a product's columns: the last node of it, their scales and their bias."""
    last, scale, bias = product, None, None
    node = product
    while (user := sole_user(node)) is not None and bias is None:
        if calls(user, torch.reshape) and shape(user)[-1:] == shape(product)[-1:]:
            node = user
            continue
        other = other_of(user, node) if calls(user, torch.mul, torch.add) else None
        if not _is_row(other, product) or value(user).dtype != value(product).dtype or shape(user) != shape(node):
            break
        if calls(user, torch.add):
            bias = other
        elif scale is None and _made_of_weights(other, _MOST_STEPS):
            scale = other
        else:
            break
        node = last = user
    return last, scale, bias


def _is_row(node: Any, product: Node) -> bool:
    """Whether a tensor has one number for each column of a product, in its dtype."""
    return isinstance(node, Node) and shape(node) == shape(product)[-1:] and value(node).dtype == value(product).dtype


def _put(product: Node, last: Node, x: Node, weight: _Unturned, scale: Node | None, bias: Node | None) -> None:
    dtype = value(product).dtype
    seen = sole_user(last)
    if (
        calls(seen, torch.reshape)
        and calls(x, torch.reshape)
        and shape(seen) == (*shape(x.args[0])[:-1], shape(product)[-1])
    ):
        last = seen  # rows that are seen as what they were
    matrix = weight(last)
    if scale is not None:
        wide = torch.promote_types(dtype, torch.float32)
        column = _cast(last, insert(last, torch.reshape, scale, (shape(scale)[0], 1)), wide)
        matrix = _cast(last, insert(last, torch.mul, _cast(last, _uncast(matrix), wide), column), dtype)
    size = (*shape(last)[:-1], shape(x)[-1])
    rows = reshaped(last, x, size) if math.prod(size) == value(x).numel() else x
    replace(
        last,
        insert_as(last, value(product).new_empty((*shape(rows)[:-1], shape(last)[-1])), F.linear, rows, matrix, bias),
    )


def _cast(before: Node, x: Node, dtype: torch.dtype) -> Node:
    return x if value(x).dtype == dtype else insert(before, cast_like, x, dtype)


def _uncast(x: Node) -> Node:
    """What a cast makes narrower of numbers of 8 bits, which are the same in the wide dtype."""
    return x.args[0] if calls(x, cast_like) and value(x.args[0]).itemsize == 1 else x


def _unturned(node: Any, steps: int) -> _Unturned | None:
    """What puts in the matrix that ``node`` is the transposed of, made of weights alone; None where it is none."""
    if not isinstance(node, Node) or not steps:
        return None
    if calls(node, torch.permute) and tuple(node.args[1]) == (1, 0):
        inner: Node = node.args[0]
        return (lambda before: inner) if _made_of_weights(inner, steps) else None
    if calls(node, cast_like):
        of, dtype = _unturned(node.args[0], steps - 1), value(node).dtype
        return None if of is None else lambda before: insert(before, cast_like, of(before), dtype)
    if calls(node, *_ELEMENTWISE):
        parts = [_unturned_operand(arg, node, steps - 1) for arg in node.args]
        whole = any(
            isinstance(arg, Node) and shape(arg) == shape(node) and part is not None
            for arg, part in zip(node.args, parts, strict=True)
        )
        function: Any = node.target
        if None in parts or not whole:
            return None
        return lambda before: insert(before, function, *(part(before) for part in parts if part is not None))
    return None


def _unturned_operand(arg: Any, node: Node, steps: int) -> Callable[[Node], Any] | None:
    if not isinstance(arg, Node) or value(arg).numel() == 1:
        return (lambda before: arg) if not isinstance(arg, Node) or _made_of_weights(arg, steps) else None
    if (found := _unturned(arg, steps)) is not None:
        return found
    columns = shape(node)[-1]
    if shape(arg) in ((columns,), (1, columns)) and _made_of_weights(arg, steps):
        return lambda before: insert(before, torch.reshape, arg, (columns, 1))
    return None


def _made_of_weights(node: Any, steps: int) -> bool:
    """Whether a value depends on the module's tensors and constants alone."""
    if not isinstance(node, Node):
        return True
    if node.op == "placeholder":
        return "source" in node.meta or "constant" in node.meta
    return steps > 0 and node.op != "get_attr" and all(_made_of_weights(arg, steps - 1) for arg in node.all_input_nodes)
