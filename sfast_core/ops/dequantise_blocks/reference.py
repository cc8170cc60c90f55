"""The meaning of ``dequantise_blocks`` in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

#: What the 4 bits of IQ4_NL and IQ4_XS stand for.
LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


class Kind(NamedTuple):
    """One of GGUF's types: a block of so many values lies in so many bytes."""

    values: int
    bytes: int


#: The types by their names in GGUF.
KINDS = {
    "BF16": Kind(1, 2),
    "Q4_0": Kind(32, 18),
    "Q4_1": Kind(32, 20),
    "Q5_0": Kind(32, 22),
    "Q5_1": Kind(32, 24),
    "Q8_0": Kind(32, 34),
    "IQ4_NL": Kind(32, 18),
    "Q2_K": Kind(256, 84),
    "Q3_K": Kind(256, 110),
    "Q4_K": Kind(256, 144),
    "Q5_K": Kind(256, 176),
    "Q6_K": Kind(256, 210),
    "IQ4_XS": Kind(256, 136),
}


def dequantise_blocks(
    data: torch.Tensor, kind: str, shape: Sequence[int], dtype: torch.dtype, computed_in: torch.dtype
) -> torch.Tensor:
    """The numbers that GGUF's blocks stand for.

    A block's values are ``scale * number``, or ``scale * number - least``, where scale and least are float16 times, in
    types with ``_K``, numbers of 4 to 8 bits for each 16 or 32 of the block's values (ggml's documentation has the
    layouts). Each of these steps is rounded to ``computed_in``, as a loader does that computes in it; BF16 is exact.

    Args:
        data: uint8, any shape: the blocks' bytes, one block after the other, contiguous.
        kind: one of :data:`KINDS`.
        shape: of the result.
        dtype: of the result: float16, bfloat16 or float32.
        computed_in: float16, bfloat16 or float32; each step is rounded to it.

    Returns:
        a contiguous tensor.

    Raises:
        ValueError: ``kind`` is unknown, or the blocks don't have as many values as ``shape``.
    """
    if kind not in KINDS:
        raise ValueError(f"dequantise_blocks: kind is {kind!r}, must be one of {', '.join(KINDS)}")
    values, size = KINDS[kind]
    count = 1
    for length in shape:
        count *= length
    if data.dtype != torch.uint8 or data.numel() * values != count * size:
        raise ValueError(
            f"dequantise_blocks: data is {data.dtype} {list(data.shape)}, must be uint8 and {count * size // values}"
            f" bytes for {kind} {list(shape)}"
        )
    blocks = data.reshape(-1, size)
    return _OF[kind](blocks, computed_in).to(dtype).reshape(tuple(shape))


def _half(blocks: torch.Tensor, begin: int, dtype: torch.dtype) -> torch.Tensor:
    """The float16 that begins at a byte, (blocks, 1)."""
    return blocks[:, begin : begin + 2].contiguous().view(torch.float16).to(dtype)


def _fours(packed: torch.Tensor) -> torch.Tensor:
    """The lower 4 bits of all bytes (..., n), then the upper ones: (..., 2 n), int8."""
    return torch.cat([packed & 15, packed >> 4], -1).to(torch.int8)


