"""Products that are left out look like those that are computed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from sfast_core.runtime.compile_only import CompileOnly

CALLS: dict[str, Callable[[], torch.Tensor]] = {
    "linear": lambda: F.linear(torch.ones(2, 5, 3).half(), torch.ones(4, 3).half(), torch.ones(4).half()),
    "linear without a bias": lambda: F.linear(torch.ones(3), torch.ones(4, 3)),
    "bmm": lambda: torch.bmm(torch.ones(2, 5, 3), torch.ones(2, 3, 4)),
    "addmm and GELU": lambda: torch._addmm_activation(torch.ones(4), torch.ones(2, 3), torch.ones(3, 4), use_gelu=True),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_shape_dtype_and_strides_are_those_of_the_result(call: Callable[[], torch.Tensor]) -> None:
    with CompileOnly():
        left_out = call()
    computed = call()
    assert (left_out.shape, left_out.dtype, left_out.stride()) == (computed.shape, computed.dtype, computed.stride())


@pytest.mark.skipif(
    "dtype" not in torch.ops.aten.bmm.overloads(), reason="needs PyTorch 2.8: torch.bmm with a result of another dtype"
)
def test_a_product_in_another_dtype() -> None:
    with CompileOnly():
        scores = torch.bmm(torch.ones(2, 5, 3).half(), torch.ones(2, 3, 4).half(), out_dtype=torch.float32)
    assert scores.dtype == torch.float32 and scores.shape == (2, 5, 4)


def test_all_else_is_computed() -> None:
    with CompileOnly():
        assert torch.equal(torch.ones(3) + 1, torch.full((3,), 2.0))
