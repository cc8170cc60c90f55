"""Reasons that several impls of ``linear`` share."""

from __future__ import annotations

from ..spec import Arguments

GATES = ("gelu", "gelu_tanh", "silu")  #: the activations of gates that there are kernels of


def why_not_shapes(call: Arguments) -> str | None:
    """Whether this is a linear layer's result, and a sum of two tensors alike."""
    x, weight, bias, residual = call.x, call.weight, call.bias, call.residual
    if weight.dim() != 2 or x.dim() == 0 or x.shape[-1] != weight.shape[1]:
        return f"x is {list(x.shape)}, weight {list(weight.shape)}"
    out = (*x.shape[:-1], weight.shape[0])
    if bias is not None and tuple(bias.shape) != out[-1:]:
        return f"bias is {list(bias.shape)}, must be {list(out[-1:])}"
    if residual is not None and tuple(residual.shape) != out:
        return f"residual of {list(residual.shape)} is broadcast to {list(out)}"
    return None


def why_not_epilogue(call: Arguments, *acts: str, residual: bool = False) -> str | None:
    """Whether one of these activations is all that is done to a product, or the residual is added to it."""
    if call.gated or call.gate_first:
        return "a gate is no epilogue of it"
    if call.act not in acts:
        return f"act {call.act!r} is not an epilogue of it"
    return None if call.residual is None or residual and call.act == "none" else "a residual is no epilogue of it"


def why_no_gate(call: Arguments) -> str | None:
    """Whether this is the gate of GEGLU or SwiGLU."""
    if not call.gated or call.residual is not None:
        return "is for a gate, without a residual"
    return None if call.act in GATES else f"act {call.act!r} of a gate is not supported"
