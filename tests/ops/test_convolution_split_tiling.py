"""How convolutions of small images are split: all of the depth is summed, once,
by programs that the GPU has room for.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from sfast_core.ops.conv2d_act import OP
from sfast_core.target import Target

impl = pytest.importorskip("sfast_core.ops.conv2d_act.triton_split_impl", reason="needs Triton")
H100 = (132, 232448)


@pytest.mark.parametrize(
    ("pixels", "inputs", "taps"), [*itertools.product((1, 64, 128, 200, 512), (64, 320, 640, 1280, 2560), (1, 9, 15))]
)
def test_every_step_has_one_split(pixels: int, inputs: int, taps: int) -> None:
    plan = impl.tiling(pixels, 1280, inputs, taps, *H100)
    steps = taps * inputs // plan.depth
    assert steps * plan.depth == taps * inputs and plan.splits <= impl.MOST_SPLITS
    assert (plan.splits - 1) * plan.steps < steps <= plan.splits * plan.steps
    tiles = -(-pixels // impl.ROWS) * -(-1280 // impl.COLS)
    assert plan.splits == 1 or plan.splits * tiles <= H100[0]


def test_the_shape_that_was_measured() -> None:
    assert impl.tiling(128, 1280, 1280, 9, *H100) == impl.Tiling(depth=128, splits=6, steps=15, stages=4)


def test_less_shared_memory_holds_fewer_stages() -> None:
    # an A100
    assert impl.tiling(128, 1280, 1280, 9, 108, 166912) == impl.Tiling(depth=128, splits=5, steps=18, stages=3)
    # an RTX 4090
    assert impl.tiling(128, 1280, 1280, 9, 128, 101376) == impl.Tiling(depth=64, splits=6, steps=30, stages=4)
    assert impl.tiling(128, 1280, 1280, 9, 128, 65536) is None  # too few stages fit
    assert impl.tiling(128, 1280, 96, 9, *H100) is None  # no tile divides 96


def test_larger_images_are_left_to_cudnn() -> None:
    target = Target(torch.device("cuda", 0), "everything", (9, 0), *H100, triton=True)
    weight, bias = (torch.empty(size, dtype=torch.float16, device="meta") for size in ((1280, 1280, 3, 3), (1280,)))
    for size, said in ((8, None), (9, "pixels, more than 128")):
        x = torch.empty(2, 1280, size, size, dtype=torch.float16, device="meta")
        reason = next(each for each in OP.impls if each.name == "triton_split").why_not(target, x, weight, bias, 1, 1)
        assert reason is None if said is None else said in reason
