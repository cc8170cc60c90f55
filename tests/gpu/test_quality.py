"""A quality below exact on a GPU: products of 8 bits by kernels, in graphs, within the budget, and anew when weights
change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

import sfast_core
from sfast_core.weights.eight_bits import group_of
from tests.gpu.small_unet import DEVICE, unet

pytestmark = pytest.mark.gpu
# by name: they are too small to gain by it
CONFIG = sfast_core.CompileConfig(quality="near-exact", quality_layers=("*",))


def inputs(dtype: torch.dtype) -> tuple[Any, ...]:
    torch.manual_seed(1)
    return (
        torch.randn(2, 4, 32, 32, device=DEVICE, dtype=dtype),
        torch.tensor(500, device=DEVICE),
        torch.randn(2, 77, 128, device=DEVICE, dtype=dtype),
    )


def apart(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    return ((mine.double() - theirs.double()).norm() / theirs.double().norm()).item()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("sampling", [True, False])
def test_graphs_of_8_bits(dtype: torch.dtype, sampling: bool) -> None:
    net, given = unet(dtype), inputs(dtype)
    with torch.inference_mode():
        expected = net(*given).sample
        handle = sfast_core.compile(net, CONFIG)
        scope: Callable[[], Any] = handle.sampling if sampling else contextlib.nullcontext
        with scope():
            results = [handle(*given).sample for _ in range(4)]
        report = handle.engine.report
        (signature,) = report.signatures
        assert (
            report.calls["replayed"] == 3
            and signature.passes["eight_bits"] > 10
            and "reference" not in signature.impls["scaled_linear"]
        )
        assert apart(results[0], expected) < (1.5e-2 if dtype == torch.float16 else 5e-2)
        assert all(apart(result, results[0]) < 1e-3 for result in results)
        assert torch.equal(results[1], results[3]) and report.copied_bytes > 0
        for change in (lambda weight: weight.mul_(1.5), lambda weight: weight.data.mul_(0.5)):
            change(net.mid_block.attentions[0].transformer_blocks[0].ff.net[2].weight)
            with scope():
                after = handle(*given).sample
            assert apart(after, net.__class__.forward(net, *given).sample) < (
                1.5e-2 if dtype == torch.float16 else 5e-2
            )
        assert report.calls["traced"] == 1 and signature.captures == 1
        handle.uninstall()
        assert not handle.engine.store.copies.bytes


@pytest.mark.parametrize("rotate", [False, True])
def test_weights_are_quantised_by_the_kernel_as_they_mean(rotate: bool) -> None:
    from sfast_core.ops.quantise import quantise
    from sfast_core.ops.quantise.at_once import quantise_at_once

    weight = torch.randn(640, 1280, device=DEVICE, dtype=torch.float16)
    group = group_of(1280) if rotate else 0
    (q, s), (truth, scales) = quantise_at_once(weight, group), quantise(weight.cpu(), torch.int8, None, group)
    assert torch.allclose(s.cpu(), scales, rtol=1e-5) and (q.cpu().int() - truth.int()).abs().max() <= 1
