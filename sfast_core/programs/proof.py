"""Is a fused program right? Compares its results with those of the call that it was recorded from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch

from ..capture import CaptureError, Trace
from ..machine.numerics import Numerics, convolutions_round
from ..reporting.reasons.records import FURTHER

_TOLERANCE = {torch.float16: 2e-2, torch.complex32: 2e-2, torch.bfloat16: 8e-2, torch.int8: 8e-2, torch.uint8: 2e-1}
_16_BITS = frozenset((torch.float16, torch.bfloat16))
_OF_8_BITS = 2e-1
_IN_TF32 = 1e-2
_ELSE = 1e-3


def distance_to_eager(
    got: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    tolerance: float | None,
    computed_in: Iterable[torch.dtype] = (),
) -> float:
    """The largest relative L2 distance of a result to eager's.

    Args:
        got: the program's results.
        expected: the recorded call's.
        tolerance: the largest distance allowed. None: 2e-2 in float16, 8e-2 in bfloat16, 2e-1 in floats of 8 bits, 1e-2
            in float32 on a GPU where TF32 is allowed, and 1e-3 otherwise: several times what another order of
            operations does (2e-3 in float16, 1.4e-3 in TF32). Integers and booleans have to be equal.
        computed_in: the dtypes of intermediate values, which may be coarser than a result's own. Where inputs are
            rounded to int8, a difference in an input's last bit grows to what that rounding costs (1.7e-2 in an SD1.5
            in float32), so 8e-2 is allowed; for uint8, which holds numbers of 4 bits, 2e-1.

    Raises:
        CaptureError: a result is of another shape or dtype, or further away than is allowed.
    """
    worst = 0.0
    for mine, theirs in zip(got, expected, strict=True):
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            raise CaptureError(
                f"the fused result is {tuple(mine.shape)} {mine.dtype}, eager's {tuple(theirs.shape)} {theirs.dtype}"
            )
        distance = _distance(mine, theirs)
        allowed = tolerance or max(allowed_distance(dtype, theirs.device) for dtype in (theirs.dtype, *computed_in))
        if not distance <= allowed:
            raise CaptureError(FURTHER(distance=distance, allowed=allowed))
        worst = max(worst, distance)
    return worst


def computed_in(trace: Trace) -> frozenset[torch.dtype]:
    """The dtypes of intermediate values that a recorded call's results may be as coarse as: those that it tells of, and
    floats of 16 bits, which a model may give back as float32. Weights as they are kept round nothing.
    """
    made = (node.meta.get("val") for node in trace.graph.nodes if node.op.startswith("call"))
    return trace.computed_in | {each.dtype for each in made if isinstance(each, torch.Tensor)} & _16_BITS


def largest_distance(got: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """The largest relative L2 distance between results of the same shapes. Infinite where it isn't a number."""
    found = [_distance(mine, theirs) for mine, theirs in zip(got, expected, strict=True)]
    return max((each if math.isfinite(each) else math.inf for each in found), default=0.0)


def allowed_distance(dtype: torch.dtype, device: torch.device) -> float:
    """The distance that :func:`distance_to_eager` allows a result in ``dtype``, under PyTorch's present settings."""
    if dtype.is_floating_point and dtype.itemsize == 1:
        return _OF_8_BITS
    if dtype == torch.float32 and device.type == "cuda" and (convolutions_round() or Numerics.now().tf32):
        return _IN_TF32
    return _TOLERANCE.get(dtype, _ELSE)


def _distance(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    """||mine - theirs|| / ||theirs||, of complex numbers over both parts.

    NaN where infinities and NaNs aren't at the same places; infinite for integers and booleans that differ.
    """
    if not (theirs.is_floating_point() or theirs.is_complex()):
        return 0.0 if torch.equal(mine, theirs) else math.inf
    a, b = _real(mine), _real(theirs)
    strange = ~torch.isfinite(b)
    if not torch.equal(strange, ~torch.isfinite(a)) or not torch.equal(
        torch.nan_to_num(a[strange]), torch.nan_to_num(b[strange])
    ):
        return math.nan
    a, b = a.masked_fill(strange, 0), b.masked_fill(strange, 0)
    scale = b.abs().max().item() if b.numel() else 0.0
    if scale:  # squares of large numbers would be infinite, those of small ones nothing
        a, b = a / scale, b / scale
    difference, size = (a - b).norm().item(), b.norm().item()
    return difference / size if size else difference


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's numbers in float32, or float64 where it has those; complex numbers as pairs."""
    if tensor.is_complex():
        wide = tensor.to(torch.complex128 if tensor.dtype == torch.complex128 else torch.complex64)
        return torch.view_as_real(wide.resolve_conj())
    return tensor if tensor.dtype == torch.float64 else tensor.float()
