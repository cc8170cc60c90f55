"""The meaning of ``norm_rope`` in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def norm_rope(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    rotations: torch.Tensor | None,
    eps: float | None,
    behind: torch.Tensor | None = None,
    behind_weight: torch.Tensor | None = None,
    halves: bool = False,
    offset: float = 0.0,
) -> torch.Tensor:
    """``n = x / sqrt(mean(x^2) + eps) * weight`` over each head, the pairs ``(n[2i], n[2i + 1])`` then multiplied by
    the token's i-th matrix.

    Either may be left out; without both, two streams are joined.

    The rotary embedding of J. Su et al., "RoFormer" (2021), behind the RMSNorm of queries and keys.

    Args:
        x: [B, L, H, D], float.
        weight: [D] in x's dtype or float32, or None (ones); or [H * D], of H > 1: then the mean is taken over all heads
            of a token.
        rotations: [B or 1, L + L2, D / 2, 2, 2], float32 or in x's dtype:
            ``out[j] = sum over k of rotations[..., j, k] * n[2i + k]``; or [B or 1, L + L2, D / 2, 2], cosine and sine
            of the angle by which the pair is turned: the first column of its matrix. With a dimension H in front of
            D / 2, each head has its own. None: nothing is rotated.
        eps: added to the mean square; None: nothing is normalised, and there are no weights.
        behind: [B, L2, H, D] in x's dtype, the tokens that come behind x's, or None (L2 = 0).
        behind_weight: theirs, as ``weight``, and of its length.
        halves: the pairs are ``(n[i], n[i + D / 2])`` instead.
        offset: added to the weights: some models keep what they are more than 1.

    Returns:
        [B, L + L2, H, D] in x's dtype, contiguous. An impl rounds only this.
    """
    streams = [(x, weight)] if behind is None else [(x, weight), (behind, behind_weight)]
    normed = [tokens if eps is None else _normed(tokens, weight, eps, offset) for tokens, weight in streams]
    tokens = normed[0] if behind is None else torch.cat(normed, 1)
    if rotations is None:
        return tokens.contiguous()
    tokens = tokens.to(rotations.dtype)
    if are_angles(rotations, x.shape[-1]):
        cosines, sines = rotations.unbind(-1)
        rotations = torch.stack([cosines, -sines, sines, cosines], -1).unflatten(-1, (2, 2))
    pairs = tokens.unflatten(-1, (2, -1)).transpose(-1, -2) if halves else tokens.unflatten(-1, (-1, 2))
    turned = ((rotations if rotations.dim() == 6 else rotations[:, :, None]) * pairs[..., None, :]).sum(-1)
    return (turned.transpose(-1, -2) if halves else turned).flatten(-2).to(x.dtype).contiguous()


def are_angles(rotations: torch.Tensor, size: int) -> bool:
    """Whether ``rotations`` of heads of ``size`` are cosines and sines, not matrices."""
    return tuple(rotations.shape[-3:]) != (size // 2, 2, 2)


def _normed(tokens: torch.Tensor, weight: torch.Tensor | None, eps: float, offset: float) -> torch.Tensor:
    dtype, heads = tokens.dtype, tokens.shape[2:]
    if weight is not None and (offset or weight.dtype != dtype):
        wide = torch.promote_types(dtype, torch.float32)
        tokens, weight = tokens.to(wide), weight.to(wide) + offset
    if weight is not None and weight.shape != heads[1:]:
        return F.rms_norm(tokens.flatten(2), weight.shape, weight, eps).unflatten(-1, heads).to(dtype)
    return F.rms_norm(tokens, heads[1:], weight, eps).to(dtype)
