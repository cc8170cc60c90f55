"""A layer that takes columns with outliers out of its input runs as it is, whatever it keeps of them; what is around it
is fused.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from sfast_core import CompileConfig, CompiledModule, compile
from sfast_core.capture.leaf import Leaf
from tests.tracing import try_record


class State:
    def __init__(self, threshold: float) -> None:
        self.threshold, self.idx = threshold, None


class Linear8bitLt(nn.Linear):
    """As bitsandbytes' of this name: which columns those are is left in its state."""

    def __init__(self, inner: int, outer: int, threshold: float = 2.0) -> None:
        super().__init__(inner, outer)
        self.state: Any = State(threshold)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.state.threshold:
            return F.linear(x, (self.weight * 127).round() / 127, self.bias)
        outliers = (x.abs() > self.state.threshold).flatten(0, -2).any(0).nonzero().flatten()
        self.state.idx = outliers
        rest = x.clone()
        rest[..., outliers] = 0
        return (
            F.linear(rest, (self.weight * 127).round() / 127, self.bias)
            + x[..., outliers] @ self.weight[:, outliers].t()
        )


class Net(nn.Module):
    def __init__(self, threshold: float = 2.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down, self.norm = Linear8bitLt(8, 16, threshold), Linear8bitLt(16, 8, threshold), nn.LayerNorm(8)
        self.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        asked = "idx" if x.dim() else "none"
        getattr(self.down.state, asked)  # by a name that is computed, as somebody may
        return x + self.down(F.gelu(self.up(self.norm(x))))


def check(handle: CompiledModule, *columns: int) -> None:
    x = torch.randn(2, 3, 8).clamp(-1, 1)
    x[..., columns] *= 50
    with torch.no_grad():
        torch.testing.assert_close(handle(x), type(handle.module).forward(handle.module, x))


def test_any_number_of_outliers() -> None:
    handle = compile(Net(), CompileConfig(allow_cpu=True))
    check(handle), check(handle, 1), check(handle, 2, 5), check(handle)
    assert handle.engine.report.calls == {"traced": 1, "fused": 3}, handle.report().text()


def test_no_graph_holds_it() -> None:
    _, found = try_record(Net(), torch.randn(2, 3, 8))
    layers = [node.target for node in found.graph.nodes if isinstance(node.target, Leaf)]  # type: ignore[union-attr]
    assert [layer.capturable for layer in layers] == [
        f"the Linear8bitLt {name} runs as it is: which columns of its input have outliers is read at each call"
        for name in ("up", "down")
    ]


def test_without_a_threshold_it_is_a_layer_like_others() -> None:
    _, found = try_record(Net(0.0), torch.randn(2, 3, 8))
    assert not [node for node in found.graph.nodes if isinstance(node.target, Leaf)]  # type: ignore[union-attr]
