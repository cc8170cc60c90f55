"""What the launches of both Triton GroupNorms are told of the image, its addend and its result."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from ...target import Target
from ..packs import contiguous
from ..spec import Arguments
from .constraints import why_not_arguments
from .reference import channels_of

MAX_GROUP_CHANNELS = 2048


class Image(NamedTuple):
    """What is normalised: x and, behind its channels, those of tail. Both channels_last."""

    x: torch.Tensor
    tail: torch.Tensor | None = None

    @classmethod
    def of(cls, x: torch.Tensor, tail: torch.Tensor | None) -> Image:
        """Both channels_last, copied only where they are not."""
        return cls(*(None if t is None else t.contiguous(memory_format=torch.channels_last) for t in (x, tail)))

    @property
    def tail_channels(self) -> int:
        """How many channels are the tail's."""
        return self.channels - self.x.shape[1]

    @property
    def channels(self) -> int:
        """How many channels there are in all."""
        return channels_of(self.x, self.tail)

    @property
    def rows(self) -> int:
        """How many pixels there are."""
        return self.x.shape[2] * self.x.shape[3]

    @property
    def pointers(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What the kernels are told of the tensors: any tail where there is none."""
        return self.x, self.x if self.tail is None else self.tail

    @property
    def alignment(self) -> int:
        """8, or the largest divisor of 8 that divides both tensors' channels."""
        return math.gcd(self.x.shape[1], self.tail_channels, 8)


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why neither can compute this, or None."""
    if reason := why_not_arguments(call):
        return reason
    channels = channels_of(call.x, call.tail)
    if channels // call.num_groups > MAX_GROUP_CHANNELS:
        return f"groups of {channels // call.num_groups} channels are larger than {MAX_GROUP_CHANNELS}"
    if call.x.shape[0] > 65535:
        return f"a batch of {call.x.shape[0]} is larger than 65535"
    if call.x.shape[2] * call.x.shape[3] >= 2**31 - 2**16:
        return f"images of {call.x.shape[2]} x {call.x.shape[3]} are too large"
    return None


class Launch(NamedTuple):
    """The arguments of a launch as the kernels take them, and where the result goes."""

    image: Image
    weight: torch.Tensor | None
    bias: torch.Tensor | None
    #: [B or 1, C], each row dense: rows may lie apart, as slices of one packed projection do
    channel_add: torch.Tensor | None
    out: torch.Tensor  #: [B, C, H, W], channels_last

    @classmethod
    def of(
        cls,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        channel_add: torch.Tensor | None,
        tail: torch.Tensor | None,
    ) -> Launch:
        """These arguments, copied only where they lie otherwise."""
        image = Image.of(x, tail)
        out = torch.empty(
            (x.shape[0], image.channels, *x.shape[2:]),
            dtype=x.dtype,
            device=x.device,
            memory_format=torch.channels_last,
        )
        weight, bias = contiguous(weight, bias)
        if channel_add is not None and channel_add.stride(1) != 1:
            channel_add = channel_add.contiguous()
        return cls(image, weight, bias, channel_add, out)

    def result(self, x: torch.Tensor) -> torch.Tensor:
        """The result, laid out as ``x`` was given."""
        channels_last = x.is_contiguous(memory_format=torch.channels_last)
        return self.out if channels_last else self.out.contiguous()


def addend(x: torch.Tensor, channel_add: torch.Tensor | None) -> tuple[torch.Tensor, int, int]:
    """Of channel_add: a tensor (any, where there is none), its rows, and the elements from one to the next.

    0 elements where all images share a row.
    """
    if channel_add is None:
        return x, 0, 0
    return channel_add, channel_add.shape[0], 0 if channel_add.shape[0] == 1 else channel_add.stride(0)