def _fifths(blocks: torch.Tensor, begin: int) -> torch.Tensor:
    """32 single bits out of 4 bytes, (blocks, 32), int8."""
    return torch.stack([(blocks[:, begin + place // 8] >> (place % 8)) & 1 for place in range(32)], -1).to(torch.int8)


def _shifted(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """Bytes (..., n) as 8 / bits rows of n numbers each, the lowest first: (..., 8 / bits, n), uint8."""
    return torch.stack([(packed >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)], -2)


def _sixes(scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """8 scales and 8 leasts of 6 bits each out of 12 bytes."""
    first, second, third = scales[:, 0:4], scales[:, 4:8], scales[:, 8:12]
    scale = torch.cat([first & 63, (third & 15) | ((first >> 6) << 4)], -1)
    least = torch.cat([second & 63, (third >> 4) | ((second >> 6) << 4)], -1)
    return scale, least


def _bf16(blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return blocks.contiguous().view(torch.bfloat16).to(torch.float32)


def _q4_0(blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return _half(blocks, 0, dtype) * (_fours(blocks[:, 2:]) - 8)


def _q4_1(blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return _half(blocks, 0, dtype) * _fours(blocks[:, 4:]) + _half(blocks, 2, dtype)


def _q5_0(blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return _half(blocks, 0, dtype) * ((_fours(blocks[:, 6:]) | (_fifths(blocks, 2) << 4)) - 16)


def _q5_1(blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return _half(blocks, 0, dtype) * (_fours(blocks[:, 8:]) | (_fifths(blocks, 4) << 4)) + _half(blocks, 2, dtype)


def _q8_0(blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return _half(blocks, 0, dtype) * blocks[:, 2:].contiguous().view(torch.int8)


def _iq4_nl(blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return _half(blocks, 0, dtype) * _levels(_fours(blocks[:, 2:]))


def _levels(numbers: torch.Tensor) -> torch.Tensor:
    return torch.tensor(LEVELS, dtype=torch.int8, device=numbers.device)[numbers.long()]


def _q2_k(blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    scales, numbers = blocks[:, 0:16], _shifted(blocks[:, 16:80].reshape(-1, 2, 32), 2).reshape(-1, 16, 16)
    scale = (_half(blocks, 80, dtype) * (scales & 15)).unsqueeze(-1)
    least = (_half(blocks, 82, dtype) * (scales >> 4)).unsqueeze(-1)
    return scale * numbers - least


def _q3_k(blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    high = _shifted(blocks[:, None, 0:32], 1).reshape(-1, 16, 16).to(torch.int8)
    numbers = _shifted(blocks[:, 32:96].reshape(-1, 2, 32), 2).reshape(-1, 16, 16).to(torch.int8) - ((1 - high) << 2)
    low = _fours(blocks[:, 96:104]).to(torch.uint8)
    scales = (low | (_shifted(blocks[:, None, 104:108], 2).reshape(-1, 16) << 4)).to(torch.int8) - 32
    return (_half(blocks, 108, dtype) * scales).unsqueeze(-1) * numbers


def _q4_k(blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    numbers = _shifted(blocks[:, 16:144].reshape(-1, 4, 32), 4).reshape(-1, 8, 32)
    return _of_sixes(blocks, numbers, dtype)


def _q5_k(blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    numbers = _shifted(blocks[:, 48:176].reshape(-1, 4, 32), 4).reshape(-1, 8, 32)
    return _of_sixes(blocks, numbers | (_shifted(blocks[:, None, 16:48], 1).reshape(-1, 8, 32) << 4), dtype)


def _of_sixes(blocks: torch.Tensor, numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    scale, least = _sixes(blocks[:, 4:16])
    return (_half(blocks, 0, dtype) * scale).unsqueeze(-1) * numbers - (_half(blocks, 2, dtype) * least).unsqueeze(-1)


def _q6_k(blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    low = _shifted(blocks[:, 0:128].reshape(-1, 2, 64), 4).reshape(-1, 16, 16)
    high = _shifted(blocks[:, 128:192].reshape(-1, 2, 32), 2).reshape(-1, 16, 16)
    scales = blocks[:, 192:208].contiguous().view(torch.int8)
    return (_half(blocks, 208, dtype) * scales).unsqueeze(-1) * ((low | (high << 4)).to(torch.int8) - 32)


def _iq4_xs(blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    low = _shifted(blocks[:, 4:8].unsqueeze(-1), 4).reshape(-1, 8)
    high = _shifted(blocks[:, 2:4].unsqueeze(-1), 2).reshape(-1, 8)
    scale = _half(blocks, 0, dtype) * ((low | (high << 4)).to(torch.int8) - 32)
    return scale.unsqueeze(-1) * _levels(_shifted(blocks[:, 8:136].reshape(-1, 8, 16), 4).reshape(-1, 8, 32))


_OF: dict[str, Callable[[torch.Tensor, torch.dtype], torch.Tensor]] = {
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "IQ4_NL": _iq4_nl,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_XS": _iq4_xs,
}
