"""The parts of ``upsample_conv2d``: the phases' weights, the image put together, and what cuDNN is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from sfast_core.ops.conv2d_act import cudnn_plans
from sfast_core.ops.conv2d_act.cudnn_plans import Geometry
from sfast_core.ops.upsample_conv2d import upsample_conv2d
from sfast_core.ops.upsample_conv2d.constraints import why_not_shapes

phases = pytest.importorskip("sfast_core.ops.upsample_conv2d.phases", reason="needs Triton")
triton_impl = pytest.importorskip("sfast_core.ops.upsample_conv2d.triton_impl", reason="needs Triton")
cudnn_impl = pytest.importorskip("sfast_core.ops.upsample_conv2d.cudnn_impl", reason="needs Triton")

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
# Triton's interpreter rounds to bfloat16 toward zero.
DTYPES = (torch.float16, torch.float32, *((torch.bfloat16,) if CUDA else ()))


def normal(*shape: int, dtype: torch.dtype = torch.float32, channels_last: bool = True, seed: int = 0) -> torch.Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)
    return values.contiguous(memory_format=torch.channels_last) if channels_last and len(shape) == 4 else values


@pytest.fixture(autouse=True)
def _exact_float32() -> Iterator[None]:
    """No TF32 in PyTorch's convolutions."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("outputs, channels", [(24, 16), (33, 72), (1, 1), (5, 200)])
def test_weights_are_sums_of_taps_rounded_once(outputs: int, channels: int, dtype: torch.dtype, channels_last: bool) -> None:
    weight = normal(outputs, channels, 3, 3, dtype=dtype, channels_last=channels_last)
    got = phases.phase_weights(weight)
    assert got.shape == (2, 2, outputs, channels, 2, 2) and got.dtype == dtype
    summed = [(0,), (1, 2)], [(0, 1), (2,)]  # in each phase, by row or column of its weight
    for i, j in phases.PHASES:
        assert got[i, j].is_contiguous(memory_format=torch.channels_last)
        for r, taps_of_row in enumerate(summed[i]):
            for c, taps_of_column in enumerate(summed[j]):
                exact = sum(weight[:, :, row, column].double() for row in taps_of_row for column in taps_of_column)
                tolerance = {torch.float16: 2**-11, torch.bfloat16: 2**-8, torch.float32: 2**-23}[dtype] * 1.01
                # Where terms cancel in float32, what is lost is relative to them.
                torch.testing.assert_close(got[i, j, :, :, r, c].double(), exact, rtol=tolerance, atol=2e-6)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("margin", [0, 1])
@pytest.mark.parametrize("shape", [(2, 24, 5, 7), (1, 72, 1, 1), (3, 1, 4, 2), (2, 130, 3, 1)])
def test_the_image_is_put_together(shape: tuple[int, int, int, int], margin: int, bias: bool) -> None:
    """From dense results, and from parts of larger ones that begin elsewhere."""
    batch, channels, height, width = shape
    results = []
    for index, (i, j) in enumerate(phases.PHASES):
        larger = normal(batch, channels, height + margin, width + margin, seed=index)
        results.append(larger[:, :, i * margin :, j * margin :][:, :, :height, :width])
    shift = normal(channels, seed=9) if bias else None
    out = torch.full((batch, channels, 2 * height, 2 * width), torch.nan, device=DEVICE).contiguous(memory_format=torch.channels_last)
    phases.interleave(results, shift, out)
    for (i, j), result in zip(phases.PHASES, results, strict=True):
        assert torch.equal(out[:, :, i::2, j::2], result if shift is None else result + shift[:, None, None])


@pytest.mark.gpu
@pytest.mark.slow
def test_an_image_of_more_than_2_31_elements() -> None:
    results = [torch.randn((1, 4104, 8192, 16), dtype=torch.float16, device=DEVICE).permute(0, 3, 1, 2) for _ in phases.PHASES]
    out = torch.empty((1, 16, 8208, 16384), dtype=torch.float16, device=DEVICE, memory_format=torch.channels_last)
    assert out.numel() > 2**31
    phases.interleave(results, None, out)
    for (i, j), result in zip(phases.PHASES, results, strict=True):
        assert torch.equal(out[:, :, i::2, j::2], result)


def test_nothing_is_kept_of_a_weight() -> None:
    """Who writes to it in place reaches the next launch."""
    x, weight, bias = normal(1, 16, 4, 4), normal(8, 16, 3, 3), normal(8)
    triton_impl.launch(x, weight, bias)
    weight.mul_(-2)
    torch.testing.assert_close(triton_impl.launch(x, weight, bias), upsample_conv2d(x, weight, bias), rtol=1e-4, atol=1e-4)


def test_no_image_at_all() -> None:
    out = triton_impl.launch(normal(0, 16, 4, 3), normal(8, 16, 3, 3), None)
    assert out.shape == (0, 8, 8, 6)


X, WEIGHT, BIAS = (2, 16, 4, 4), (8, 16, 3, 3), (8,)


