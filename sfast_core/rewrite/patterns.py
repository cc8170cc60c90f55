"""What several passes look for, and the functions that :mod:`.canonicalise` has them spelled with.

Passes know this, :mod:`.graph` and ops, and not one another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch.fx import Node

from ..capture.functional import cast_like
from ..ops.linear import linear
from ..weights import Weight
from .graph import (
    alike,
    calls,
    insert,
    is_input,
    named,
    replace,
    shape,
    sole_user,
    throughout,
    value,
)
from .parts import Part, part_of, split_of
from .repeats import token_rows

#: Whether a kernel computes a call of an op here: gets the op's reference and its arguments as meta tensors.
HasImpl = Callable[..., bool]
#: What a sigmoid calls, which has several spellings.
SIGMOIDS = (torch.sigmoid, F.sigmoid, "sigmoid")
#: Whether a weight may be laid out as its layout says.
MayLay = Callable[[Weight], bool]


def gelu(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """``F.gelu`` with all its arguments positional."""
    return F.gelu(x, approximate=approximate)


def sdpa(
    query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool, scale: float | None
) -> torch.Tensor:
    """``F.scaled_dot_product_attention`` with all its arguments positional.

    Of keys with fewer heads each is several queries'; one alone is broadcast anyway.
    """
    grouped = {"enable_gqa": True} if query.dim() == 4 and 1 < key.shape[1] < query.shape[1] else {}
    return F.scaled_dot_product_attention(query, key, value, mask, dropout, causal, scale=scale, **grouped)


def made_of_rows(
    x: torch.Tensor, dtype: torch.dtype, scale: torch.Tensor | None, width: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the op ``quantise`` gives for rows of ``x``, or of ``width``, without values: the meta kernels that PyTorch
    has for its meaning are Python, 6 ms a call, 840 times in Qwen-Image.
    """
    q = x.new_empty((*x.shape[:-1], x.shape[-1] if width is None else width), dtype=dtype)
    by_row = x.new_empty((*x.shape[:-1], 1), dtype=torch.float32) if scale is None else torch.empty_like(scale)
    return q, by_row


def uncast(node: Any) -> Any:
    """What a cast is of, and any other node itself."""
    return node.args[0] if calls(node, cast_like) else node


def from_input(x: Node) -> bool:
    """Whether ``x`` is an input of the call, perhaps in another dtype."""
    return is_input(uncast(x))


def has_siblings(node: Node) -> bool:
    """Whether other linear layers read the same input."""
    x = node.args[0]
    return any(user is not node and calls(user, F.linear, linear) and user.args[0] is x for user in x.users)


def has_own_bias(node: Any) -> TypeGuard[Node]:
    """A linear layer with a bias whose result has one reader, and which isn't to be packed with others that read its
    input.
    """
    return (
        calls(node, F.linear)
        and named(node).bias is not None
        and sole_user(node) is not None
        and not has_siblings(node)
    )


def activation_behind(node: Node) -> tuple[Node, str] | None:
    """The activation that is the only reader of ``node``, and its name."""
    user = sole_user(node)
    if user is None:
        users = list(node.users)
        if len(users) == 2:  # x * sigmoid(1.702 * x)
            return _quick_gelu(node, users)
        return None
    act = activation(user)
    return None if act is None else (user, act)


def activation(node: Any) -> str | None:
    """The activation that a node is a call of, by the name that ops know it by."""
    if calls(node, gelu):
        return "gelu" if named(node).approximate == "none" else "gelu_tanh"
    if calls(node, F.silu):
        return "silu"
    return "relu" if isinstance(node, Node) and node.target in (F.relu, torch.relu, "relu") else None


def gate_activation(node: Any) -> str | None:
    """As :func:`activation`, of those that gates have in models and in ops."""
    act = activation(node)
    return None if act == "relu" else act


def gate_behind(node: Node) -> tuple[Node, str, bool] | None:
    """Where one half of a node is the other's gate, for nobody else: product, activation, whether it comes first."""
    halves = _halves(node)
    for first, (gate, other) in ((False, halves[::-1]), (True, halves)) if halves is not None else ():
        activated = sole_user(gate)
        act = gate_activation(activated)
        product = None if activated is None else sole_user(activated)
        if act is not None and calls(product, torch.mul) and sole_user(other) is product and alike(product, other):
            return product, act, first
    return None


def _halves(node: Node) -> tuple[Node, Node] | None:
    """Who takes the halves of a node's last dimension, by ``chunk``, ``split`` or slices, and reads it alone."""
    alone, last, half = sole_user(node), value(node).dim() - 1, shape(node)[-1] // 2
    takers = list((node if alone is None or split_of(alone) is None else alone).users)
    found = {part_of(each): each for each in takers}
    first, second = Part(node, last, 0, half), Part(node, last, half, shape(node)[-1])
    return (found[first], found[second]) if len(takers) == 2 and {first, second} == found.keys() else None


