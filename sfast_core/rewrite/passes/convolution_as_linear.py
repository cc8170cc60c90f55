"""A 1x1 convolution is a matrix product: with channels innermost its input and output are token sequences already."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.fx import Graph

from ..graph import calls_of, insert, insert_as, named, replace, shape, value
from ..patterns import is_matrix_product
from ..views import as_tokens


def convolution_as_linear(graph: Graph) -> int:
    """A 1x1 convolution of stride 1 is a product over channels: NHWC input and output are views of the same memory."""
    changed = 0
    for node in calls_of(graph, F.conv2d):
        if not is_matrix_product(node):
            continue
        call = named(node)
        matrix = insert(node, torch.reshape, call.weight, shape(call.weight)[:2])
        tokens = as_tokens(call.input).insert(node)
        product = insert_as(
            node, value(node).new_empty((*shape(tokens)[:-1], shape(matrix)[0])), F.linear, tokens, matrix, call.bias
        )
        replace(node, insert(node, torch.permute, product, (0, 3, 1, 2)))
        changed += 1
    return changed
