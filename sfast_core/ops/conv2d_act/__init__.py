"""A convolution with what follows it: bias, a sum per channel, a residual and an activation."""

from __future__ import annotations

import torch

from ..spec import Impl, Op
from .reference import conv2d_act

__all__ = ["OP", "conv2d_act"]


def _family(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *rest: object) -> tuple[str, int]:
    extras = [isinstance(item, torch.Tensor) or item for item in rest]
    return f"{x.dtype} {tuple(weight.shape)} {bias is not None} {extras}", x.numel()


OP = Op(
    name="conv2d_act",
    reference=conv2d_act,
    impls=(
        Impl("torch_epilogue", ".torch_epilogue_impl", __package__, behind=("cudnn", "cuda", "cuda_few")),  # more passes, and a compilation for each kind
        Impl("cudnn", ".cudnn_impl", __package__),
        Impl("cudnn_2", ".cudnn_impl", __package__, "launch_second"),
        Impl("cudnn_3", ".cudnn_impl", __package__, "launch_third"),
        Impl("cuda", ".cuda_impl", __package__),
        Impl("cuda_few", ".cuda_few_impl", __package__),
        Impl("triton_split", ".triton_split_impl", __package__),
    ),
    measured=True,
    family=_family,
    reference_competes=False,
    channels_last=True,
)
