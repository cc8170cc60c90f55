"""GGUF's blocks: what they stand for as ``gguf`` itself says, and a kernel with the reference's bits."""

from __future__ import annotations

import pytest
import torch

from sfast_core.ops.dequantise_blocks import dequantise_blocks
from sfast_core.ops.dequantise_blocks.reference import KINDS
from tests.ops.cases.dequantise_blocks import blocks

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
#: Triton's interpreter rounds to bfloat16 toward zero.
DTYPES = (torch.float16, torch.float32, *([torch.bfloat16] if CUDA else []))


@pytest.mark.parametrize("kind", KINDS)
def test_the_values_are_those_of_the_format(kind: str) -> None:
    gguf = pytest.importorskip("gguf.quants")
    kinds = pytest.importorskip("gguf.constants").GGMLQuantizationType
    data = blocks(kind, 9, DEVICE)
    shape = (3, 3 * KINDS[kind].values)
    theirs = torch.from_numpy(gguf.dequantize(data.cpu().numpy(), kinds[kind]).copy()).reshape(shape)
    mine = dequantise_blocks(data, kind, shape, torch.float32, torch.float32)
    assert mine.is_contiguous() and torch.allclose(mine.cpu(), theirs, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "BF16"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_kernel_has_the_bits_of_the_reference(kind: str, dtype: torch.dtype) -> None:
    pytest.importorskip("triton")
    from sfast_core.ops.dequantise_blocks import triton_impl

    data = blocks(kind, 131, DEVICE)
    shape = (131, KINDS[kind].values)
    for computed_in in DTYPES:
        mine, reference = (of(data, kind, shape, dtype, computed_in) for of in (triton_impl.launch, dequantise_blocks))
        if computed_in == torch.float32:  # a product and a difference may be rounded once
            assert torch.allclose(
                mine.float(), reference.float(), rtol=2e-3 if dtype != torch.float32 else 1e-6, atol=1e-7
            )
        else:
            assert torch.equal(mine, reference)


def test_blocks_that_are_not_of_the_shape_are_named() -> None:
    with pytest.raises(
        ValueError, match=r"data is torch.uint8 \[2, 144\], must be uint8 and 432 bytes for Q4_K \[3, 256\]"
    ):
        dequantise_blocks(torch.zeros(2, 144, dtype=torch.uint8), "Q4_K", (3, 256), torch.float16, torch.float16)
    with pytest.raises(ValueError, match="kind is 'Q9_K', must be one of BF16, Q4_0"):
        dequantise_blocks(torch.zeros(2, 144, dtype=torch.uint8), "Q9_K", (3, 256), torch.float16, torch.float16)
