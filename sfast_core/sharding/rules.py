"""Rules for how operations are computed on rows. An operation without a rule is computed from whole tensors.

Operations are known by their names, in the spelling that :mod:`..rewrite.passes.canonicalise` gives them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Node

from ..rewrite.graph import is_tensor, named, shape, value
from .local import Held, Local, Rule
from .rows import Rows, Shard
from .shapes import RULES as SHAPES

_ELEMENTWISE = (
    "add sub rsub mul multiply div truediv rtruediv true_divide neg abs exp exp2 expm1 log log2 log1p sin cos tanh "
    "sigmoid silu gelu relu relu6 elu selu celu mish leaky_relu hardtanh hardswish hardsigmoid softplus softsign "
    "logsigmoid sqrt rsqrt pow rpow square reciprocal clamp clip clamp_min clamp_max where lerp addcmul addcdiv "
    "minimum maximum fmod remainder sign round floor ceil trunc erf nan_to_num isnan isfinite isinf eq ne lt gt le ge "
    "logical_and logical_or logical_not logical_xor and or xor invert bitwise_and bitwise_or bitwise_not masked_fill "
    "cast_like to float half bfloat16 double int long bool contiguous clone detach identity dropout polar complex conj "
    "real imag empty_like zeros_like ones_like full_like"
)

_ROTATIONS = (
    "apply_rope apply_rope1 apply_rope_split_half apply_rope_split_half1 rms_rope rms_rope1 rms_rope_split_half "
    "rms_rope_split_half1"
)


def elementwise(node: Node, held: Held) -> Local | None:
    """An operation on elements: each element of the result depends on one of each argument, with broadcasting."""
    out, inputs = node.meta.get("val"), node.all_input_nodes
    if not isinstance(out, torch.Tensor) or not all(map(is_tensor, inputs)):
        return None
    for lead in sorted(inputs, key=lambda each: -value(each).numel()):
        shard = held(lead)
        if shard is None:
            continue
        behind = value(lead).dim() - shard.dim  # dimensions are counted from the last
        if out.shape[-behind] != shape(lead)[shard.dim]:
            continue
        wants = {
            each: Shard(own, shard.rows)
            for each in inputs
            if (own := value(each).dim() - behind) >= 0 and shape(each)[own] != 1
        }
        return Local(Shard(out.dim() - behind, shard.rows), wants)
    return None


def linear(node: Node, held: Held) -> Local | None:
    """A linear layer computes each row by itself."""
    x = named(node).input
    shard = held(x)
    return None if shard is None or shard.dim == value(x).dim() - 1 else Local(shard, {x: shard})


def norm(node: Node, held: Held) -> Local | None:
    """LayerNorm and RMSNorm over the last dimensions."""
    call = named(node)
    shard, over = held(call.input), len(tuple(call.normalized_shape))
    return None if shard is None or shard.dim >= value(call.input).dim() - over else Local(shard, {call.input: shard})


def along(node: Node, held: Held) -> Local | None:
    """An operation along another dimension than that of the rows: softmax, sum, maximum."""
    x, dims = node.args[0] if node.args else None, node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
    out = node.meta.get("val")
    if not isinstance(x, Node) or (shard := held(x)) is None or not isinstance(out, torch.Tensor):
        return None
    if dims is None or isinstance(dims, bool):
        return None
    rank = value(x).dim()
    gone = {dim % rank for dim in (dims if isinstance(dims, (tuple, list)) else (dims,))}
    if shard.dim in gone:
        return None
    moved = 0 if out.dim() == rank else sum(dim < shard.dim for dim in gone)
    return Local(Shard(shard.dim - moved, shard.rows), {x: shard})


def attention(node: Node, held: Held) -> Local | None:
    """Attention: queries may be divided, and need all keys and values, in one order; heads, images alike."""
    call = named(node)
    query, key, values, mask = call.query, call.key, call.value, call.mask
    shard = held(query)
    rank = value(query).dim()
    if shard is None or shard.dim == rank - 1 or value(node).dim() != rank or query in (key, values):
        return None
    if shard.dim < rank - 2:
        wants = {each: shard for each in (query, key, values)}
        if mask is not None or any(shape(each)[: rank - 2] != shape(query)[: rank - 2] for each in (key, values)):
            return None
        return Local(shard, wants)
    if call.causal:
        return None
    wants = {query: shard}
    if mask is not None and value(mask).dim() > 1 and shape(mask)[-2] != 1:
        wants[mask] = Shard(value(mask).dim() - 2, shard.rows)
    keys, theirs = held(key), held(values)
    free = keys is not None and keys == theirs and keys.dim == rank - 2 and (mask is None or shape(mask)[-1] == 1)
    return Local(shard, wants, in_any_order=(key, values) if free else ())


def rotation(node: Node, held: Held) -> Local | None:
    """A rotary embedding by one operator of a library, perhaps with an RMSNorm in front: of one or two tensors in heads
    [B, H, L, D], with a table of two dimensions more.
    """
    tensors = [each for each in node.args if isinstance(each, Node)]
    rank = value(tensors[0]).dim()
    tokens = [each for each in tensors if value(each).dim() == rank]
    shard = next((shard for each in tokens if (shard := held(each)) is not None), None)
    tables = [each for each in tensors if value(each).dim() == rank + 2]
    if shard is None or shard.dim == rank - 1 or len(tables) != 1:
        return None
    whole = shape(tokens[0])[shard.dim]
    if any(shape(each)[shard.dim] != whole for each in tokens) or shape(tables[0])[shard.dim] not in (1, whole):
        return None
    return Local(shard, {each: shard for each in tokens + tables if shape(each)[shard.dim] != 1})


def modulated_norm(node: Node, held: Held) -> Local | None:
    """A norm over the last dimension with scale and shift, by one operator of a library."""
    local = elementwise(node, held)
    return None if local is None or local.shard.dim == value(node).dim() - 1 else local


def product(node: Node, held: Held) -> Local | None:
    """A product of matrices computes each row of the first by itself; in a batch, each matrix by itself."""
    if len(node.args) != 2 or node.kwargs or not all(isinstance(arg, Node) for arg in node.args):
        return None
    x, y = node.args
    rank = value(x).dim()
    shard = held(x)
    if x is y or shard is None or shard.dim == rank - 1 or rank < 2 or value(y).dim() < 2 or value(node).dim() != rank:
        return None
    wants = {x: shard}
    own = value(y).dim() - rank + shard.dim
    if shard.dim < rank - 2 and own >= 0 and shape(y)[own] != 1:
        wants[y] = Shard(own, shard.rows)
    return Local(shard, wants)


#: By the names of functions and methods; ``__add__`` is ``add``.
RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE.split(), elementwise),
    **dict.fromkeys("softmax log_softmax mean sum var std amax amin cumsum".split(), along),
    **dict.fromkeys("layer_norm rms_norm".split(), norm),
    **dict.fromkeys("matmul bmm".split(), product),
    **dict.fromkeys(_ROTATIONS.split(), rotation),
    **dict.fromkeys("adaln rms_adaln".split(), modulated_norm),
    "linear": linear,
    "sdpa": attention,
    **SHAPES,
}


def begins(node: Node, name: str, fewest: int, devices: int) -> Local | None:
    """A linear layer or a norm of whole rows, so many that each device takes its own of them from here on."""
    if name not in ("linear", "layer_norm", "rms_norm") or not isinstance(named(node).input, Node):
        return None
    x = named(node).input
    dim = longest(x)
    if dim is None or shape(x)[dim] < max(fewest, devices):
        return None
    shard = Shard(dim, Rows.even(shape(x)[dim], devices))
    return RULES[name](node, lambda each: shard if each is x else None)


def longest(x: Node) -> int | None:
    """The dimension of rows of what a linear layer reads: the longest but the last; None where there is none."""
    rows: list[Any] = list(shape(x)[:-1])
    return max(range(len(rows)), key=rows.__getitem__) if rows else None


def lengths(nodes: Iterator[tuple[Node, str]]) -> set[int]:
    """How many rows linear layers have, of each that has one."""
    found = (named(node).input for node, name in nodes if name == "linear")
    return {shape(x)[dim] for x in found if isinstance(x, Node) and (dim := longest(x)) is not None}
