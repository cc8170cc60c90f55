"""The linear layers whose products are timed, and their operands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from sfast_core.ops.quantise_rows.reference import quantise_values

INT8, FP8 = torch.int8, torch.float8_e4m3fn
KINDS = {"int8": INT8, "fp8": FP8}
DTYPE = torch.bfloat16
CHECKED_ROWS = 512  #: whose errors are taken


class Shape(NamedTuple):
    """A layer ``rows x depth -> columns``; ``gated``: two weights, the one gated by the other."""

    name: str
    rows: int
    depth: int
    columns: int
    gated: bool = False

    @property
    def flop(self) -> float:
        """Of all products."""
        return 2.0 * self.rows * self.depth * self.columns * (2 if self.gated else 1)


#: Rows: tokens of a 1024 x 1024 picture with the prompt's; Z-Image and Qwen-Image with guidance, two at a time; a part of Wan's video.
SHAPES = (
    Shape("flux qkv", 4608, 3072, 9216),
    Shape("flux mlp in", 4608, 3072, 12288),
    Shape("flux mlp out", 4608, 12288, 3072),
    Shape("flux single in", 4608, 3072, 21504),
    Shape("flux single out", 4608, 15360, 3072),
    Shape("flux out", 4608, 3072, 3072),
    Shape("flux text qkv", 512, 3072, 9216),
    Shape("flux text mlp out", 512, 12288, 3072),
    Shape("zimage qkv", 8704, 3840, 11520),
    Shape("zimage out", 8704, 3840, 3840),
    Shape("zimage gated", 8704, 3840, 10240, True),
    Shape("zimage mlp out", 8704, 10240, 3840),
    Shape("qwen mlp in", 8192, 3072, 12288),
    Shape("qwen mlp out", 8192, 12288, 3072),
    Shape("qwen out", 8192, 3072, 3072),
    Shape("wan5b mlp in", 16384, 3072, 14336),
    Shape("wan5b mlp out", 16384, 14336, 3072),
    Shape("sdxl qkv", 2048, 1280, 3840),
    Shape("sdxl geglu", 2048, 1280, 5120, True),
    Shape("sdxl mlp out", 2048, 5120, 1280),
)


@dataclass(frozen=True)
class Operands:
    """Random operands of a layer. Weights are lists of one, or of two where it is gated."""

    x: torch.Tensor
    weights: list[torch.Tensor]
    biases: list[torch.Tensor]

    def quantised(self, kind: torch.dtype) -> tuple[tuple[torch.Tensor, torch.Tensor], list[tuple[torch.Tensor, torch.Tensor]]]:
        """x and the weights in 8 bits, each with the scales of its rows."""
        return quantise_values(self.x.float(), kind), [quantise_values(weight.float(), kind) for weight in self.weights]

    def exact(self) -> torch.Tensor:
        """The first rows' result in float32."""
        return combine([self.x[:CHECKED_ROWS].float() @ weight.float().t() + bias.float() for weight, bias in self.pairs()])

    def pairs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Each weight with its bias."""
        return list(zip(self.weights, self.biases, strict=True))


def combine(values: list[torch.Tensor]) -> torch.Tensor:
    """One value as it is, or value and gate by SwiGLU."""
    return values[0] if len(values) == 1 else values[0] * torch.nn.functional.silu(values[1])


def make(shape: Shape) -> Operands:
    """Operands from a seed."""
    generator = torch.Generator("cuda").manual_seed(0)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator, device="cuda")

    count = 2 if shape.gated else 1
    weights = [(normal(shape.columns, shape.depth) / shape.depth**0.5).to(DTYPE) for _ in range(count)]
    return Operands(normal(shape.rows, shape.depth).to(DTYPE), weights, [normal(shape.columns).to(DTYPE) for _ in range(count)])


def dequantised(x: tuple[torch.Tensor, torch.Tensor], weights: list[tuple[torch.Tensor, torch.Tensor]], operands: Operands) -> torch.Tensor:
    """What a kernel should compute of the first rows of quantised operands, summed in float32, exact to about 1e-6."""
    rows = x[0][:CHECKED_ROWS].float()
    values = [
        (rows @ weight.float().t()) * x[1][:CHECKED_ROWS] * scales.view(-1) + bias.float()
        for (weight, scales), bias in zip(weights, operands.biases, strict=True)
    ]
    return combine(values)


def distance(result: torch.Tensor, truth: torch.Tensor) -> float:
    """Relative L2 of the first rows."""
    return ((result[:CHECKED_ROWS].float() - truth).norm() / truth.norm()).item()
