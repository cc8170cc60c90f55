"""RMSNorms over the last dimension as models spell them, the sum in front of them and the modulation behind them."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.fx import Node

from ..capture.calls import function_name
from ..capture.functional import cast_like
from .graph import FLOATS, alike, arguments, called, calls, named, other_of, shape, sole_user, value
from .patterns import gate_of, is_row, less_one

_EPSILONS = {dtype: torch.finfo(dtype).eps for dtype in FLOATS}


def squared(node: Node) -> Node | None:
    """What a node is the square of, in any spelling; None where it is of nothing."""
    name, args = function_name(node.target), node.args
    is_square = (
        (name in ("pow", "__pow__") and args[1:] == (2,))
        or name == "square"
        or (calls(node, torch.mul) and args[0] is args[1])
    )
    return args[0] if is_square and isinstance(args[0], Node) and not node.kwargs else None


def mean_square_of(mean: Any, reader: Node, dim: int) -> Node | None:
    """What a node that ``reader`` alone reads is the mean square of, over this one dimension, kept."""
    call = arguments(mean, "squares dim keepdim") if called(mean, "mean") and sole_user(mean) is reader else None
    if call is None or call.keepdim is not True or call.dim not in (dim, [dim], (dim,)):
        return None
    return squared(call.squares) if isinstance(call.squares, Node) and sole_user(call.squares) is mean else None


class Norm(NamedTuple):
    """An RMSNorm of ``x``; the weight is ``weight + offset``."""

    node: Node  #: whose result it is, in x's dtype
    first: Node  #: what reads x
    x: Node
    eps: float
    weight: Node | None
    offset: float = 0.0


class Modulation(NamedTuple):
    """``n * (1 + scale) + shift``."""

    last: Node  #: whose result it is
    scale: Node | None = None
    shift: Node | None = None


def norm_of(rms: Node) -> Norm | None:
    """The norm that a call of ``F.rms_norm`` is the whole or, with casts around it, the middle of; None where that
    isn't over the last dimension.
    """
    if (eps := eps_of(rms)) is None:
        return None
    x: Any = named(rms).input
    back = sole_user(rms)
    island = (
        value(rms).dtype == torch.float32
        and calls(x, cast_like)
        and calls(back, cast_like)
        and value(back).dtype == value(x.args[0]).dtype
    )
    weight, offset = _less_offset(named(rms).weight, value(rms).dtype)
    if island:
        return Norm(back, x, x.args[0], eps, weight, offset)
    return Norm(rms, rms, x, eps, weight, offset)


def _less_offset(weight: Any, dtype: torch.dtype) -> tuple[Node | None, float]:
    """What a number is added to, and the number, where a norm's weight is that; casts up change no value."""
    offset, found = 0.0, weight
    if (
        calls(found, torch.add)
        and len(found.args) == 2
        and isinstance(found.args[0], Node)
        and type(found.args[1]) in (int, float)
    ):
        found, offset = found.args[0], float(found.args[1])
    if (
        calls(found, cast_like)
        and value(found).dtype == torch.float32 == dtype
        and value(found.args[0]).dtype in (torch.float16, torch.bfloat16)
    ):
        found = found.args[0]
    return found, offset


def modulation_of(normed: Node) -> Modulation:
    """What is done to a norm's result, in so far as nobody else reads what comes in between."""
    user = sole_user(normed)
    if calls(user, torch.addcmul):
        call = named(user)
        first, factors = call.input, [call.tensor1, call.tensor2]
        if first is normed:  # n + n * scale
            scale = next((factor for factor in factors if factor is not normed), None)
            if factors.count(normed) == 1 and is_row(scale, normed) and alike(user, normed):
                return _shifted(user, scale)
        elif is_row(first, normed) and alike(user, normed):
            scale = less_one(next((factor for factor in factors if factor is not normed), None), normed)
            if scale is not None:
                return Modulation(user, scale, first)
    elif calls(user, torch.mul) and alike(user, normed):
        scale = less_one(other_of(user, normed), normed)
        if scale is not None:
            return _shifted(user, scale)
    return Modulation(normed)


def _shifted(scaled: Node, scale: Any) -> Modulation:
    user = sole_user(scaled)
    if calls(user, torch.add) and alike(user, scaled):
        shift = other_of(user, scaled)
        if is_row(shift, scaled):
            return Modulation(user, scale, shift)
    return Modulation(scaled, scale)


def sum_of(total: Node, eps: float) -> tuple[Node, Node, Node | None, Node | None] | None:
    """``x, residual, gate, x_weight`` of the sum that a node is, or None. The RMSNorm of x has to have this eps."""
    if calls(total, torch.addcmul):
        call = named(total)
        residual = call.input
        found = _gated((call.tensor1, call.tensor2), total, eps)
        if found is None or not alike(residual, total):
            return None
        x, weight = _normed_first(found[0], total, eps)
        return x, residual, found[1], weight
    if not calls(total, torch.add) or len(total.args) != 2 or not all(alike(arg, total) for arg in total.args):
        return None
    first, second = total.args
    for summand, kept in ((first, second), (second, first)):
        gated = (
            _gated(summand.args, summand, eps) if calls(summand, torch.mul) and sole_user(summand) is total else None
        )
        y, gate = gated or (summand, None)
        x, weight = _normed_first(y, summand if gated else total, eps)
        if first is not second and (gated or weight is not None):
            return x, kept, gate, weight
    return first, second, None, None


def _gated(factors: tuple[Any, ...], result: Node, eps: float) -> tuple[Node, Node] | None:
    """The tokens among two factors and their gate.

    Where each token has a gate of its own, they look alike: what is a norm is no gate.
    """
    if (found := gate_of(factors, result)) or not all(alike(factor, result) for factor in factors):
        return found
    if not is_row(factors[1], result) or factors[0] is factors[1]:
        return None
    y, gate = factors
    return (gate, y) if _normed_first(gate, result, eps)[1] is not None else (y, gate)


def _normed_first(y: Any, reader: Node, eps: float) -> tuple[Node, Node | None]:
    """What an RMSNorm that ``reader`` alone reads is made of, with its weight; or ``y`` itself."""
    if sole_user(y) is reader and eps_of(y) == eps and named(y).weight is not None and alike(named(y).input, y):
        return named(y).input, named(y).weight
    return y, None


def eps_of(node: Any) -> float | None:
    """What an RMSNorm over the last dimension adds, or None where a node is no such norm."""
    if (
        not calls(node, F.rms_norm)
        or not alike(named(node).input, node)
        or shape(node)[-1:] != tuple(named(node).normalized_shape)
    ):
        return None
    if value(node).dtype not in _EPSILONS:
        return None
    eps: Any = named(node).eps
    return default_eps(value(node).dtype, node.meta["device"]) if eps is None else eps


@functools.cache
def default_eps(dtype: torch.dtype, device: torch.device) -> float:
    """What PyTorch adds where a model names no eps, as ComfyUI's don't: the dtype's epsilon, or on some devices and in
    some versions float32's.

    Told by a vector whose mean square, 2**-12, is small beside the one and large beside the other.
    """
    normed = F.rms_norm(torch.full((8,), 2.0**-6, dtype=dtype, device=device), (8,))
    return _EPSILONS[dtype if float(normed[0]) < 0.75 else torch.float32]
