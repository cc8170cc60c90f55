"""What the CUDA kernel of attention takes, that it is asked of the library last, and how a tensor is handed to TMA."""

from __future__ import annotations

import pytest
import torch

from sfast_core.native import load
from sfast_core.ops.attention import OP, cuda_impl
from sfast_core.ops.attention.reference import attention
from sfast_core.ops.attention.tiling import WARPGROUPS, Tiling
from sfast_core.target import Target
from tests.targets import B200, H100


def heads(tokens: int = 4096, head: int = 40, dtype: torch.dtype = torch.float16, count: int = 8) -> torch.Tensor:
    return torch.empty(2, tokens, count, head, dtype=dtype, device="meta").transpose(1, 2)


def reason(target: Target, q: torch.Tensor, k: torch.Tensor, **options: object) -> str | None:
    (impl,) = [impl for impl in OP.impls if impl.name == "cuda"]
    return impl.why_not(target, q, k, k, **options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("head", [40, 64])
@pytest.mark.parametrize(("queries", "keys"), [(4096, 4096), (1, 129), (5785, 333)])
def test_it_takes_narrow_heads(asked: list[str], dtype: torch.dtype, head: int, queries: int, keys: int) -> None:
    assert reason(H100, heads(queries, head, dtype), heads(keys, head, dtype), scale=0.2) is None
    assert asked == ["sfast_attention_status"]


@pytest.mark.parametrize(
    ("target", "q", "k", "options", "expected"),
    [
        (B200, heads(), heads(), {}, "is for compute capability 9.0, this is 10.0"),
        (H100, heads(head=80), heads(head=80), {}, "head size 80 is not one of (40, 64)"),
        (H100, heads(), heads(77), {}, "77 keys are fewer than 129"),
        (H100, heads(), heads(), {"scale": 0.0}, "scale is 0.0, must be positive"),
        (H100, heads(), heads(), {"is_causal": True}, "causal attention is not supported"),
        (H100, heads(count=40000), heads(count=40000), {}, "batch x heads is 80000, more than 65535"),
        (H100, heads(dtype=torch.float32), heads(dtype=torch.float32), {}, "q, k and v are float32, float32, float32"),
        (
            H100,
            torch.empty(2, 8, 300, 44, dtype=torch.float16, device="meta")[..., :40],
            heads(),
            {},
            "q's rows are not 16-byte aligned",
        ),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_it_says_what_it_does_not_take(
    asked: list[str], target: Target, q: torch.Tensor, k: torch.Tensor, options: dict[str, object], expected: str
) -> None:
    assert (reason(target, q, k, **options) or "").startswith(f"cuda: {expected}")
    assert not asked


def test_rows_are_copied_only_where_tma_can_not_read_them() -> None:
    packed = torch.randn(2, 6, 3, 4, 40, dtype=torch.float16)
    q = packed[:, :, 1].transpose(1, 2)
    assert cuda_impl._rows(q) is q and list(cuda_impl._strides(q)) == [480, 40, 2880]
    for other in (q.expand(2, 4, 6, 40)[:, :, :1].expand(2, 4, 6, 40), q.transpose(2, 3).contiguous().transpose(2, 3)):
        copy = cuda_impl._rows(other)
        assert torch.equal(copy, other) and list(cuda_impl._strides(copy)) == [160, 40, 960]


def test_the_stride_of_one_row_head_or_image_is_made_up() -> None:
    one = torch.empty_strided((1, 1, 7, 40), (3, 5, 40, 1), dtype=torch.float16)
    assert list(cuda_impl._strides(one)) == [40, 40, 40]


@pytest.mark.gpu
@pytest.mark.parametrize("head", WARPGROUPS)
@pytest.mark.parametrize("queries", [1024, 1001, 1090])
def test_rows_have_the_same_bits_however_they_are_cut(head: int, queries: int) -> None:
    """Tall and low tiles, as many rounds of either as come; a row's keys are taken in one order."""
    if reason := load.why_not(torch.device("cuda"), "sfast_attention_status"):
        pytest.skip(reason)
    heads = 30  # enough for three rounds of low tiles
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(2, tokens, heads, head, device="cuda", dtype=torch.float16).transpose(1, 2)
        for tokens in (queries, 333, 333)
    )
    high, low = WARPGROUPS[head] * 64, (WARPGROUPS[head] - 1) * 64
    tall = cuda_impl.launch_tiled(Tiling(60, -(-queries // high)), q, k, v)
    expected = attention(q.float(), k.float(), v.float())
    assert (tall.float() - expected).norm() < 6e-4 * expected.norm()
    mixed = [(count, -(-max(queries - count * high, 0) // low)) for count in range(queries // high + 1)]
    for first in mixed:
        for rest in mixed:
            for split in (1, 23, 60):
                tiling = Tiling(split, *first, *rest)
                assert torch.equal(cuda_impl.launch_tiled(tiling, q, k, v), tall), tiling


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float16, 6e-4), (torch.bfloat16, 5e-3)], ids=str)
@pytest.mark.parametrize("head", WARPGROUPS)
@pytest.mark.parametrize(
    ("heads", "queries", "keys", "paired"),
    [(3, 1, 129, 0), (3, 65, 128, 0), (3, 65, 1, 0), (25, 1001, 1100, 36), (25, 1001, 129, 36)],
    ids=["one query", "one tile of keys", "one key", "pairs behind whole rounds", "a pair's second block with one key"],
)
def test_it_computes_attention_at_the_ends(
    dtype: torch.dtype, limit: float, head: int, heads: int, queries: int, keys: int, paired: int
) -> None:
    if reason := load.why_not(torch.device("cuda"), "sfast_attention_status"):
        pytest.skip(reason)
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(2, tokens, heads, head, device="cuda", dtype=dtype).transpose(1, 2)
        for tokens in (queries, keys, keys)
    )
    tiling = Tiling(2 * heads, -(-queries // (WARPGROUPS[head] * 64)), paired=paired)
    expected = attention(q.float(), k.float(), v.float())
    found = cuda_impl.launch_tiled(tiling, q, k, v)
    assert (found.float() - expected).norm() < limit * expected.norm()
    assert torch.equal(found, cuda_impl.launch_tiled(tiling, q, k, v))
