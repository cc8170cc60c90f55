"""The meaning of ``add_layer_norm`` in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def add_layer_norm(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    x_bias: torch.Tensor | None = None,
    sum_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``s = x + x_bias + residual; n = (s - mean(s)) / sqrt(var(s) + eps) * weight + bias`` over the last dimension,
    and ``s + sum_bias``.

    Args:
        x: [..., C], float.
        residual: as x in shape and dtype, or None.
        weight: [C] or None (ones). Its dtype may differ from x's; the normalisation then runs in float32.
        bias: [C] or None (zeros), as ``weight``.
        eps: added to the (biased) variance.
        x_bias: [C] in x's dtype, the bias of the linear layer that made x, or None. Only with a residual.
        sum_bias: [C] in x's dtype, the bias of a linear layer to whose result the sum will be added, or None. Only with
            a residual.

    Returns:
        s + sum_bias, n: [..., C] in x's dtype, contiguous. s is rounded to that dtype before the statistics are taken;
        an impl rounds each of the two sums once. Where residual is None the first is x itself, whatever its strides.
    """
    if x_bias is not None:
        x = x + x_bias
    s = x if residual is None else (x + residual).contiguous()
    values = s
    if any(tensor is not None and tensor.dtype != s.dtype for tensor in (weight, bias)):
        values = s.float()
        weight, bias = (None if t is None else t.float() for t in (weight, bias))
    normed = F.layer_norm(values, values.shape[-1:], weight, bias, eps)
    return s if sum_bias is None else s + sum_bias, normed.to(s.dtype).contiguous()
