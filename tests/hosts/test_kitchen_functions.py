"""comfy-kitchen's functions that are no operators: what they launch on a GPU no recorder sees, so each is one call of
the graph.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sfast_core.capture import Recorder
from sfast_core.hosts.comfy.leaves import casting_leaves
from sfast_core.weights import WeightTable
from tests.models import Forward
from tests.tracing import evaluate


def _unseen(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, group: int = 16
) -> torch.Tensor:
    """A product by a kernel of its own."""
    out = torch.empty(*x.shape[:-1], weight.shape[0])
    with torch._C.DisableTorchFunction():
        computed = x.numpy() @ weight.numpy().T + (0 if bias is None else bias.numpy())
        np.copyto(out.numpy(), computed)
    return out


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Any:
    """As much of ComfyUI and of the library as is looked at."""
    files = {name: ModuleType(name) for name in ("comfy", "comfy.ops", "comfy_kitchen.tensor.w4a8_int8")}
    for name, file in files.items():
        monkeypatch.setitem(sys.modules, name, file)
    vars(files["comfy"])["ops"] = files["comfy.ops"]
    vars(files["comfy_kitchen.tensor.w4a8_int8"])["w4a8_int8_linear"] = _unseen
    return files["comfy_kitchen.tensor.w4a8_int8"]


def _recorded(net: nn.Module, x: torch.Tensor) -> Any:
    recorder = Recorder([x], WeightTable(net))
    with torch.no_grad(), casting_leaves(recorder), recorder:
        result = net(x)
    graph = recorder.finish([result], lambda _: None)
    assert graph is not None, recorder.failure
    return graph


def test_it_is_one_call(host: Any) -> None:
    net = Forward(lambda net, x: host.w4a8_int8_linear(x.clone(), net.weight, bias=net.bias, group=8) + 1)
    net.weight, net.bias = (nn.Parameter(torch.randn(*size), requires_grad=False) for size in ((4, 8), (4,)))
    x = torch.randn(3, 8)
    graph = _recorded(net, x)
    (call,) = [node for node in graph.nodes if getattr(node.target, "__name__", "") == "_unseen"]
    assert call.kwargs["group"] == 8 and len(call.all_input_nodes) == 3
    torch.testing.assert_close(evaluate(graph, [x])[0], net(x))
    assert host.w4a8_int8_linear is _unseen
