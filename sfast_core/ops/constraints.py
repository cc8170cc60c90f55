"""Reasons that many impls share. Each function gives a reason in words, or None where nothing stands in the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from ..target import Target

FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def why_no_cuda(target: Target, capability: tuple[int, int] = (0, 0)) -> str | None:
    """Whether ``target`` is a CUDA device of at least this compute capability."""
    if not target.is_cuda:
        return "needs CUDA"
    if target.capability < capability:
        return f"needs compute capability {capability[0]}.{capability[1]}, this is {target.capability[0]}.{target.capability[1]}"
    return None


def why_no_hopper(target: Target) -> str | None:
    """Whether ``target`` has compute capability 9.0: wgmma is in no GPU before or after."""
    if reason := why_no_cuda(target, (9, 0)):
        return reason
    if target.capability != (9, 0):
        return f"is for compute capability 9.0, this is {target.capability[0]}.{target.capability[1]}"
    return None


def why_switched_off(target: Target, *libraries: str) -> str | None:
    """Whether PyTorch may not use one of these, named as :mod:`numerics` does: then nobody does in its place."""
    off = next((name for name in libraries if name in target.numerics.switched_off), None)
    return f"{off} is switched off in PyTorch" if off else None


def why_no_triton(target: Target) -> str | None:
    """Whether Triton compiles for ``target``."""
    return why_no_cuda(target, (8, 0)) or (None if target.triton else "needs Triton")


def why_not_dtypes(**tensors: torch.Tensor | None) -> str | None:
    """Whether every tensor given by name is float16, bfloat16 or float32."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dtype not in FLOATS:
            return f"{name} is {str(tensor.dtype).removeprefix('torch.')}, which is not supported"
    return None


def why_not_half(x: torch.Tensor, **others: torch.Tensor | None) -> str | None:
    """Whether x is float16 or bfloat16, and every other tensor given by name of the same dtype."""
    if x.dtype not in (torch.float16, torch.bfloat16):
        return f"x is {_name(x)}, must be float16 or bfloat16"
    for name, tensor in others.items():
        if tensor is not None and tensor.dtype != x.dtype:
            return f"{name} is {_name(tensor)}, x is {_name(x)}"
    return None


def why_not_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor | None) -> str | None:
    """Whether ``x @ weight.T + bias + residual`` is a linear layer's result and a sum of two tensors alike."""
    if weight.dim() != 2 or x.dim() == 0 or x.shape[-1] != weight.shape[1]:
        return f"x is {list(x.shape)}, weight {list(weight.shape)}"
    out = (*x.shape[:-1], weight.shape[0])
    if bias is not None and tuple(bias.shape) != out[-1:]:
        return f"bias is {list(bias.shape)}, must be {list(out[-1:])}"
    if residual is not None and tuple(residual.shape) != out:
        return f"residual of {list(residual.shape)} is broadcast to {list(out)}"
    return None


def _name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
