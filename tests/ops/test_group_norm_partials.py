"""The two kernels of the Triton GroupNorm, one by one and on small images: the cut of the work, the statistics, the
result.
"""

from __future__ import annotations

import pytest
import torch

from sfast_core.ops.group_norm_act import group_norm_act

triton_two_impl = pytest.importorskip("sfast_core.ops.group_norm_act.triton_two_impl", reason="needs Triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# batch, channels, groups, height, width
IMAGES = {
    "c1": (1, 70, 70, 9, 8),
    "c4": (1, 128, 32, 9, 8),
    "c7-odd": (1, 21, 3, 13, 11),
    "c10": (2, 160, 16, 9, 8),
    "c20": (1, 160, 8, 9, 9),
    "c30": (1, 120, 4, 7, 10),
    "c40": (1, 160, 4, 6, 11),
    "c60": (1, 240, 4, 5, 14),
    "c80": (1, 240, 3, 5, 13),
    "one-group": (1, 300, 1, 6, 7),
    "one-chunk": (1, 64, 4, 3, 3),
    "three-chunks": (1, 32, 2, 20, 30),
}


def _image(name: str, mean: float = 0.5, std: float = 1.5) -> tuple[torch.Tensor, int]:
    batch, channels, groups, height, width = IMAGES[name]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, channels, height, width, generator=generator) * std + mean
    return x.to(DEVICE).contiguous(memory_format=torch.channels_last), groups


def _channel_add(x: torch.Tensor) -> torch.Tensor:
    return torch.randn(x.shape[:2], generator=torch.Generator().manual_seed(1)).to(DEVICE)


@pytest.mark.parametrize("add", [False, True], ids=["plain", "add"])
@pytest.mark.parametrize("name", IMAGES)
def test_statistics(name: str, add: bool) -> None:
    """Each chunk's mean and sum of squared deviations are those of its rows; the chunks cover the image."""
    x, groups = _image(name)
    channel_add = _channel_add(x) if add else None
    partials = triton_two_impl.statistics(triton_two_impl.Image(x), groups, channel_add)
    values = x.double() if channel_add is None else x.double() + channel_add.double()[:, :, None, None]
    rows = values.flatten(2).unflatten(1, (groups, -1)).permute(0, 1, 3, 2)  # [B, G, HW, C / G]
    chunks = rows.split(partials.chunk_rows, dim=2)
    assert partials.mean.shape == partials.m2.shape == (x.shape[0], groups, len(chunks))
    for index, chunk in enumerate(chunks):
        mean = chunk.mean((2, 3))
        m2 = (chunk - mean[:, :, None, None]).square().sum((2, 3))
        torch.testing.assert_close(partials.mean[..., index].double(), mean, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(partials.m2[..., index].double(), m2, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", IMAGES)
def test_apply(name: str) -> None:
    """Given the statistics, ``apply`` computes the op."""
    x, groups = _image(name)
    channel_add = _channel_add(x)
    weight, bias = channel_add[0] + 1.0, channel_add[0].flip(0)
    out = torch.empty_like(x)
    partials = triton_two_impl.statistics(triton_two_impl.Image(x), groups, channel_add)
    triton_two_impl.apply(triton_two_impl.Image(x), groups, weight, bias, 1e-5, "silu", channel_add, partials, out)
    truth = group_norm_act(x.double(), groups, weight.double(), bias.double(), 1e-5, "silu", channel_add.double())
    torch.testing.assert_close(out.double(), truth, rtol=1e-5, atol=1e-5)


def test_apply_several_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of ``apply`` that takes several tiles of rows, the last of them not full."""
    monkeypatch.setattr(triton_two_impl, "APPLY_PROGRAMS", 3)
    x, groups = _image("three-chunks")
    out = torch.empty_like(x)
    triton_two_impl.apply(
        triton_two_impl.Image(x),
        groups,
        None,
        None,
        1e-5,
        "none",
        None,
        triton_two_impl.statistics(triton_two_impl.Image(x), groups, None),
        out,
    )
    torch.testing.assert_close(out.double(), group_norm_act(x.double(), groups, None, None, 1e-5), rtol=1e-5, atol=1e-5)


def test_statistics_far_from_zero() -> None:
    """A mean of 10,000 standard deviations leaves the variance its digits: float32 rounds the mean to 3e-4, 6e-4 of a
    deviation.
    """
    x, groups = _image("three-chunks", mean=5000.0, std=0.5)
    partials = triton_two_impl.statistics(triton_two_impl.Image(x), groups, None)
    variance = x.double().unflatten(1, (groups, -1)).flatten(2).var(2, correction=0)
    chunk_variance = partials.m2.double().sum(2) / (x.shape[1] // groups * x.shape[2] * x.shape[3])
    torch.testing.assert_close(chunk_variance, variance, rtol=2e-2, atol=0.0)


@pytest.mark.parametrize(
    "group_channels", [1, 2, 3, 4, 5, 7, 8, 10, 15, 16, 20, 30, 40, 60, 80, 90, 120, 160, 640, 2047, 2048]
)
@pytest.mark.parametrize("groups", [1, 3, 16, 32])
@pytest.mark.parametrize("rows", [1, 64, 4097, 1 << 20])
def test_tiling(group_channels: int, groups: int, rows: int) -> None:
    """Blocks hold whole groups, chunks cover the rows, and there are no more of them than ``apply`` reads."""
    for batch in (1, 2, 9):
        tiling = triton_two_impl.tiling(batch, groups * group_channels, groups, rows)
        assert 1 <= tiling.block_groups <= groups
        assert tiling.block_groups * group_channels <= tiling.block_c <= triton_two_impl.STATISTICS_ELEMENTS
        assert 1 <= tiling.chunks <= triton_two_impl.MAX_CHUNKS
        assert (tiling.chunks - 1) * tiling.chunk_rows < rows <= tiling.chunks * tiling.chunk_rows


@pytest.mark.parametrize("channels", [320, 640, 960, 1280, 1920, 2560])
def test_tiling_is_aligned(channels: int) -> None:
    """At the models' channel counts every block starts at a multiple of 8 channels, so that loads are 16 bytes wide."""
    tiling = triton_two_impl.tiling(2, channels, 32, 64 * 64)
    assert tiling.block_groups * (channels // 32) % 8 == 0


def test_tiling_of_one_large_image() -> None:
    """The VAE's last blocks, 128 channels of one image, still occupy a large GPU."""
    tiling = triton_two_impl.tiling(1, 128, 32, 1 << 20)
    assert -(-32 // tiling.block_groups) * tiling.chunks >= 256
