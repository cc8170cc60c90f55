"""How a GroupNorm is cut up for thread block clusters."""

from __future__ import annotations

import pytest
import torch

from sfast_core.ops.group_norm_act import OP
from sfast_core.ops.group_norm_act.cuda_cluster_impl import MOST_BLOCKS, OWN_BYTES, Tiling, tiling
from sfast_core.ops.packs import PACK_BYTES
from tests.targets import A100, H100

why_not = next(impl for impl in OP.impls if impl.name == "cuda_cluster").why_not


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((2, 320, 64, 64), Tiling(4, 8)),  # groups of 10: 4 are whole packs; 16 clusters
        ((2, 640, 32, 32), Tiling(2, 4)),
        ((2, 1280, 32, 32), Tiling(1, 2)),
        ((2, 2560, 8, 8), Tiling(1, 2)),
        ((2, 320, 128, 128), Tiling(4, 8)),
        ((2, 640, 128, 128), Tiling(2, 8)),  # busy at 4 blocks, which would need 320 KiB each
        ((16, 320, 8, 8), Tiling(4, 1)),
        ((2, 960, 128, 128), None),  # 480 KiB a block
        ((1, 128, 1024, 1024), None),
    ],
    ids=str,
)
def test_tiling(shape: tuple[int, int, int, int], expected: Tiling | None) -> None:
    batch, channels, height, width = shape
    assert tiling(batch, height * width, channels, 32, 2, H100) == expected


@pytest.mark.parametrize("positions", [1, 63, 100, 4096, 5000])
@pytest.mark.parametrize(("channels", "groups"), [(320, 32), (288, 32), (256, 8), (1280, 1), (96, 2), (8192, 2)])
def test_a_cut_is_whole_packs_that_fit(positions: int, channels: int, groups: int) -> None:
    if (found := tiling(1, positions, channels, groups, 2, H100)) is None:
        return
    width = found.groups * (channels // groups) * 2
    assert groups % found.groups == 0 and width % PACK_BYTES == 0 and found.blocks <= MOST_BLOCKS
    assert -(-positions // found.blocks) * width + OWN_BYTES <= H100.shared_memory_bytes


def test_it_says_what_it_does_not_take() -> None:
    image = torch.empty(2, 320, 64, 64, device="meta", dtype=torch.float16)
    assert "compute capability 9.0" in str(why_not(A100, image, 32, None, None, 1e-5))
    assert "not made of 8 channels each" in str(why_not(H100, image, 80, None, None, 1e-5))
    assert "not made of 8 channels each" in str(why_not(H100, image[:, :316], 31, None, None, 1e-5, tail=image[:, :25]))
    large = torch.empty(2, 960, 128, 128, device="meta", dtype=torch.float16)
    assert "doesn't fit" in str(why_not(H100, large, 32, None, None, 1e-5))
