"""How a convolution of the CUDA extension is cut: tiles, clusters, shared depths."""

from __future__ import annotations

import pytest

from sfast_core.ops.conv2d_act.tiling import MOST_BLOCKS, Convolution, Tiling, best_tiling, estimate_us, tilings

H100 = {1: 132, 2: 66, 3: 39, 4: 30, 5: 22, 6: 17, 7: 15, 8: 15}  # clusters that run at the same time, by their blocks


def same_size(images: int, side: int, channels: int, inputs: int) -> Convolution:
    """A 3x3 convolution of square images."""
    return Convolution(images * side * side, channels, 9, inputs // 64, 0, True)


def pick(convolution: Convolution) -> Tiling | None:
    return best_tiling(convolution, lambda tiling: H100[tiling.blocks], 132)


@pytest.mark.parametrize(
    ("convolution", "fastest"),
    [
        pytest.param(same_size(2, 128, 320, 320), Tiling(256, 160, 0, 1, 2, 1), id="sdxl-128"),
        pytest.param(same_size(2, 128, 320, 640), Tiling(256, 160, 0, 1, 2, 1), id="sdxl-128-deep"),
        pytest.param(same_size(2, 64, 640, 640), Tiling(256, 160, 0, 1, 2, 1), id="sdxl-64"),
        pytest.param(same_size(2, 32, 1280, 1280), Tiling(128, 160, 1, 1, 2, 1), id="sdxl-32"),
        pytest.param(same_size(2, 64, 320, 320), Tiling(128, 160, 1, 2, 1, 1), id="sd15-64"),
        pytest.param(same_size(2, 32, 640, 640), Tiling(128, 160, 1, 1, 1, 2), id="sd15-32"),
        pytest.param(same_size(2, 16, 1280, 1280), Tiling(128, 160, 1, 1, 2, 3), id="sd15-16"),
        pytest.param(same_size(2, 8, 1280, 1280), Tiling(128, 160, 0, 1, 1, 8), id="sd15-8"),
        pytest.param(same_size(1, 256, 512, 512), Tiling(256, 128, 0, 1, 2, 1), id="vae-256"),
    ],
)
def test_picks_what_was_fastest_on_an_h100(convolution: Convolution, fastest: Tiling) -> None:
    assert pick(convolution) == fastest


def test_takes_narrow_tiles_where_wide_ones_would_be_half_empty() -> None:
    chosen = pick(same_size(1, 512, 256, 256))
    assert chosen is not None and chosen.columns == 128


def test_fewer_clusters_than_wanted_are_not_taken_for_as_many() -> None:
    """Of clusters of four 30 run at once: 32 of them would take two rounds."""
    convolution = same_size(2, 32, 1280, 1280)
    four = Tiling(128, 160, 0, 2, 2, 1)
    assert four.clusters(convolution.pixels, convolution.channels) == 32
    assert estimate_us(four, convolution, 30, 132) > 1.5 * estimate_us(four, convolution, 32, 132)
    chosen = pick(convolution)
    assert chosen is not None and chosen.blocks < 4


def test_every_tiling_is_one_that_the_kernels_take() -> None:
    for convolution in (same_size(1, 24, 8, 64), same_size(2, 64, 320, 1920), Convolution(600, 640, 1, 1, 0, False)):
        for tiling in tilings(convolution):
            assert 1 <= tiling.blocks <= MOST_BLOCKS
            assert tiling.splits == 1 or tiling.rows == 128
            parts = convolution.depth_blocks * (1 if tiling.window else convolution.taps)
            assert tiling.splits <= parts
            assert not tiling.window or convolution.same_size


def test_a_shortcut_is_further_depth() -> None:
    """It takes time however the convolution is cut; and the fastest cut may be another, since blocks don't share its
    pixels with a window.
    """
    plain = same_size(2, 32, 1280, 1280)
    with_shortcut = plain._replace(shortcut_blocks=20)
    for tiling in tilings(plain):
        if tiling.blocks in H100:
            more = estimate_us(tiling, with_shortcut, H100[tiling.blocks], 132) - estimate_us(
                tiling, plain, H100[tiling.blocks], 132
            )
            assert more > 0
    assert pick(plain) == Tiling(128, 160, 1, 1, 2, 1) and pick(with_shortcut) == Tiling(128, 160, 1, 2, 1, 1)


def test_none_where_nothing_fits() -> None:
    assert best_tiling(same_size(2, 32, 640, 640), lambda tiling: 0, 132) is None