def _quick_gelu(node: Node, users: list[Node]) -> tuple[Node, str] | None:
    for scaled, product in (users, users[::-1]):
        if not (calls(scaled, torch.mul) and calls(product, torch.mul) and 1.702 in scaled.args):
            continue
        gate = sole_user(scaled)
        if (
            gate is not None
            and gate.target in SIGMOIDS
            and set(product.args) == {node, gate}
            and sole_user(gate) is product
        ):
            return product, "quick_gelu"
    return None


def less_one(factor: Any, normed: Node) -> Node | None:
    """The scale where ``factor`` is ``1 + scale``, perhaps with a view behind the sum."""
    summed = factor.args[0] if calls(factor, torch.reshape) else factor
    if not calls(summed, torch.add) or not any(type(arg) in (int, float) and arg == 1 for arg in summed.args):
        return None
    scale = next((arg for arg in summed.args if isinstance(arg, Node)), None)
    if scale is None or not (is_row(factor, normed) or is_row(scale, normed)):
        return None
    if value(scale).dtype != value(factor).dtype:
        return None
    return scale if shape(scale) == shape(factor) else insert(factor, torch.reshape, scale, shape(factor))


def is_row(node: Any, tokens: Node, by_token: bool = True) -> bool:
    """Whether ``node`` has one row of ``tokens``' channels for each image, or one for all, or for each part of the
    tokens, or, ``by_token``, for each token.
    """
    if not isinstance(node, Node) or value(tokens).dim() != 3:
        return False
    images, length, channels = shape(tokens)
    rows = {(count, 1, channels) for count in (1, images)} | (
        {(count, length, channels) for count in (1, images)} if by_token else set()
    )
    if value(node).dtype != value(tokens).dtype:
        return False
    if shape(node) in rows:
        return True
    repeated = token_rows(node)
    return repeated is not None and shape(node)[1:] == (length, channels) and shape(repeated.rows)[0] in (1, images)


def gate_of(factors: tuple[Any, ...], result: Node) -> tuple[Node, Node] | None:
    """The tokens among two factors and their gate; ``result`` has the tokens' shape and dtype."""
    for y, gate in (factors, factors[::-1]):
        if alike(y, result) and is_row(gate, y, by_token=False):
            return y, gate
    return None


def in_other_rows(x: Node, reader: Node) -> tuple[Node, bool]:
    """The tensor whose rows x has, counted otherwise, and whether ``reader`` alone reads it."""
    alone = sole_user(x) is reader
    while calls(x, torch.reshape) and shape(x.args[0])[-1:] == shape(x)[-1:]:
        reader, x = x, x.args[0]
        alone = alone and sole_user(x) is reader
    return x, alone


def is_matrix_product(convolution: Node) -> bool:
    """Whether each pixel of the result is a sum over the channels of the same pixel."""
    call = named(convolution)
    if value(call.input).dim() != 4 or shape(call.weight)[2:] != (1, 1):
        return False
    return bool(call.groups == 1) and throughout(call.stride, 1) and throughout(call.padding, 0)


def channel_vector(x: Node, other: object) -> bool:
    """Whether ``other`` is one value per (sample, channel) of the feature map ``x``: [N or 1, C, 1, 1, ...]."""
    if not isinstance(other, Node) or value(other).dim() != value(x).dim() or value(x).dim() < 3:
        return False
    sizes, full = shape(other), shape(x)
    return (
        sizes[1] == full[1]
        and sizes[0] in (1, full[0])
        and all(size == 1 for size in sizes[2:])
        and value(other).dtype == value(x).dtype
    )


def split_channel_add(node: Node) -> tuple[Node, Node] | None:
    """``(x, channel)`` where ``node`` is their sum and x has the sum's shape."""
    if not calls(node, torch.add):
        return None
    for x, other in (node.args, reversed(node.args)):
        if alike(x, node) and channel_vector(x, other):
            return x, other
    return None


def joined_images(node: Any) -> tuple[Node, Node] | None:
    """The two images that ``node`` joins along their channels, None where it doesn't."""
    if not calls(node, torch.cat) or value(node).dim() != 4 or named(node).dim not in (1, -3):
        return None
    parts: Any = named(node).tensors
    if len(parts) != 2 or any(value(part).dtype != value(node).dtype or value(part).dim() != 4 for part in parts):
        return None
    return parts[0], parts[1]


def unscaled(q: Node) -> tuple[Node, float]:
    """``q`` without the factor that it got before it was seen in heads, and the factor."""
    views: list[Any] = []
    x: Any = q
    while calls(x, torch.reshape, torch.permute) and sole_user(x) is not None:
        views.append(x)
        x = x.args[0]
    factor = factor_of(x)
    if factor is None or sole_user(x) is None or value(x).dtype != value(x.args[0]).dtype:
        return q, 1.0
    plain = x.args[0]
    replace(x, plain)
    for view in reversed(views):  # what was multiplied need not be dense, as the product is
        view.meta["val"] = view.target(value(view.args[0]), view.args[1])
    return (views[0] if views else plain), factor


def factor_of(node: Node) -> float | None:
    """The number by which ``node`` multiplies a tensor, or None. Nobody scales by 0."""
    if not calls(node, torch.mul, torch.div):
        return None
    _, factor = node.args
    if not isinstance(factor, (int, float)) or factor == 0:
        return None
    return factor if node.target is torch.mul else 1 / factor
