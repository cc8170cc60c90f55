"""The ops as PyTorch's operators (``torch.ops.fast_compile.linear``), for code that isn't compiled here."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree

from .capture import autocast_off
from .ops import Op, all_ops
from .target import Target, probed

NAMESPACE = "fast_compile"
_ALIGNMENT = 16  # bytes: kernels load so many at once
#: Of what PyTorch can't read it from: a size for height and width.
_SCHEMAS = {
    "conv2d_act": (
        "(Tensor x, Tensor weight, Tensor? bias, int[2] stride=1, int[2] padding=0, int[2] dilation=1, SymInt groups=1,"
        ' Tensor? residual=None, str act="none", Tensor? channel_add=None) -> Tensor'
    ),
    "norm_pad_video": (
        '(Tensor x, float? eps=None, Tensor? weight=None, Tensor? factor=None, Tensor? shift=None, str act="none", '
        'int[3] times=1, int[6] pad=0, str edge="replicate", Tensor? lead=None, Tensor? bias=None) -> Tensor'
    ),
    "conv2d_shortcut": (
        "(Tensor x, Tensor weight, Tensor? bias, int[2] padding, Tensor shortcut, Tensor shortcut_weight, "
        "Tensor? shortcut_bias, Tensor? tail=None) -> Tensor"
    ),
}


@functools.cache
def register_operators() -> None:
    """Make each op an operator, ``torch.ops.fast_compile.<op>``, with its reference's parameters.

    A second call does nothing.

    An operator computes by the first kernel in order of preference that can, nothing is measured, and by its reference
    where none can. It runs on the current stream, in CUDA graphs, and under torch.compile and torch.export, which learn
    shapes and strides from the reference. It has no gradient, and autocast doesn't change its dtypes. A result that the
    reference doesn't compute anew, such as the sum of nothing, is a copy.
    """
    for name, op in all_ops().items():
        if not hasattr(getattr(torch.ops, NAMESPACE), name):  # this package may be loaded under several names
            schema = _SCHEMAS.get(name) or torch.library.infer_schema(op.reference, mutates_args=())
            operator = torch.library.custom_op(
                f"{NAMESPACE}::{name}", _alone(_computed(op)), mutates_args=(), schema=schema
            )
            operator.register_fake(_alone(op.reference))


def _computed(op: Op) -> Callable[..., Any]:
    """``op`` by the kernel that suits a call's arguments."""

    def compute(*args: Any) -> Any:
        tensors = list(_tensors(args))
        if any(tensor.data_ptr() % _ALIGNMENT for tensor in tensors):
            return op.reference(*args)
        return _kernel(op, probed(tensors[0].device), tuple(map(_described, args)))(*args)

    return compute


@functools.lru_cache(maxsize=4096)
def _kernel(op: Op, target: Target, described: tuple[Any, ...]) -> Callable[..., Any]:
    args = [_on_meta(*each) if isinstance(each, tuple) and each[0] is torch.Tensor else each for each in described]
    return next((impl.launch for impl in op.impls if impl.why_not(target, *args) is None), op.reference)


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.Tensor, tuple(value.shape), value.stride(), value.dtype
    return tuple(value) if isinstance(value, list) else value


def _on_meta(kind: type, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, stride, dtype=dtype, device="meta")


def _alone(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` without autocast, its results in memory of their own, as PyTorch asks of an operator."""

    def computed(*args: Any) -> Any:
        given = {tensor.untyped_storage()._cdata for tensor in _tensors(args)}
        with autocast_off():
            results = function(*args)
        return _pytree.tree_map_only(
            torch.Tensor, lambda out: out.clone() if out.untyped_storage()._cdata in given else out, results
        )

    return computed


def _tensors(args: tuple[Any, ...]) -> Iterator[torch.Tensor]:
    return (value for value in args if isinstance(value, torch.Tensor))
