"""A call recorded under autocast, and what it computes without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core.capture import Trace
from tests.models import Forward
from tests.tracing import evaluate, try_record

#: Device types with the dtype that autocast computes in there.
DEVICES = [
    pytest.param("cpu", torch.bfloat16, id="cpu"),
    pytest.param("cuda", torch.float16, id="cuda", marks=pytest.mark.gpu),
]


def check(net: nn.Module, *inputs: torch.Tensor, low: torch.dtype = torch.bfloat16) -> torch.fx.Graph:
    """The recorded call returned what the module returns, and its graph computes the same without autocast, from other
    values too.
    """
    kind = inputs[0].device.type
    exact = {"rtol": 0, "atol": 0} if kind == "cpu" else {}
    with torch.no_grad(), torch.autocast(kind, low):
        expected = net(*inputs)
        result, found = try_record(net, *inputs)
        assert isinstance(found, Trace), found.reason
        torch.testing.assert_close(result, expected, **exact)
        for values in (inputs, tuple(x.flip(0) if x.dim() else x for x in inputs)):
            got = found.outputs.build(evaluate(found.graph, values), values)
            torch.testing.assert_close(got, net(*values), **exact)
    return found.graph


def function(call: Callable[..., Any]) -> Forward:
    return Forward(lambda net, *inputs: call(*inputs))
