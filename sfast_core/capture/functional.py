"""In-place operations as functions, so that a graph has no side effects.

These are the targets that a trace writes down.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

_OPERATORS = {
    "__iadd__": torch.Tensor.add,
    "__isub__": torch.Tensor.sub,
    "__imul__": torch.Tensor.mul,
    "__itruediv__": torch.Tensor.div,
    "__ipow__": torch.Tensor.pow,
    "__iand__": torch.Tensor.bitwise_and,
    "__ior__": torch.Tensor.bitwise_or,
    "__ixor__": torch.Tensor.bitwise_xor,
    "__ilshift__": torch.Tensor.bitwise_left_shift,
    "__irshift__": torch.Tensor.bitwise_right_shift,
}
_ARITHMETIC = frozenset({"add_", "sub_", "mul_", "div_", "__iadd__", "__isub__", "__imul__", "__itruediv__"})
_PLACING = frozenset(  #: what is put into a tensor takes its dtype
    "index_copy_ index_add_ index_fill_ index_put_ masked_fill_ masked_scatter_ scatter_ scatter_add_"
    " scatter_reduce_".split()
)
_IDENTITY = frozenset({"requires_grad_", "detach_"})
_RESHAPING = frozenset(
    "resize_ resize_as_ set_ squeeze_ unsqueeze_ t_ transpose_ swapaxes_ swapdims_ as_strided_ rename_".split()
)


def identity(x: torch.Tensor, *_: Any) -> torch.Tensor:
    """``x`` itself."""
    return x


def element(results: Any, index: int) -> Any:
    """One of a function's several results."""
    return results[index]


def copied(source: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """What ``x.copy_(source)`` leaves in an x of this shape, dtype and device. Nothing of x's own values remains."""
    return source.to(device=device, dtype=dtype).expand(shape).clone()


def filled(value: Any, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """What ``x.fill_(value)`` leaves in an x of this shape, dtype and device."""
    if isinstance(value, torch.Tensor):
        return copied(value, shape, dtype, device)
    return torch.full(shape, value, dtype=dtype, device=device)


def setitem(x: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    """What ``x[index] = value`` leaves in x."""
    x = x.clone()
    if type(value) in (bool, int, float) and all(map(_is_basic, index if isinstance(index, tuple) else (index,))):
        # torch would put the number into a tensor on the CPU, and copy that where the place is a single one
        x[index].fill_(value)
    else:
        x[index] = value
    return x


def taken(
    x: torch.Tensor, order: tuple[int, ...], size: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> torch.Tensor:
    """Those of x's elements that lie there when x is dense, its dimensions in ``order``."""
    dense = x.permute(order).contiguous()
    return dense.as_strided(size, stride, dense.storage_offset() + offset)


def put(
    x: torch.Tensor,
    value: torch.Tensor,
    order: tuple[int, ...],
    size: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
) -> torch.Tensor:
    """x with ``value`` in the place of what :func:`taken` takes."""
    dense = x.permute(order).clone(memory_format=torch.contiguous_format)
    dense.as_strided(size, stride, offset).copy_(value)
    return dense.permute(sorted(range(len(order)), key=order.__getitem__))


def _is_basic(index: Any) -> bool:
    """Whether an index makes a view."""
    return index is None or index is Ellipsis or type(index) is int or isinstance(index, slice)


def cast_like(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``x`` in ``dtype``: an in-place operation keeps its target's dtype."""
    return x.to(dtype)


def moved(x: torch.Tensor, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """``x`` in this dtype on this device: what ``x.to(other)`` makes of it, without the other tensor."""
    return x.to(device=device, dtype=dtype)


def tensor_of(data: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor of these numbers, which lie in nested lists."""
    return torch.tensor(data, dtype=dtype, device=device)


@functools.cache
def is_in_place(name: str) -> bool:
    """Whether a function of this name changes its first argument."""
    return name in _OPERATORS or name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


def sets_the_same(name: str, args: Sequence[Any]) -> bool:
    """Whether an attribute of a tensor is set to what it is: ``module.to(device)`` does so to each parameter's ``data``
    that is there already.
    """
    if name != "data" or len(args) < 2 or not all(isinstance(arg, torch.Tensor) for arg in args[:2]):
        return False
    with torch._C.DisableTorchFunction():
        one, other = args[:2]
        return one is other or (
            type(one.data) is type(other.data)
            and (one.dtype, one.device, one.shape, one.stride())
            == (other.dtype, other.device, other.shape, other.stride())
            and one.layout is other.layout is torch.strided
            and one.data_ptr() == other.data_ptr()
        )


def keeps_dtype(name: str, target: torch.Tensor, args: Sequence[Any]) -> bool:
    """Whether the functional form surely returns ``target``'s dtype, without asking a meta kernel; ``args`` are those
    behind it.
    """
    if name == "__setitem__" or name in _PLACING or not is_in_place(name):
        return True
    numbers: tuple[type, ...] = (int, float) if target.is_floating_point() else (int,)
    return (
        name in _ARITHMETIC
        and (target.is_floating_point() or (target.dtype == torch.int64 and "div" not in name))
        and all(
            arg.dtype == target.dtype if isinstance(arg, torch.Tensor) else isinstance(arg, numbers) for arg in args
        )
    )


def mutates(func: Any) -> bool:
    """Whether an operator registered with torch, or one of its overloads, changes an argument."""
    if isinstance(func, torch._ops.OpOverloadPacket):
        return any(mutates(getattr(func, name)) for name in func.overloads())
    return isinstance(func, torch._ops.OpOverload) and bool(func._schema.is_mutable)


def overwriting_form(
    name: str, target: torch.Tensor, args: Sequence[Any]
) -> tuple[Callable[..., torch.Tensor], tuple[Any, ...]] | None:
    """The function and its arguments for an operation that leaves nothing of its target's values; None for any other.

    ``args`` are the operation's arguments behind the target.
    """
    like = (tuple(target.shape), target.dtype, target.device)
    if name == "copy_" and args:
        return copied, (args[0], *like)
    if name == "fill_" and args:
        return filled, (args[0], *like)
    if name == "zero_":
        return filled, (0, *like)
    return None


def functional_form(name: str) -> Callable[..., torch.Tensor] | None:
    """The function that returns what the in-place operation ``name`` leaves in its first argument; None when there is
    none.
    """
    if name in _OPERATORS:
        return _OPERATORS[name]
    if name in _IDENTITY:
        return identity
    if name in _RESHAPING:
        return None
    return setitem if name == "__setitem__" else getattr(torch.Tensor, name[:-1], None)
