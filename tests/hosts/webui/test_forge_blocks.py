"""Forge's layers whose weights lie in GGUF's blocks: made of them inside the program, with Forge's own code and
numbers.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig
from sfast_core.engine import Engine
from sfast_core.hosts.webui.blocks import forges_blocks

ROOT = Path(__file__).resolve().parents[3]
N, K = 32, 64


class _Eights:
    """A type of blocks as Forge lays it out: an int8 in front of which its scale lies."""

    block_size, type_size = 32, 34

    @classmethod
    def dequantize_blocks_pytorch(
        cls, blocks: torch.Tensor, block_size: int, type_size: int, parameter: Any
    ) -> torch.Tensor:
        scale, numbers = torch.split(blocks, [2, 32], dim=-1)
        return numbers.view(torch.int8) * scale.view(parameter.computation_dtype)


class ParameterGGUF(nn.Parameter):
    """As much of Forge's as its layers need."""

    gguf_cls: Any
    real_shape: torch.Size
    computation_dtype: torch.dtype

    @property
    def shape(self) -> Any:
        return self.real_shape

    def to(self, *args: Any, **kwargs: Any) -> Any:
        return made(self.data.to(*args, **kwargs), self.gguf_cls, self.real_shape, self.computation_dtype)


def made(data: torch.Tensor, kind: Any, shape: Any, dtype: torch.dtype = torch.float16) -> Any:
    found = ParameterGGUF(data, requires_grad=False)
    found.gguf_cls, found.real_shape, found.computation_dtype = kind, torch.Size(shape), dtype
    return found


class Layer(nn.Module):
    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        data = torch.randint(0, 256, (N * K // 32, 34), dtype=torch.uint8, generator=generator)
        data[:, :2] = torch.full((1,), 0.001).to(dtype).view(torch.uint8)
        self.weight = made(data, _Eights, (N, K), dtype)
        self.bias = made(torch.randn(N, generator=generator), None, (N,))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        operations = sys.modules["backend.operations"]
        weight = operations.dequantize_tensor(self.weight.to(device=x.device)).to(device=x.device, dtype=x.dtype)  # type: ignore[attr-defined]
        return nn.functional.linear(x, weight, self.bias.to(device=x.device, dtype=x.dtype))


def _dequantize_tensor(tensor: Any) -> Any:
    own = tensor.gguf_cls
    return own.dequantize_blocks_pytorch(tensor.data, own.block_size, own.type_size, tensor).view(tensor.shape)


@pytest.fixture
def forge(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("backend.operations", "backend.operations_gguf"):
        file = types.ModuleType(name)
        vars(file).update(dequantize_tensor=_dequantize_tensor, ParameterGGUF=ParameterGGUF)
        monkeypatch.setitem(sys.modules, name, file)


def check(make: Callable[[], nn.Module], x: Callable[[], torch.Tensor], engine: Engine) -> None:
    net = make()
    with torch.no_grad():
        for _ in range(3):
            given = x()
            torch.testing.assert_close(engine.call(net, net.forward, (given,), {}), net(given), rtol=1e-3, atol=1e-3)
    assert engine.report.calls == {"traced": 1, "fused": 2}, engine.report.reasons


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_weight_is_made_inside(forge: None, dtype: torch.dtype) -> None:
    engine = Engine("net", CompileConfig(allow_cpu=True), forges_blocks)
    check(
        lambda: nn.Sequential(Layer(0, dtype), nn.Tanh(), nn.Linear(N, K), Layer(1, dtype)),
        lambda: torch.randn(3, K),
        engine,
    )
    assert "runs as it is" not in str(engine.report.signatures[-1])


def test_other_weights_are_read(forge: None) -> None:
    """As a swap of checkpoints, or a way to main memory and back, leaves them."""
    net, engine, x = (
        nn.Sequential(Layer(0, torch.float16)),
        Engine("net", CompileConfig(allow_cpu=True), forges_blocks),
        torch.randn(3, K),
    )
    with torch.no_grad():
        for seed in (0, 0, 7, 8):
            net[0].weight = Layer(seed, torch.float16).weight
            torch.testing.assert_close(engine.call(net, net.forward, (x,), {}), net(x))
    assert engine.report.calls == {"traced": 1, "fused": 3}, engine.report.reasons


@pytest.mark.skipif("FORGE_PATH" not in os.environ, reason="needs FORGE_PATH, and Forge's Python in FORGE_PYTHON")
def test_forges_own_layers() -> None:
    """Each type that Forge reads, in its own Python: none of its modules is here."""
    python = os.environ.get("FORGE_PYTHON", sys.executable)
    places = [
        str(ROOT),
        os.environ["FORGE_PATH"],
        str(Path(os.environ["FORGE_PATH"]) / "packages_3rdparty"),
        os.environ.get("PYTHONPATH", ""),
    ]
    script = Path(__file__).with_name("forge_layers.py")
    found = subprocess.run(
        [python, str(script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-2000:] + found.stderr[-3000:]
    assert "Q8_0" in found.stdout and "Q4_K" in found.stdout, found.stdout
    assert importlib.util.find_spec("backend") is None