@pytest.mark.parametrize(
    "x, weight, bias, reason",
    [
        (X, WEIGHT, BIAS, None),
        (X, WEIGHT, None, None),
        ((16, 4, 4), WEIGHT, BIAS, "x is 3-D, must be 4-D"),
        (X, (8, 16, 1, 1), BIAS, "weight is [8, 16, 1, 1], must be [outputs, 16, 3, 3]"),
        (X, (8, 4, 3, 3), BIAS, "weight is [8, 4, 3, 3], must be [outputs, 16, 3, 3]"),
        (X, (8, 16, 3), BIAS, "weight is [8, 16, 3], must be [outputs, 16, 3, 3]"),
        (X, WEIGHT, (4,), "bias is [4], must be [8]"),
        ((2, 16, 32768, 32768), WEIGHT, BIAS, "2 images of 32768 x 32768 are too many pixels"),
    ],
)
def test_what_is_no_3x3_convolution_of_an_image(x: Any, weight: Any, bias: Any, reason: str | None) -> None:
    tensors = [None if shape is None else torch.empty(shape, device="meta") for shape in (x, weight, bias)]
    assert why_not_shapes(*tensors) == reason


def test_dtypes_are_alike() -> None:
    x, weight = torch.empty(X, device="meta"), torch.empty(WEIGHT, device="meta", dtype=torch.float16)
    assert why_not_shapes(x, weight, None) == "weight is float16, x is float32"


# -- cuDNN, without it -------------------------------------------------------------------------------------------------------


class FakePlans:
    """Computes what a geometry means, in PyTorch."""

    def __init__(self) -> None:
        self.asked: list[Geometry] = []

    def run(self, geometry: Geometry, rank: int, operands: dict[str, torch.Tensor]) -> None:
        x, weight, out = operands["x"], operands["weight"], operands["out"]
        assert (tuple(x.shape), tuple(weight.shape), tuple(out.shape), rank) == (geometry.x, geometry.weight, geometry.out, 0)
        assert all(operands[name].is_contiguous(memory_format=torch.channels_last) for name in ("x", "weight"))
        if geometry.out_strides is None:
            assert out.is_contiguous(memory_format=torch.channels_last)
        else:
            assert tuple(out.stride()) == geometry.out_strides
        (top, left), (bottom, right) = geometry.paddings
        out.copy_(F.conv2d(F.pad(x, (left, right, top, bottom)), weight, operands["bias"], geometry.stride, 0, geometry.dilation))
        self.asked.append(geometry)


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("size", [(6, 5), (1, 4), (3, 1), (1, 1)])
@pytest.mark.parametrize("launch", ["launch", "launch_dense"])
def test_cudnn_pads_each_phase_as_it_needs_and_writes_it_to_its_place(
    launch: str, size: tuple[int, int], channels_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = FakePlans()
    monkeypatch.setattr(cudnn_impl, "plans", lambda: plans)
    x, weight, bias = normal(2, 16, *size, channels_last=channels_last), normal(8, 16, 3, 3), normal(8)
    out, expected = getattr(cudnn_impl, launch)(x, weight, bias), upsample_conv2d(x, weight, bias)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
    assert out.stride() == expected.stride()
    assert [geometry.paddings for geometry in plans.asked] == [
        ((1, 1), (0, 0)),
        ((1, 0), (0, 1)),
        ((0, 1), (1, 0)),
        ((0, 0), (1, 1)),
    ]
    height, width = size
    strides = None if launch == "launch_dense" else (4 * height * width * 8, 1, 4 * width * 8, 2 * 8)
    assert {geometry.out_strides for geometry in plans.asked} == {strides}


class FakeGraph:
    """Takes down what a graph of cuDNN is told."""

    def __init__(self, **_: Any) -> None:
        self.told: dict[str, Any] = {}

    def tensor(self, **_: Any) -> Any:
        return SimpleNamespace()

    def conv_fprop(self, x: Any, weight: Any, **settings: Any) -> FakeGraph:
        self.told.update(settings)
        return self

    def add(self, *_: Any) -> FakeGraph:
        return self

    def __getattr__(self, name: str) -> Any:
        def setter(value: Any) -> FakeGraph:
            self.told[name] = value
            return self

        return setter


def described(**changes: Any) -> dict[str, Any]:
    kinds = SimpleNamespace(HALF=1, BFLOAT16=2, FLOAT=3)
    geometry = Geometry(0, torch.float16, (2, 16, 6, 5), (8, 16, 2, 2), (1, 1), (1, 0), (1, 1), False)._replace(**changes)
    graph, tensors = cudnn_plans.describe(SimpleNamespace(data_type=kinds, pygraph=FakeGraph), geometry, None)
    assert sorted(tensors) == ["bias", "out", "weight", "x"]
    told: dict[str, Any] = graph.told
    return told


def test_a_geometry_is_told_to_cudnn() -> None:
    told = described()
    assert (told["pre_padding"], told["post_padding"]) == ([1, 0], [1, 0]) and "set_stride" not in told
    told = described(post_padding=(0, 1), out_strides=(960, 1, 80, 16))
    assert (told["pre_padding"], told["post_padding"]) == ([1, 0], [0, 1])
    assert (told["set_dim"], told["set_stride"]) == ([2, 8, 6, 5], [960, 1, 80, 16])
