"""What the wrappers of the CUDA extension's kernels hand to it, on a CPU."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sfast_core.native import load
from sfast_core.native.interface import interface
from sfast_core.ops import Impl, Op, all_ops
from sfast_core.ops.conv2d_act import cuda_impl as conv2d
from sfast_core.ops.conv2d_act.tiling import Tiling
from sfast_core.ops.group_norm_act import cuda_cluster_impl as group_norm_cluster
from sfast_core.ops.group_norm_act import cuda_impl as group_norm
from sfast_core.ops.linear import cuda_few_impl as linear_few
from sfast_core.ops.scaled_linear import cuda_impl as scaled_linear
from tests.ops.conftest import Library
from tests.ops.test_ops import map_tensors, on_meta
from tests.targets import H100

HALF, CPU = torch.float16, torch.device("cpu")
IMPLS = [(op, impl) for op in all_ops().values() for impl in op.impls if impl.needs.extension]
LAUNCHED = [name for name, declared in interface().functions.items() if "stream" in declared.parameters]


@pytest.fixture(autouse=True)
def _of_an_h100(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132))
    monkeypatch.setattr(group_norm_cluster, "tiling", lambda *_: group_norm_cluster.Tiling(2, 3))
    monkeypatch.setattr(Library, "sfast_conv2d_clusters", lambda *_: 66, raising=False)


@pytest.mark.parametrize(("op", "impl"), IMPLS, ids=[f"{op.name}.{impl.name}" for op, impl in IMPLS])
@pytest.mark.usefixtures("asked")
def test_a_call_has_the_arguments_that_are_declared(library: Library, op: Op, impl: Impl) -> None:
    """At each small case of the op that the kernel computes: by name, of their types, tensors as addresses."""
    computed = 0
    for case in importlib.import_module(f"tests.ops.cases.{op.name}").CASES:
        args, kwargs = case.make(HALF, CPU)
        if impl.why_not(H100, *map_tensors(args, on_meta), **map_tensors(kwargs, on_meta)) is None:
            impl.launch(*args, **kwargs)
            computed += 1
    assert computed
    if op.name == "sinusoids":
        return  # what lies on the CPU it computes there
    (given,) = [library.calls[name] for name in LAUNCHED if name in library.calls]
    assert given["stream"] == 77


def image(channels: int) -> torch.Tensor:
    return torch.zeros(2, channels, 6, 5, dtype=HALF).contiguous(memory_format=torch.channels_last)


def has(given: dict[str, Any], **expected: Any) -> bool:
    expected = {key: value.data_ptr() if isinstance(value, torch.Tensor) else value for key, value in expected.items()}
    return {name: given[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("wrapper", "function", "more"),
    [
        (group_norm, "sfast_group_norm_act", {"hw": 30, "groups": 4, "n": 2, "channel_add_stride": 96, "bias": None}),
        (group_norm_cluster, "sfast_group_norm_cluster", {"cluster_groups": 2, "cluster_blocks": 3, "dtype": 1}),
    ],
)
def test_the_dtypes_of_a_group_norm(library: Library, wrapper: Any, function: str, more: dict[str, Any]) -> None:
    added = torch.zeros(2, 96, dtype=torch.bfloat16)
    wrapper.launch(image(64), 4, torch.ones(96), None, 1e-5, "silu", added, image(32))
    assert has(library.calls[function], tail_c=32, c=96, weight_dtype=0, channel_add_dtype=2, flags=1, **more)


def test_a_convolution_has_height_before_width(library: Library) -> None:
    shortcut = conv2d.Shortcut(image(64), torch.zeros(8, 192, 1, 1, dtype=HALF), image(128))
    x, weight, rows = image(64), torch.zeros(8, 64, 3, 1, dtype=HALF), torch.zeros(2, 8, dtype=HALF)
    tiling = Tiling(128, 160, 0, 2, 1, 4)
    out = conv2d.launch_tiled(tiling, x, weight, None, (1, 2), (0, 1), None, "relu", rows, shortcut)
    assert out.shape == (2, 8, 4, 4) and out.is_contiguous(memory_format=torch.channels_last)
    given = library.calls["sfast_conv2d"]
    assert has(given, height=6, width=5, c=64, channels=8, tap_rows=3, tap_columns=1)
    assert has(given, stride_h=1, stride_w=2, pad_h=0, pad_w=1, channel_add_stride=8, residual=None, act=2)
    assert has(given, rows=128, columns=160, window=0, sharing_rows=2, sharing_columns=1, splits=4)
    assert has(given, shortcut_c=64, tail_c=128, tail=shortcut.tail, shortcut_weight=shortcut.weight)
    conv2d.launch_tiled(tiling, x, weight, None, (1, 2), (0, 1), None, "relu", rows[:1])
    assert has(library.calls["sfast_conv2d"], channel_add_stride=0, shortcut=None, shortcut_c=0, tail=None, tail_c=0)


def test_a_quantised_product_and_its_gate(library: Library) -> None:
    x, weight, shift = torch.zeros(600, 32, dtype=torch.int8), torch.zeros(16, 32, dtype=torch.int8), torch.zeros(16)
    one, rows, columns = torch.ones(()), torch.ones(600, 1), torch.ones(16, 1)
    out = scaled_linear.launch(x, weight, columns, shift, rows, HALF)
    assert out.shape == (600, 16) and out.dtype == HALF
    given = library.calls["sfast_scaled_linear"]
    assert has(given, x=x, weight=weight, gate_weight=None, out=out, rows=600, columns=16, depth=32, kind=0, dtype=1)
    assert has(given, row_scales=rows, row_scale_step=1, column_scales=columns, column_scale_step=1)
    assert has(given, bias=shift, bias_dtype=0, gate_scales=None, gate_bias=None, act=0)
    gate = scaled_linear.Gate(weight + 1, one + 1, shift + 1)
    tiling = scaled_linear.Tiling(256, 4, 3)
    scaled_linear.launch_tiled(tiling, x, weight, one, shift, one, torch.bfloat16, "silu", gate)
    given = library.calls["sfast_scaled_linear"]
    assert has(given, gate_weight=gate.weight, gate_scales=gate.scale, gate_bias=gate.bias, act=1, dtype=2)
    assert has(given, row_scale_step=0, column_scale_step=0, tile_columns=256, sharing=4, band=3)


def test_arguments_that_are_missing_or_unknown(library: Library) -> None:
    with pytest.raises(TypeError, match=r"sfast_linear_few: got \['rows', 'stream', 'sums'\], needs \['act', 'bias', "):
        load.launch("sfast_linear_few", CPU, "it", rows=1, sums=2)
    assert not library.calls


def test_what_is_refused_is_named(library: Library) -> None:
    library.status = 9
    what = r"CUDA refused linear_few for x \(2, 3, 16\), weight \(8, 16\) torch.float16: cudaErrorNo"
    with pytest.raises(load.ExtensionError, match=what):
        linear_few.launch(torch.zeros(2, 3, 16, dtype=HALF), torch.zeros(8, 16, dtype=HALF), act="silu")
