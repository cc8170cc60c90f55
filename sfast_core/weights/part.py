"""The parts of a tensor subclass that is a weight made of tensors, such as a quantised one's numbers and scales.

Such a class tells what it is made of (``__tensor_flatten__``), or has one part, its memory (:mod:`.blocks`). The parts
are plain tensors, and each is found and checked as a weight is. The subclass's tensor is called the *whole*.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from .added import Added, part_of_added
from .blocks import bytes_of, is_of_blocks, kind_of, shape_of
from .errors import WeightsChanged

_BYTES = "bytes"  # the name of the part that is the whole's memory
_OF_BLOCKS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    _BYTES: bytes_of,
    **{name: partial(part_of_added, name) for name in Added._fields},
}
STAMP = "_fast_compile_stamp"  #: on a whole: see :func:`stamped`
Stamp = tuple[int, int]


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor's values are its memory's: it is of torch's own classes, or only carries something more."""
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) or (is_marked(type(tensor)) and not is_of_blocks(tensor))


def is_marked(cls: type) -> bool:
    """Whether a subclass of Parameter leaves torch's functions alone, and only carries something more: bitsandbytes'
    carry, for their layers, what their bytes mean.

    One that claims another shape than its memory's (Forge's, of GGUF's bytes) isn't such a class.
    """
    if cls is torch.nn.Parameter or not issubclass(cls, torch.nn.Parameter) or hasattr(cls, "__tensor_flatten__"):
        return False
    own = (getattr(cls, name) is not getattr(torch.Tensor, name) for name in ("shape", "dtype", "device"))
    dispatch: Any = getattr(cls, "__torch_dispatch__", None)
    return dispatch is torch.Tensor.__torch_dispatch__ and not any(own)


def has_functions(cls: type) -> bool:
    """Whether such a class intercepts torch's functions when they are called with one of its tensors."""
    function = cls.__torch_function__  # type: ignore[attr-defined]
    return getattr(function, "__func__", function) is not torch.nn.Parameter.__torch_function__


def has_parts(tensor: torch.Tensor) -> bool:
    """Whether a tensor is made of others, and tells of which."""
    return not is_plain(tensor) and (hasattr(tensor, "__tensor_flatten__") or is_of_blocks(tensor))


def is_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor subclass's values are what is in its memory, as those of a plain tensor are."""
    return has_parts(tensor) and is_of_blocks(tensor) and kind_of(tensor) is None


def memory_of(tensor: torch.Tensor) -> tuple[torch.Tensor, Part]:
    """The plain tensor of one for which :func:`is_memory` is true, and the part that this is."""
    return bytes_of(tensor), Part(tensor, _BYTES)


def alike(one: Any, other: torch.Tensor) -> bool:
    """Whether a tensor can be copied over another: both are plain, or made of parts of which the same is true."""
    if not isinstance(one, torch.Tensor) or one.shape != other.shape or one.dtype != other.dtype:
        return False
    if is_plain(one) or is_plain(other):
        return is_plain(one) and is_plain(other)
    if type(one) is not type(other) or not has_parts(one) or _context(one) != _context(other):
        return False
    return all(alike(mine, theirs) for (_, mine), (_, theirs) in zip(parts_of(one), parts_of(other), strict=True))


def stamped(whole: torch.Tensor) -> Stamp:
    """A stamp that identifies this whole, which is put on it.

    A weak reference would do, but ``module.to`` swaps such tensors (``torch.utils.swap_tensors``), which torch refuses
    to do with a tensor that has weak references.
    """
    own = vars(whole)
    if STAMP not in own:
        own[STAMP] = time.monotonic_ns()
    return id(whole), own[STAMP]


def is_stamped(whole: object, stamp: Stamp) -> bool:
    """Whether this is the whole that got the stamp."""
    return (id(whole), getattr(whole, "__dict__", {}).get(STAMP)) == stamp


class Part:
    """A part of a whole, and what else the whole is.

    Args:
        whole: the tensor that has the part.
        where: the attributes that lead to the part, with dots. For a weight in blocks its bytes, or a field of what is
            :class:`.added.Added` to it.

    Attributes:
        of: gives this part of a whole, by nothing but attribute look-ups.
    """

    def __init__(self, whole: torch.Tensor, where: str) -> None:
        self.where = where
        self.of: Callable[[torch.Tensor], torch.Tensor] = (
            _OF_BLOCKS[where] if is_of_blocks(whole) else operator.attrgetter(where)
        )
        self._class, self._context, self._numbers = type(whole), _context(whole), whole.numel()
        self._last = stamped(whole)

    def __str__(self) -> str:
        return self.where.rpartition(".")[2]

    def packed(self, part: torch.Tensor) -> bool:
        """Whether two of the whole's numbers share a byte of this part."""
        return part.itemsize == 1 and 2 * part.numel() == self._numbers

    def at(self, whole: torch.Tensor, name: object) -> torch.Tensor:
        """The part of the present whole. ``name``: the weight's, for the error.

        Raises:
            WeightsChanged: the whole is of another class now, or quantised in another way.
        """
        if not is_stamped(whole, self._last):
            if type(whole) is not self._class or _context(whole) != self._context:
                raise WeightsChanged(f"the weight {name} is made of other parts now")
            self._last = stamped(whole)
        return self.of(whole)

    def in_any(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """This part of any tensor; None where it has none."""
        try:
            part = self.of(tensor)
        except AttributeError:
            return None
        return part if isinstance(part, torch.Tensor) else None


def parts_of(whole: torch.Tensor, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """The plain tensors that a whole is made of, each with the attributes that lead to it."""
    if is_of_blocks(whole):
        yield prefix + _BYTES, bytes_of(whole)
        return
    names, _ = whole.__tensor_flatten__()
    for name in names:
        tensor = getattr(whole, name)
        where = prefix + _where(whole, name, tensor)
        if has_parts(tensor):
            yield from parts_of(tensor, where + ".")
        else:
            yield where, tensor


def _where(whole: torch.Tensor, name: str, tensor: torch.Tensor) -> str:
    """Where a part is kept. An attribute that ``__tensor_flatten__`` sets when it is called is only another name for a
    tensor that lies in some object of the whole.
    """
    for attribute, value in vars(whole).items():
        if not isinstance(value, torch.Tensor):
            for inner, found in getattr(value, "__dict__", {}).items():
                if found is tensor:
                    return f"{attribute}.{inner}"
    return name


def _context(whole: torch.Tensor) -> Any:
    """What a whole is besides its parts, and so for wholes among its parts: to be compared."""
    if is_of_blocks(whole):
        return kind_of(whole), shape_of(whole)
    names, context = whole.__tensor_flatten__()
    inner = [_context(part) for part in (getattr(whole, name) for name in names) if has_parts(part)]
    return list(names), context, inner, whole.shape, whole.dtype
