"""diffusers' layers whose weights lie in GGUF's blocks: recorded as one op on the bytes and what comes behind it."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core import CompileConfig, CompiledModule, compile
from sfast_core.ops.dequantise_blocks import dequantise_blocks
from sfast_core.ops.dequantise_blocks.reference import KINDS
from tests.tracing import try_record

NUMBERS = {"Q8_0": 8, "Q4_0": 2, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "BF16": 30}


class Blocks(nn.Parameter):
    """A parameter as diffusers makes them: bytes, with GGUF's type and the weight's shape beside them; its results are
    such, too.
    """

    quant_type: int

    def __new__(cls, data: torch.Tensor, kind: int = 8) -> Blocks:
        made: Blocks = torch.Tensor._make_subclass(cls, data, False)
        values, size = KINDS[next(name for name, number in NUMBERS.items() if number == kind)]
        made.quant_type = kind
        made.__dict__["quant_shape"] = (*data.shape[:-1], data.shape[-1] // size * values)
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        return (
            cls(result, args[0].quant_type)
            if isinstance(result, torch.Tensor) and result.dtype == torch.uint8
            else result
        )


def blocks(rows: int, columns: int, kind: str, seed: int = 0) -> Blocks:
    values, size = KINDS[kind]
    generator = torch.Generator().manual_seed(seed)
    data = torch.randint(0, 256, (rows, columns // values, size), dtype=torch.uint8, generator=generator)
    small = torch.full((1,), 0.001).half().view(torch.uint8)
    for begin in {"Q6_K": (208,), "Q4_K": (0, 2), "Q5_K": (0, 2), "BF16": ()}.get(kind, (0,)):
        data[..., begin : begin + 2] = small
    if kind == "BF16":
        data = torch.randn(rows, columns, generator=generator).bfloat16().view(torch.uint8)
    return Blocks(data.reshape(rows, -1), NUMBERS[kind])


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The file of diffusers' that dequantises."""

    def dequantize_gguf_tensor(tensor: Any) -> torch.Tensor:
        if not hasattr(tensor, "quant_type"):
            return tensor  # type: ignore[no-any-return]
        kind = next(name for name, number in NUMBERS.items() if number == tensor.quant_type)
        with torch._C.DisableTorchFunction():
            data = tensor.as_subclass(torch.Tensor)
        return dequantise_blocks(
            data, kind, tensor.quant_shape, torch.float32 if kind == "BF16" else torch.float16, torch.float16
        )

    file = ModuleType("diffusers.quantizers.gguf.utils")
    file.__dict__["dequantize_gguf_tensor"] = dequantize_gguf_tensor
    monkeypatch.setitem(sys.modules, file.__name__, file)
    return file


class Layer(nn.Module):
    def __init__(self, weight: Blocks) -> None:
        super().__init__()
        self.weight, self.bias = weight, nn.Parameter(torch.randn(weight.shape[0]), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = sys.modules["diffusers.quantizers.gguf.utils"].dequantize_gguf_tensor(self.weight)
        return F.linear(x, weight.to(torch.float32), self.bias)


class Net(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = Layer(blocks(512, 256, kind)), Layer(blocks(256, 512, kind, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(x)))


def check(handle: CompiledModule) -> None:
    x = torch.randn(2, 3, 256)
    with torch.no_grad():
        torch.testing.assert_close(handle(x), type(handle.module).forward(handle.module, x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", NUMBERS)
def test_each_type(kind: str, library: ModuleType) -> None:
    dequantises = library.dequantize_gguf_tensor
    handle = compile(Net(kind), CompileConfig(allow_cpu=True))
    check(handle), check(handle)
    report = handle.engine.report
    assert report.calls == {"traced": 1, "fused": 1}, handle.report().text()
    assert report.signatures[-1].passes["fuse_linear"] == 1, report.signatures[-1].passes  # GELU
    assert library.dequantize_gguf_tensor is dequantises


def test_the_bytes_are_the_weight(library: ModuleType) -> None:
    handle = compile(Net("Q8_0"), CompileConfig(allow_cpu=True))
    check(handle)
    up: Any = handle.module.up
    up.weight = blocks(512, 256, "Q8_0", 5)
    check(handle), check(handle)
    assert handle.engine.report.calls == {"traced": 1, "fused": 2}, handle.report().text()
    up.weight = blocks(512, 256, "Q4_0", 5)  # of another type
    check(handle), check(handle)
    assert handle.engine.report.calls == {"traced": 2, "fused": 3}, handle.report().text()


def test_a_type_that_is_not_known_is_no_reason_to_be_wrong(
    library: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(NUMBERS, "Q8_0", 99)
    handle = compile(Net("Q8_0"), CompileConfig(allow_cpu=True))
    check(handle), check(handle), check(handle)


def test_with_diffusers_own_layers() -> None:
    pytest.importorskip("gguf", reason="diffusers' GGUF layers need the package gguf")
    utils = pytest.importorskip("diffusers.quantizers.gguf.utils", reason="needs diffusers with GGUF")

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = (
                utils.GGUFLinear(*size, bias=True, compute_dtype=torch.float32) for size in ((256, 512), (512, 256))
            )
            for seed, (kind, layer) in enumerate((("Q8_0", self.up), ("Q4_K", self.down))):
                data = blocks(layer.out_features, layer.in_features, kind, seed)
                with torch._C.DisableTorchFunction():
                    plain = data.as_subclass(torch.Tensor)
                layer.weight = utils.GGUFParameter(plain, quant_type=utils.gguf.GGMLQuantizationType[kind])
            self.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(F.gelu(self.up(x)))

    handle = compile(Own(), CompileConfig(allow_cpu=True))
    check(handle), check(handle)
    assert handle.engine.report.calls == {"traced": 1, "fused": 1}, handle.report().text()
    _, found = try_record(Own(), torch.randn(2, 256))
    assert found is not None
