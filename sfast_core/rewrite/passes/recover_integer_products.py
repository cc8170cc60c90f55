"""An integer product and the scales behind it, as torchao writes it, becomes one op where a kernel computes that.

``((torch._int_mm(x, weight.t()).float() * x_scale).to(dtype) * weight_scale).reshape(...) + bias``: numbers of 8 bits,
a scale for each row of both. Rounded once instead of at each step, it is nearer to what is meant.
"""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

from ...capture.functional import cast_like
from ...ops.scaled_linear import scaled_linear
from ..graph import (
    called,
    calls,
    insert,
    insert_as,
    is_weight,
    metas,
    other_of,
    replace_reshaped,
    shape,
    sole_user,
    value,
)
from ..patterns import HasImpl

_PRODUCTS = ("_int_mm", "_int_mm.default")


def recover_integer_products(graph: Graph, has_impl: HasImpl) -> int:
    """Each product of that kind. Returns how many there were."""
    found = 0
    for node in list(graph.nodes):
        if called(node, *_PRODUCTS) and not node.kwargs and len(node.args) == 2:
            found += _recover(node, has_impl)
    return found


def _recover(product: Node, has_impl: HasImpl) -> bool:
    x, turned = product.args
    if not calls(turned, torch.permute) or tuple(turned.args[1]) != (1, 0) or not is_weight(turned.args[0]):
        return False
    weight: Node = turned.args[0]
    last, rows, columns, bias = _behind(product)
    if rows is None or columns is None:
        return False
    dtype = value(last).dtype
    scales = (
        value(columns).new_empty((shape(weight)[0],), dtype=torch.float32),
        None if bias is None else value(bias),
        value(rows),
    )
    if not has_impl(scaled_linear, *metas((x, weight)), *scales, dtype):
        return False
    wide = insert(last, torch.reshape, columns, (shape(weight)[0],))
    wide = wide if value(wide).dtype == torch.float32 else insert(last, cast_like, wide, torch.float32)
    new = insert_as(last, value(last).new_empty(shape(product)), scaled_linear, x, weight, wide, bias, rows, dtype)
    replace_reshaped(last, new, last)
    return True


def _behind(product: Node) -> tuple[Node, Node | None, Node | None, Node | None]:
    """What makes a result of integer sums: its last node, the scales of rows and of columns, and the bias."""
    rows: Node | None = None
    columns: Node | None = None
    bias: Node | None = None
    last = node = product
    of_rows, of_columns = (shape(product)[0], 1), shape(product)[-1:]
    while (user := sole_user(node)) is not None:
        cast = calls(user, cast_like) and value(user).is_floating_point()
        if cast or (calls(user, torch.reshape) and shape(user)[-1:] == of_columns):
            node = user
            last = node if cast or bias is not None else last
            continue
        multiplied, added = calls(user, torch.mul), calls(user, torch.add)
        if bias is not None or not (multiplied or added):
            break
        other = other_of(user, node)
        if not isinstance(other, Node) or shape(user) != shape(node) or not value(other).is_floating_point():
            break
        exact = value(other).dtype == torch.float32 and shape(node) == shape(product)
        if multiplied and rows is None and shape(other) == of_rows and exact:
            rows = other
        elif multiplied and columns is None and shape(other) == of_columns:
            columns = other
        elif added and None not in (rows, columns) and shape(other) == of_columns:
            bias = other
        else:
            break
        node = last = user
    return last, rows, columns, bias
