"""Tells who else holds a tensor's memory, and gives the same tensor object other memory or other strides.

Optimizers, averages of weights and hosts hold a module's parameters by object, and autograd by what is behind the
object. So an object is never replaced: its memory is exchanged (``tensor.data =``), which neither counts as a write
(``_version``) nor loses pending gradients. Whoever holds the memory itself (a view, a ``detach()``, a flat buffer, an
array) would not notice that, so such memory stays as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch

Strides = tuple[int, ...]


def holders(table: dict[str, Any], name: str) -> tuple[int, int | None]:
    """The reference counts of a tensor in a module's table and of its storage, with our own references: to be compared
    with :func:`nobody_else`. The second is None where this PyTorch doesn't tell it.
    """
    return sys.getrefcount(table[name]), _storage_uses(table[name])


def nobody_else() -> tuple[int, int | None]:
    """The :func:`holders` of a parameter that nothing but its table holds."""
    return holders({"alone": torch.nn.Parameter(torch.empty(1), requires_grad=False)}, "alone")


def is_shared(tensor: torch.Tensor, made_here: bool = False) -> bool:
    """Whether anything besides this tensor object sees its memory: another tensor, an array, another process.

    Args:
        tensor: the tensor.
        made_here: whether its storage is one of :func:`parts`. Like one made from an array, that can't be resized.
    """
    # a tensor that a function transform puts in a weight's place stands for another's memory
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return True
    storage, (_, alone) = tensor.untyped_storage(), nobody_else()
    if (not made_here and not storage.resizable()) or (tensor.device.type == "cpu" and storage.is_shared()):
        return True
    del storage
    uses = _storage_uses(tensor)
    return tensor.untyped_storage().nbytes() != tensor.nbytes if uses is None or alone is None else uses > alone


def _storage_uses(tensor: torch.Tensor) -> int | None:
    """How many references there are to the tensor's storage, with this function's own."""
    count = getattr(torch._C, "_storage_Use_Count", None)
    # held while counting: some versions of PyTorch count this reference in any case, others only if it is held
    storage = tensor.untyped_storage()
    return None if count is None else int(count(storage._cdata))


def parts(memory: torch.UntypedStorage, tensors: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Contiguous copies of these tensors, each in a storage of its own: a part of ``memory`` that keeps it alive.

    So each looks as if it had memory of its own. Views of one storage would be refused when saving, or the storage
    saved once for each view.
    """
    start = 0
    for tensor in tensors:
        with torch.inference_mode(tensor.is_inference()), torch.no_grad():
            part = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            part.set_(memory[start : start + tensor.nbytes], 0, tensor.shape)
            part.copy_(tensor)
        yield part
        start += tensor.nbytes


def move(tensor: torch.Tensor, to: torch.Tensor) -> None:
    """Give ``tensor`` the memory and strides of ``to``, which has the same shape, dtype, device and values."""
    # an inference tensor has to stay one, and a normal tensor a normal one
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        there = torch.empty(0, dtype=to.dtype, device=to.device)
        tensor.data = there.set_(to.untyped_storage(), to.storage_offset(), to.shape, to.stride())


def own_copy(tensor: torch.Tensor, strides: Strides) -> torch.Tensor:
    """A copy in memory of its own with these strides."""
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def turn(tensor: torch.Tensor, strides: Strides) -> None:
    """Give ``tensor`` other strides within its own memory, which nobody else holds. It is copied meanwhile, so that an
    interruption at any point leaves its values intact.
    """
    there = tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, strides
    kept = own_copy(tensor, strides)
    move(tensor, kept)
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        turned = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(*there)
        turned.copy_(kept)
    move(tensor, turned)


def lay(tensor: torch.Tensor, strides: Strides) -> bool:
    """:func:`turn`, if it is needed and nobody else holds the memory. Returns whether ``tensor`` has these strides."""
    if tensor.stride() != strides:
        if is_shared(tensor):
            return False
        turn(tensor, strides)
    return True


def gradients_wanted(table: dict[str, Any], name: str) -> bool:
    """Whether somebody trains this tensor, as far as can be seen.

    Parameters require gradients by default, even if nobody ever trains. Whoever does train holds them (an optimizer, an
    average, a pending backward), or there are gradients, or hooks on them. Autocast's cache of what it has cast holds
    them, too, and is emptied: it only saves casting again.
    """
    if not table[name].requires_grad or table[name].is_inference():
        return False
    torch.clear_autocast_cache()
    if holders(table, name)[0] > nobody_else()[0]:
        return True
    tensor = table[name]
    return (
        not tensor.is_leaf
        or tensor.grad is not None
        or bool(tensor._backward_hooks)
        or bool(getattr(tensor, "_post_accumulate_grad_hooks", None))
    )
