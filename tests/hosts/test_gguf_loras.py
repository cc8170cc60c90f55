"""LoRAs that ComfyUI-GGUF's layers add to their weights at each call: other LoRAs are other values of one program."""

from __future__ import annotations

import gc
import sys
import weakref
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core import CompileConfig
from sfast_core.engine import Engine
from sfast_core.hosts.comfy.leaves import casting_leaves
from sfast_core.ops.dequantise_blocks import dequantise_blocks
from sfast_core.weights.added import added_to

Q8_0 = 8
N, K = 48, 64


class GGMLTensor(torch.Tensor):
    """The loader's class, as far as its layers need it."""

    def __init__(self, data: torch.Tensor, tensor_type: int, tensor_shape: torch.Size) -> None:
        self.tensor_type, self.tensor_shape, self.patches = tensor_type, tensor_shape, list[Any]()

    def __new__(cls, data: torch.Tensor, tensor_type: int, tensor_shape: torch.Size) -> Any:
        return data.as_subclass(cls)

    def detach(self) -> Any:
        return self

    @property
    def shape(self) -> Any:
        return self.tensor_shape


def dequantize_tensor(tensor: Any, dtype: Any = None, dequant_dtype: Any = None) -> torch.Tensor:
    with torch._C.DisableTorchFunction():
        return dequantise_blocks(tensor.as_subclass(torch.Tensor), "Q8_0", tensor.tensor_shape, dtype, torch.float16)


class GGMLLayer(nn.Module):
    """Adds each patch, a matrix or a LoRA's two, to what the blocks mean."""

    dequant_dtype = patch_dtype = None

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        data = torch.randint(0, 256, (N, K // 32, 34), dtype=torch.uint8, generator=generator)
        data[..., :2] = torch.full((1,), 0.001).half().view(torch.uint8)
        self.weight = nn.Parameter(GGMLTensor(data.reshape(N, -1), Q8_0, torch.Size((N, K))), requires_grad=False)

    def get_weight(self, tensor: Any, dtype: torch.dtype) -> torch.Tensor:
        weight = dequantize_tensor(tensor, dtype, self.dequant_dtype)
        for patches, _ in tensor.patches:
            for strength, adapter, _, place, _ in patches:
                part = weight if place is None else weight.narrow(*place)
                if isinstance(adapter, torch.Tensor):
                    part += strength * adapter
                else:
                    up, down, alpha, *_ = adapter.weights
                    part += (strength * (alpha or down.shape[0]) / down.shape[0]) * (up @ down)
        return weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.get_weight(self.weight, x.dtype))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = GGMLLayer(0), GGMLLayer(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.one(x)) + self.two(x)  # type: ignore[no-any-return]


def adapter(seed: int, rank: int = 4, rows: int = N, alpha: float | None = None) -> Any:
    generator = torch.Generator().manual_seed(seed)
    weights = (
        torch.randn(rows, rank, generator=generator) / 8,
        torch.randn(rank, K, generator=generator) / 8,
        alpha,
        None,
        None,
        None,
    )
    return SimpleNamespace(name="lora", weights=weights)


def patch(seed: int, strength: float = 1.0, place: Any = None, **how: Any) -> Any:
    return strength, adapter(seed, **how), 1.0, place, None


class Fast:
    """A model, and what calls it as ComfyUI's is called."""

    def __init__(self) -> None:
        self.net, self.engine = Net().eval(), Engine("net", CompileConfig(allow_cpu=True), casting_leaves)

    @property
    def calls(self) -> dict[str, int]:
        return dict(self.engine.report.calls)

    def check(self, *patches: Any, layers: Any = ("one", "two")) -> None:
        """As the host does it: the patches of each layer's weight are another list."""
        for name in ("one", "two"):
            getattr(self.net, name).weight.patches = [(list(patches), name)] if patches and name in layers else []
        x = torch.randn(3, K)
        with torch.no_grad():
            got = self.engine.call(self.net, self.net.forward, (x,), {})
            torch.testing.assert_close(got, self.net(x), rtol=1e-4, atol=1e-5)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> Fast:
    files = {name: ModuleType(name) for name in ("comfy", "comfy.ops")}
    for name, file in files.items():
        monkeypatch.setitem(sys.modules, name, file)
    vars(files["comfy"])["ops"] = files["comfy.ops"]
    return Fast()


def test_other_loras_are_no_other_trace(fast: Fast) -> None:
    for patches in (
        (patch(1),),
        (patch(2, 0.5),),
        (patch(1, 0.25), patch(3)),
        (patch(4, 0.7, alpha=2.0, rank=8),),
        (patch(1),),
    ):
        fast.check(*patches)
    rows = (patch(5, place=(0, 16, 24), rows=24), patch(6, 0.5))
    fast.check(*rows), fast.check(patch(1))
    assert fast.calls == {"traced": 1, "fused": 6}, fast.engine.report.reasons


def test_what_is_added_comes_and_goes(fast: Fast) -> None:
    for _ in range(3):
        fast.check(), fast.check(patch(1)), fast.check(patch(2), layers=("two",)), fast.check(patch(1, rank=40))
    assert fast.calls == {"traced": 4, "fused": 8}, fast.engine.report.reasons


def test_what_is_no_lora_is_recorded_as_it_is(fast: Fast) -> None:
    for matrix in (torch.ones(N, K), torch.randn(N, K)):
        fast.check((0.5, matrix, 1.0, None, None)), fast.check((0.5, matrix, 1.0, None, None))
    fast.check(patch(1))
    assert "eager" not in fast.calls, fast.engine.report.reasons


def test_loras_that_are_gone_are_kept_by_nobody(fast: Fast) -> None:
    fast.check(patch(1))
    added = added_to(fast.net.one.weight)
    assert added is not None and added is added_to(fast.net.one.weight)
    ref = weakref.ref(added.up)
    del added
    fast.check()
    gc.collect()
    assert ref() is None
