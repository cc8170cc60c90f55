"""The meaning of ``conv2d_act`` in plain PyTorch: of images, and of videos."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from ..packs import INNERMOST

IntOrPair = int | Sequence[int]  #: of a video one for each of three

_ACTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda x: x,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}
ACTS = tuple(_ACTS)


def conv2d_act(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: IntOrPair = 1,
    padding: IntOrPair = 0,
    dilation: IntOrPair = 1,
    groups: int = 1,
    residual: torch.Tensor | None = None,
    act: str = "none",
    channel_add: torch.Tensor | None = None,
) -> torch.Tensor:
    """``act(conv2d(x, weight) + bias + channel_add[:, :, None, None] + residual)``; of a video conv3d.

    Args:
        x: [B, C, H, W], float, or [B, C, T, H, W].
        weight: [O, C / groups, R, S], dtype as x, or [O, C / groups, Q, R, S].
        bias: [O] or None, dtype as x.
        stride, padding, dilation: an int, or one int each for height and width, and before these for time.
        groups: of channels.
        residual: [B, O, H', W'] or [B, O, T', H', W'] or None, dtype as x.
        act: "none", "silu", "gelu", "gelu_tanh" or "relu".
        channel_add: [B, O] or [1, O] or None, dtype as x: the timestep embedding of a residual block.

    Returns:
        [B, O, H', W'] or [B, O, T', H', W'] in x's dtype, its channels innermost if x's are, otherwise contiguous.

    Raises:
        ValueError: act is none of the above.
    """
    if act not in _ACTS:
        raise ValueError(f"conv2d_act: act is {act!r}, must be one of {', '.join(ACTS)}")
    count = x.dim() - 2
    where = padding if isinstance(padding, str) else each(padding, count)
    out = (F.conv3d if count == 3 else F.conv2d)(
        x, weight, bias, each(stride, count), where, each(dilation, count), groups
    )
    if channel_add is not None:
        out = out + channel_add.reshape(*channel_add.shape, *[1] * (x.dim() - 2))
    if residual is not None:
        out = out + residual
    return _ACTS[act](out).contiguous(memory_format=memory_format_of(x))


def memory_format_of(x: torch.Tensor) -> torch.memory_format:
    """channels_last, channels_last_3d or contiguous_format: the layout of x, and so of the result."""
    innermost = INNERMOST.get(x.dim(), torch.contiguous_format)
    return innermost if x.is_contiguous(memory_format=innermost) else torch.contiguous_format


def each(value: IntOrPair, count: int) -> tuple[int, ...]:
    """``value`` for each of ``count`` dimensions."""
    if isinstance(value, int):
        return (value,) * count
    return tuple(int(item) for item in value) if len(value) == count else (int(value[0]),) * count


def pair(value: IntOrPair) -> tuple[int, int]:
    """``value`` for height and for width."""
    if isinstance(value, int):
        return value, value
    first, *rest = value
    return int(first), int(rest[0] if rest else first)


def out_size(x: Sequence[int], weight: Sequence[int], stride: IntOrPair, padding: IntOrPair) -> tuple[int, int]:
    """Height and width of the result of an image and a weight of these shapes, without dilation."""
    height, width = ((x[2 + i] + 2 * pair(padding)[i] - weight[2 + i]) // pair(stride)[i] + 1 for i in range(2))
    return height, width
