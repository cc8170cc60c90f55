"""Which calls of ``scaled_glu`` its kernel takes, and what the library is told."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sfast_core.ops.scaled_glu import OP, cuda_impl, scaled_glu
from tests.ops.conftest import Library
from tests.targets import H100


def call(
    width: int = 32,
    gate_width: int | None = None,
    scales: int = 0,
    bias: bool = False,
    gate_bias: bool = False,
    act: str = "silu",
) -> list[Any]:
    meta = {"device": "meta"}
    scale = lambda rows: torch.empty((rows, 1) if scales else (), **meta)  # noqa: E731
    gate = gate_width or width
    weights = [torch.empty(rows, 64, dtype=torch.int8, **meta) for rows in (width, gate)]
    biases = [torch.empty(rows, **meta) if given else None for rows, given in ((width, bias), (gate, gate_bias))]
    x = torch.empty(2, 5, 64, dtype=torch.int8, **meta)
    return [
        x,
        weights[0],
        scale(width),
        weights[1],
        scale(gate),
        *biases,
        torch.empty(2, 5, 1, **meta),
        torch.bfloat16,
        act,
    ]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (call(), None),
        (call(scales=1, bias=True, gate_bias=True, act="gelu_tanh"), None),
        (call(gate_width=40), "gate_weight is [40, 64]"),
        (call(bias=True), "not of one dtype"),
        (call(width=36), "must be multiples of 8"),
        (call(act="relu"), 'act is "relu"'),
    ],
)
def test_what_the_kernel_takes(given: list[Any], words: str | None, asked: list[str]) -> None:
    reason = OP.impls[0].why_not(H100, *given)
    assert reason is None if words is None else reason is not None and words in reason


def test_an_unknown_activation_is_an_error() -> None:
    with pytest.raises(ValueError, match="act is 'relu', must be one of silu"):
        scaled_glu(*call(act="relu"))


def test_the_library_gets_both_weights(library: Library) -> None:
    x, both = torch.zeros(2, 300, 64, dtype=torch.int8), torch.zeros(48, 64, dtype=torch.int8)
    scales = torch.ones(48, 1)
    (weight, gate), (scale, gate_scale) = both.chunk(2), scales.chunk(2)
    rows = torch.ones(2, 300, 1)
    out = cuda_impl.launch(x, weight, scale, gate, gate_scale, None, None, rows, torch.float16, "silu", rank=1)
    assert out.shape == (2, 300, 24) and out.dtype == torch.float16
    given = library.calls["sfast_scaled_linear"]
    assert (given["weight"], given["gate_weight"]) == (weight.data_ptr(), gate.data_ptr())
    assert (given["column_scales"], given["gate_scales"]) == (scale.data_ptr(), gate_scale.data_ptr())
