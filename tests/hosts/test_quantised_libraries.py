"""Models that torchao, bitsandbytes and optimum-quanto have quantised: fused, with the library's own numbers, also
moved, patched and saved.

What each does is shown without them, too: ``tests/capture/test_inside.py``, ``tests/capture/test_outliers.py``,
``tests/libraries``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core import CompileConfig, CompiledModule, compile


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down, self.norm = nn.Linear(256, 512), nn.Linear(512, 256), nn.LayerNorm(256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def _torchao(config: str, **options: Any) -> Callable[[nn.Module], nn.Module]:
    def quantise(net: nn.Module) -> nn.Module:
        library = pytest.importorskip("torchao.quantization", reason="needs torchao")
        if not hasattr(library, config):
            pytest.skip(f"this torchao has no {config}")
        library.quantize_(net, getattr(library, config)(**options))
        return net

    return quantise


def _bitsandbytes(kind: str) -> Callable[[nn.Module], nn.Module]:
    def quantise(net: nn.Module) -> nn.Module:
        library = pytest.importorskip("bitsandbytes", reason="needs bitsandbytes")
        for name, layer in list(net.named_children()):
            if isinstance(layer, nn.Linear):
                size = layer.in_features, layer.out_features
                if kind == "int8":
                    new = library.nn.Linear8bitLt(*size, has_fp16_weights=False, threshold=6.0)
                    new.weight = library.nn.Int8Params(
                        layer.weight.detach().half(), requires_grad=False, has_fp16_weights=False
                    )
                else:
                    new = library.nn.Linear4bit(*size, compute_dtype=torch.bfloat16, quant_type=kind)
                    new.weight = library.nn.Params4bit(
                        layer.weight.detach().clone(), requires_grad=False, quant_type=kind, module=new
                    )
                new.bias = layer.bias
                setattr(net, name, new.to("cpu"))
        return net

    return quantise


def _quanto(kind: str) -> Callable[[nn.Module], nn.Module]:
    def quantise(net: nn.Module) -> nn.Module:
        library = pytest.importorskip("optimum.quanto", reason="needs optimum-quanto")
        library.quantize(net, weights=getattr(library, kind), exclude=["norm"])
        library.freeze(net)
        return net

    return quantise


FORMATS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "torchao int8": _torchao("Int8WeightOnlyConfig", version=2),
    "torchao int8, dynamic": _torchao("Int8DynamicActivationInt8WeightConfig", version=2),
    "torchao float8": _torchao("Float8WeightOnlyConfig"),
    "torchao 4 bits": _torchao("IntxWeightOnlyConfig", weight_dtype=torch.int4 if hasattr(torch, "int4") else None),
    "bitsandbytes int8": _bitsandbytes("int8"),
    "bitsandbytes nf4": _bitsandbytes("nf4"),
    "quanto int8": _quanto("qint8"),
    "quanto float8": _quanto("qfloat8"),
}


def check(handle: CompiledModule, rows: int = 16) -> None:
    x = torch.randn(2, rows, 256, dtype=torch.bfloat16)
    with torch.no_grad():
        expected, got = type(handle.module).forward(handle.module, x), handle(x)
    assert float((got - expected).float().norm() / expected.float().norm()) < 1e-2


@pytest.mark.parametrize("name", FORMATS)
def test_it_runs_fused(name: str) -> None:
    net = FORMATS[name](Net().bfloat16().eval().requires_grad_(False)).requires_grad_(False).eval()
    with torch.no_grad():
        net(torch.randn(2, 16, 256, dtype=torch.bfloat16))  # some settle at their first call
    handle = compile(net, CompileConfig(allow_cpu=True))
    check(handle), check(handle), check(handle, 24), check(handle)
    assert handle.engine.report.calls == {"traced": 2, "fused": 2}, handle.report().text()
    net.to("cpu"), net.state_dict()
    check(handle), check(handle)
    assert not handle.engine.report.calls["eager"], handle.report().text()


@pytest.mark.parametrize("name", ["torchao int8", "bitsandbytes nf4", "quanto int8"])
def test_a_lora_beside_it(name: str) -> None:
    peft: Any = pytest.importorskip("peft", reason="LoRAs need peft")
    net = FORMATS[name](Net().bfloat16().eval().requires_grad_(False)).eval()
    handle = compile(net, CompileConfig(allow_cpu=True))
    check(handle), check(handle)
    patched = importlib.import_module("peft").inject_adapter_in_model(
        peft.LoraConfig(r=4, target_modules=["up"], init_lora_weights=False), net
    )
    assert patched is net
    check(handle), check(handle)
    assert handle.engine.report.calls["fused"] >= 2 and not handle.engine.report.calls["eager"], handle.report().text()
