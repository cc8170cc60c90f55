"""Which tile the persistent GEMM of GEGLU takes."""

from __future__ import annotations

import pytest

pytest.importorskip("triton.tools.tensor_descriptor", reason="needs Triton 3.4 or newer")

from sfast_core.ops.linear.triton_tma_impl import choose

H100 = (132, 232448)  # multiprocessors, bytes of shared memory


@pytest.mark.parametrize(
    ("rows", "inner", "tile"),
    [
        pytest.param(8192, 2560, (128, 128), id="sdxl-64"),
        pytest.param(2048, 2560, (128, 64), id="sd15-32"),
        pytest.param(512, 5120, (128, 64), id="sd15-16"),
        pytest.param(192, 5120, (128, 128), id="few-rows"),
        pytest.param(832, 5120, (128, 64), id="a-smaller-one-would-save-4-percent"),
    ],
)
def test_a_smaller_tile_is_taken_where_it_is_worth_its_compilation(
    rows: int, inner: int, tile: tuple[int, int]
) -> None:
    chosen = choose(rows, inner, *H100)
    assert (chosen.rows, chosen.cols) == tile
