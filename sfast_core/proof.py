"""Is a fused program right? Its results next to those of the call that it was recorded from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from .capture import CaptureError

_TOLERANCE = {torch.float16: 2e-2, torch.bfloat16: 8e-2}


def distance_to_eager(
    got: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], tolerance: float | None, computed_in: Iterable[torch.dtype] = ()
) -> float:
    """The largest relative L2 distance of a result to eager's.

    Args:
        got: the program's results.
        expected: the recorded call's.
        tolerance: the largest distance allowed. None: 2e-2 in float16, 8e-2 in bfloat16, 1e-3 else, several times what another order of
            operations gives (2e-3 in float16).
        computed_in: dtypes that were computed in on the way: a result's own may be finer than they are.

    Raises:
        CaptureError: a result is of another shape or dtype, or further away than is allowed.
    """
    worst = 0.0
    for mine, theirs in zip(got, expected, strict=True):
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            raise CaptureError(f"the fused result is {tuple(mine.shape)} {mine.dtype}, eager's {tuple(theirs.shape)} {theirs.dtype}")
        distance, allowed = _distance(mine, theirs), tolerance or max(_TOLERANCE.get(dtype, 1e-3) for dtype in (theirs.dtype, *computed_in))
        if not distance <= allowed:
            raise CaptureError(f"the fused result is {distance:.1e} from eager's (relative L2), at most {allowed:.0e} is allowed")
        worst = max(worst, distance)
    return worst


def _distance(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    """||mine - theirs|| / ||theirs||; not a number where only one of them is finite, 0 where both are not in the same places."""
    a, b = mine.float(), theirs.float()
    both = ~(torch.isfinite(a) | torch.isfinite(b))
    a, b = a.masked_fill(both, 0), b.masked_fill(both, 0)
    difference, size = (a - b).norm().item(), b.norm().item()
    return difference / size if size else difference
