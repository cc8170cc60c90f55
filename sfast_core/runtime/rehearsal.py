"""A run before a capture, which finds out whether the capture would fail.

A failed capture can be undone, but not under cudaMallocAsync: there each tensor that is freed while the capture is
invalid ends the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ..machine.operator_mode import OperatorMode
from ..weights import Arriving

_ALIGNED = 16  #: bytes; Triton compiles a kernel anew for tensors that aren't
_TAGS = ("data_dependent_output", "dynamic_output_shape", "cudagraph_unsafe")  #: the last isn't in every PyTorch
_BY_VALUES = [getattr(torch.Tag, name) for name in _TAGS if hasattr(torch.Tag, name)]
#: Operators that read a value though torch doesn't tag them so. All but the first are composites, whose parts inference
#: mode hides.
_CHECKING = frozenset(
    "_linalg_check_errors is_nonzero item allclose inverse linalg_inv linalg_solve linalg_cholesky cholesky".split()
)
#: Their further results are the state of a random generator, which they don't use here and which lies on the CPU
#: outside of captures.
_ATTENTION = ("_scaled_dot_product_", "_efficient_attention_", "_flash_attention_", "_cudnn_attention_")


class Rehearsal(OperatorMode):
    """A mode in which operators run as ever, but raise where a CUDA graph couldn't hold them.

    Args:
        raises: whether they do. Else the first such operator is only noted.

    Attributes:
        refused: what a graph couldn't hold, or None.

    Raises:
        RuntimeError: an operator reads a tensor's values on the CPU, or copies between the CPU and the device.
    """

    def __init__(self, raises: bool = True) -> None:
        super().__init__()
        self.refused: str | None = None
        self._raises = raises

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, torch._ops.OpOverload):  # an operator on functions: what it runs is seen by itself
            return func(*args, **kwargs)
        name = str(func._schema.name).removeprefix("aten::")
        if _reads_values(func, name, args, kwargs):
            self._refuse(f"{name} reads a tensor's values on the CPU, which a CUDA graph can't repeat")
        result = func(*args, **kwargs)
        by_value = (
            name in _BY_NUMBER
            or (torch.Tag.pointwise in func.tags and name != "where")
            or (name in _ASSIGNING and _by_mask(args, kwargs))
        )
        found = _tensors((args, kwargs.values(), result[:1] if name.startswith(_ATTENTION) else result))
        places = {
            tensor.device.type
            for tensor in found
            if not (by_value and tensor.dim() == 0 and tensor.device.type == "cpu")
        }
        if len(places) > 1:
            self._refuse(f"{name} copies between {' and '.join(sorted(places))}, which a CUDA graph can't repeat")
        return result

    def _refuse(self, reason: str) -> None:
        if self._raises:
            raise RuntimeError(reason)
        self.refused = self.refused or reason


def rehearsing(run: Callable[[], object]) -> Callable[[], None]:
    """``run`` as the warm-up of its capture: it raises where a graph couldn't hold what it does."""

    def rehearse() -> None:
        with Rehearsal():
            run()

    return rehearse


@dataclass(frozen=True)
class Rehearsed:
    """What an earlier run of a computation has shown, so that it can be captured without another one.

    Attributes:
        room: the bytes that the allocator held unused behind it, of which a capture needs about as many.
    """

    room: int
    _results: tuple[tuple[torch.Tensor, torch.device], ...]  # like its results, on the meta device, and where they were
    _thread: int  # libraries are set up for each thread, which a capture can't do

    def serves(self) -> bool:
        """Whether the calling thread is the one that ran it."""
        return self._thread == threading.get_ident()

    def empty_results(self) -> list[torch.Tensor]:
        """Memory for its results."""
        return [torch.empty_like(like, device=device) for like, device in self._results]


class CapturedBefore:
    """Shows that a computation can be captured: a graph of it was. It is warmed up all the same."""


#: What is known of a computation that is to be captured. None: nothing, so that it has to be rehearsed.
Shown: TypeAlias = Rehearsed | CapturedBefore | None


def lie_as_captured(inputs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor | Arriving]) -> bool:
    """Whether no weight is to be brought, and inputs lie as a graph's own: other kernels couldn't be loaded then."""
    aligned = all(tensor.data_ptr() % _ALIGNED == 0 for tensor in inputs)
    return aligned and not any(isinstance(weight, Arriving) for weight in weights)


def rehearsed(
    run: Callable[[], list[torch.Tensor]], room: Callable[[], int]
) -> tuple[list[torch.Tensor], Rehearsed | None]:
    """The results of ``run()``, and what it has shown: None where a graph couldn't hold what it does.

    ``room``: the bytes that the allocator holds unused.
    """
    with Rehearsal(raises=False) as mode:
        results = run()
    if mode.refused is not None:
        return results, None
    like = tuple((torch.empty_like(result, device="meta"), result.device) for result in results)
    return results, Rehearsed(room(), like, threading.get_ident())


def _reads_values(func: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    special = _SPECIAL.get(name)
    if special is not None:
        return special(args, kwargs)
    return name in _CHECKING or any(tag in func.tags for tag in _BY_VALUES)


def _by_mask(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether an index is a mask: the result's shape then depends on its values, with indices by number it doesn't."""
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])


def _assigned_by_mask(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether an assignment's index is a mask, and what is assigned isn't one number, which is filled in."""
    return _by_mask(args, kwargs) and not _is_number(args[2])


def _filled_from_device(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether the value to fill in is read from a tensor on the device: the kernel takes a number."""
    value = kwargs.get("value", args[-1])
    return isinstance(value, torch.Tensor) and not _is_number(value)


def _is_number(value: torch.Tensor) -> bool:
    return value.numel() == 1 and value.device.type == "cpu"


def _counted(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether the numbers of repeats, in a tensor, have to be read to know the result's length."""
    return kwargs.get("output_size") is None and any(isinstance(arg, torch.Tensor) for arg in args[1:] or args)


def _classes(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    return (args[1] if len(args) > 1 else kwargs.get("num_classes", -1)) == -1


_ASSIGNING = ("index_put", "index_put_", "_index_put_impl_")
_SPECIAL: dict[str, Callable[[Sequence[Any], dict[str, Any]], bool]] = {
    "index": _by_mask,
    **dict.fromkeys(_ASSIGNING, _assigned_by_mask),
    "repeat_interleave": _counted,
    "one_hot": _classes,
    **dict.fromkeys(("masked_fill", "masked_fill_", "index_fill", "index_fill_"), _filled_from_device),
}
_BY_NUMBER = frozenset("fill fill_ masked_fill masked_fill_ index_fill index_fill_".split())


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)) or type(value) is type({}.values()):
        for item in value:
            yield from _tensors(item)
