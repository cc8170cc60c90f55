"""What the kernels' wrappers hand to the C interface, on a CPU: a pretended library takes arguments of the declared
types, as the real one does.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sfast_core.native import load
from sfast_core.native.interface import interface
from sfast_core.ops.add_layer_norm import cuda_impl as add_layer_norm
from sfast_core.ops.attention import cuda_impl as attention
from sfast_core.ops.conv2d_act import cuda_few_impl as conv2d_few
from sfast_core.ops.conv2d_act import cuda_impl as conv2d
from sfast_core.ops.conv2d_act.tiling import Tiling
from sfast_core.ops.group_norm_act import cuda_cluster_impl as group_norm_cluster
from sfast_core.ops.group_norm_act import cuda_impl as group_norm
from sfast_core.ops.linear import cuda_few_impl as linear_few
from sfast_core.ops.scaled_linear import cuda_impl as scaled_linear
from sfast_core.ops.upsample_conv2d import cuda_impl as upsample

HALF = torch.float16
Calls = dict[str, dict[str, Any]]


@pytest.fixture
def status() -> SimpleNamespace:
    return SimpleNamespace(code=0)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, status: SimpleNamespace) -> Iterator[Calls]:
    """By function, its arguments by name."""
    found: Calls = {}

    def function(name: str) -> Any:
        declared = interface().functions[name]

        def run(*values: Any) -> Any:
            found[name] = dict(zip(declared.parameters, values, strict=True))
            return b"cudaErrorNo" if declared.result is ctypes.c_char_p else status.code

        return ctypes.CFUNCTYPE(
            ctypes.c_int64 if declared.result is ctypes.c_int64 else ctypes.c_int32, *declared.parameters.values()
        )(run)

    library = SimpleNamespace(**{name: function(name) for name in interface().functions if name != "sfast_error_name"})
    library.sfast_error_name = lambda code: b"cudaErrorNo"
    monkeypatch.setattr(load, "library", lambda: library)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=77))
    monkeypatch.setattr(group_norm_cluster, "tiling", lambda *_: group_norm_cluster.Tiling(2, 3))
    return found


def image(channels: int) -> torch.Tensor:
    return torch.zeros(2, channels, 6, 5, dtype=HALF).contiguous(memory_format=torch.channels_last)


def _group_norm(launch: Callable[..., torch.Tensor]) -> torch.Tensor:
    return launch(image(64), 4, torch.ones(96), None, 1e-5, "silu", torch.zeros(2, 96, dtype=torch.bfloat16), image(32))


def _conv2d() -> torch.Tensor:
    tiling = Tiling(128, 160, 0, 2, 1, 4)
    shortcut = conv2d.Shortcut(image(64), torch.zeros(8, 192, 1, 1, dtype=HALF), image(128))
    weight = torch.zeros(8, 64, 3, 1, dtype=HALF)
    return conv2d.launch_tiled(
        tiling, image(64), weight, None, (1, 2), (0, 1), None, "relu", torch.zeros(2, 8, dtype=HALF), shortcut
    )


def _scaled_linear() -> torch.Tensor:
    x, weight, scale = torch.zeros(3, 32, dtype=torch.int8), torch.zeros(16, 32, dtype=torch.int8), torch.ones(16)
    gate = scaled_linear.Gate(weight, scale, torch.zeros(16, dtype=HALF))
    return scaled_linear.launch_tiled(
        scaled_linear.TILINGS[0],
        x,
        weight,
        scale,
        torch.zeros(16, dtype=HALF),
        torch.ones(()),
        torch.bfloat16,
        "silu",
        gate,
    )


CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "sfast_group_norm_act": (
        lambda: _group_norm(group_norm.launch),
        {
            "tail_c": 32,
            "c": 96,
            "hw": 30,
            "groups": 4,
            "n": 2,
            "weight_dtype": 0,
            "bias": None,
            "channel_add_dtype": 2,
            "channel_add_stride": 96,
            "flags": 1,
        },
    ),
    "sfast_group_norm_cluster": (
        lambda: _group_norm(group_norm_cluster.launch),
        {"tail_c": 32, "cluster_groups": 2, "cluster_blocks": 3, "dtype": 1},
    ),
    "sfast_add_layer_norm": (
        lambda: add_layer_norm.launch(torch.zeros(3, 512, dtype=HALF), None, torch.ones(512, dtype=HALF), None, 1e-6),
        {"residual": None, "x_bias": None, "sum": None, "bias": None, "rows": 3, "channels": 512, "dtype": 1},
    ),
    "sfast_attention": (
        lambda: attention.launch_tiled(attention.Tiling(2, 1), *torch.zeros(3, 1, 2, 9, 64, dtype=HALF)),
        {
            "images": 1,
            "heads": 2,
            "queries": 9,
            "keys": 9,
            "head": 64,
            "scale": 0.125,
            "half_cut": None,
            "differ": None,
        },
    ),
    "sfast_conv2d": (
        _conv2d,
        {
            "channel_add_stride": 8,
            "residual": None,
            "shortcut_c": 64,
            "tail_c": 128,
            "tap_rows": 3,
            "tap_columns": 1,
            "stride_h": 1,
            "stride_w": 2,
            "pad_h": 0,
            "pad_w": 1,
        }
        | {
            "act": 2,
            "rows": 128,
            "columns": 160,
            "window": 0,
            "sharing_rows": 2,
            "sharing_columns": 1,
            "splits": 4,
            "height": 6,
            "width": 5,
            "c": 64,
            "channels": 8,
        },
    ),
    "sfast_upsample_conv2d": (
        lambda: upsample.launch_tiled(
            Tiling(256, 128, 0, 1, 2, 1), image(64), torch.zeros(8, 64, 3, 3, dtype=HALF), None
        ),
        {"bias": None, "c": 64, "channels": 8, "rows": 256, "columns": 128, "sharing_rows": 1, "sharing_columns": 2},
    ),
    "sfast_conv2d_few": (
        lambda: conv2d_few.launch(image(64), torch.zeros(4, 64, 3, 3, dtype=HALF), None),
        {"c": 64, "channels": 4, "bias": None},
    ),
    "sfast_linear_few": (
        lambda: linear_few.launch(torch.zeros(2, 3, 16, dtype=HALF), torch.zeros(8, 16, dtype=HALF), act="silu"),
        {"rows": 6, "columns": 8, "depth": 16, "act": 1, "bias": None, "residual": None},
    ),
    "sfast_scaled_linear": (
        _scaled_linear,
        {
            "row_scale_step": 0,
            "column_scale_step": 1,
            "bias_dtype": 1,
            "rows": 3,
            "columns": 16,
            "depth": 32,
            "kind": 0,
            "act": 1,
            "dtype": 2,
        },
    ),
}


@pytest.mark.parametrize("function", CASES)
def test_a_wrapper_hands_over(calls: Calls, function: str) -> None:
    run, expected = CASES[function]
    run()
    given = calls[function]
    assert {name: given[name] for name in expected} == expected
    assert given["stream"] == 77 and all(given[name] for name in ("x", "q", "out", "y") if name in given), "addresses"


def test_every_launched_function_is_tried() -> None:
    """But for one that computes on the CPU what lies there."""
    launched = {name for name, declared in interface().functions.items() if "stream" in declared.parameters}
    assert launched == {*CASES, "sfast_sinusoids"}


def test_arguments_that_are_missing_or_unknown(calls: Calls) -> None:
    with pytest.raises(TypeError, match=r"sfast_linear_few: got \['rows', 'stream', 'sums'\], needs \['act', 'bias', "):
        load.launch("sfast_linear_few", torch.device("cpu"), "it", rows=1, sums=2)
    assert not calls


def test_what_is_refused_is_named(calls: Calls, status: SimpleNamespace) -> None:
    status.code = 9
    with pytest.raises(
        load.ExtensionError,
        match=r"CUDA refused linear_few for x \(2, 3, 16\), weight \(8, 16\) torch.float16: cudaErrorNo",
    ):
        CASES["sfast_linear_few"][0]()
