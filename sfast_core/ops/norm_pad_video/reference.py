"""The meaning of ``norm_pad_video`` in plain PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from ..conv2d_act.reference import IntOrPair, each

ACTS = ("none", "silu")
EDGES = ("replicate", "reflect")


def norm_pad_video(
    x: torch.Tensor,
    eps: float | None = None,
    weight: torch.Tensor | None = None,
    factor: torch.Tensor | None = None,
    shift: torch.Tensor | None = None,
    act: str = "none",
    times: IntOrPair = 1,
    pad: IntOrPair = 0,
    edge: str = "replicate",
    lead: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """``cat([lead, pad(nearest(act(n * factor + shift)))])`` along time; n is the RMSNorm of ``x + bias`` over its
    channels, with ``weight``, or ``x + bias`` itself.

    Args:
        x: [B, C, T, H, W], float.
        eps: added to the mean square of a pixel's channels. None: no norm.
        weight: [C] or None (ones).
        factor, shift: [B or 1, C] or None (ones, zeros): a modulation, or what is left of a GroupNorm once its
            statistics are known.
        act: "none" or "silu".
        times: how often frames, rows and columns are repeated: one number for each, or for all.
        pad: six numbers, or one for all: frames in front and behind, rows above and below, columns left and right. Of
            frames, less than none are cut off.
        edge: what rows and columns are padded with, "replicate" or "reflect". Frames are always replicated.
        lead: [B, C, F, H', W'] in x's dtype, frames that come in front of all, or None.
        bias: [C] or None (zeros): of the convolution that made x.

    Returns:
        [B, C, F + T', H', W'] in x's dtype, its channels innermost. All is computed in float32 by an impl, and rounded
        once.

    Raises:
        ValueError: act or edge is none of the above.
    """
    if act not in ACTS or edge not in EDGES:
        raise ValueError(
            f"norm_pad_video: act is {act!r}, edge is {edge!r}, must be one of {', '.join(ACTS)} and of"
            f" {', '.join(EDGES)}"
        )
    times, pad = each(times, 3), each(pad, 6)
    x = x if bias is None else (x + bias.reshape(-1, 1, 1, 1)).to(x.dtype)
    out = x
    if eps is not None:
        wide = x.float() if x.dtype != torch.float64 else x
        out = (wide * torch.rsqrt(wide.square().mean(1, keepdim=True) + eps)).to(x.dtype)
    for vector, apply in ((weight, torch.mul), (factor, torch.mul), (shift, torch.add)):
        if vector is not None:
            out = apply(out, vector.reshape(-1, x.shape[1], 1, 1, 1)).to(x.dtype)
    if act == "silu":
        out = F.silu(out)
    for dim in range(3):
        out = _padded(out, dim + 2, times[dim], pad[2 * dim], pad[2 * dim + 1], edge if dim else "replicate")
    if lead is not None:
        out = torch.cat([lead, out], 2)
    return out.clone(memory_format=torch.channels_last_3d)


def _padded(x: torch.Tensor, dim: int, times: int, before: int, behind: int, edge: str) -> torch.Tensor:
    size = x.shape[dim] * times
    if times == 1 and before == behind == 0:
        return x
    place = torch.arange(-before, size + behind, device=x.device)
    if edge == "reflect":
        place = (size - 1) - ((size - 1) - place.abs()).abs()
    return x.index_select(dim, place.clamp(0, size - 1) // times)


def out_size(x: Sequence[int], times: IntOrPair, pad: IntOrPair) -> tuple[int, int, int]:
    """Frames, height and width of what comes of a video of this shape, without what leads it."""
    times, pad = each(times, 3), each(pad, 6)
    frames, height, width = (x[2 + dim] * times[dim] + pad[2 * dim] + pad[2 * dim + 1] for dim in range(3))
    return frames, height, width
