"""The products that PyTorch and cuBLASLt have: 16 bits, float8 by tensor and by row, int8."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from .cases import CHECKED_ROWS, FP8, INT8, SHAPES, Operands, Shape, combine, dequantised, distance, make
from .lt import Float8Product
from .timing import Row, Table, microseconds

PART = "libraries"


def run() -> Table:
    """All shapes. A gated layer is timed as the product alone, of both weights, and no error is taken."""
    table = Table(PART)
    for shape in SHAPES:
        operands = make(shape)
        _sixteen(table, shape, operands)
        for kind, name in ((FP8, "fp8"), (INT8, "int8")):
            x, weights = operands.quantised(kind)
            truth, kernel_truth = operands.exact(), dequantised(x, weights, operands)
            weight, scales, bias = (torch.cat(parts) for parts in ([w for w, _ in weights], [s for _, s in weights], operands.biases))
            launches = _float8(x, weight, scales, bias) if name == "fp8" else _int8(x[0], weight)
            for impl, launch in launches.items():
                row = Row(PART, shape.name, *shape[1:4], name, impl)
                try:
                    with_values = "rows" in impl and "gelu" not in impl
                    if with_values:
                        result = combine([part.float() for part in launch()[:CHECKED_ROWS].chunk(len(weights), 1)])
                        row.error, row.kernel_error = distance(result, truth), distance(result, kernel_truth)
                    row.us = microseconds(launch)
                    row.tflops = shape.flop / row.us / 1e6
                except Exception as error:  # a library's: many kinds
                    row.note = f"{type(error).__name__}: {str(error)[:90]}"
                table.add(row)
        print(shape.name, "done", flush=True)
    return table


def _sixteen(table: Table, shape: Shape, operands: Operands) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        x, weight, bias = operands.x.to(dtype), torch.cat(operands.weights).to(dtype), torch.cat(operands.biases).to(dtype)
        us = microseconds(lambda: F.linear(x, weight, bias))  # noqa: B023
        result = combine([part.float() for part in F.linear(x[:CHECKED_ROWS], weight, bias).chunk(len(operands.weights), 1)])
        name = str(dtype).removeprefix("torch.")
        table.add(Row(PART, shape.name, *shape[1:4], name, "cublas", us, shape.flop / us / 1e6, error=distance(result, operands.exact())))


def _float8(
    x: tuple[torch.Tensor, torch.Tensor], weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor
) -> dict[str, Callable[[], torch.Tensor]]:
    found: dict[str, Callable[[], torch.Tensor]] = {}
    one = torch.ones((), device="cuda")

    def scaled(by_row: bool, fast: bool) -> Callable[[], torch.Tensor]:
        a, b = (x[1], scales.view(1, -1)) if by_row else (one, one)
        return lambda: torch._scaled_mm(x[0], weight.t(), scale_a=a, scale_b=b, bias=bias, out_dtype=torch.bfloat16, use_fast_accum=fast)

    for by_row in (True, False):
        for fast in (True, False):
            found[f"scaled_mm {'rows' if by_row else 'tensor'} {'fast' if fast else 'precise'}"] = scaled(by_row, fast)
    for epilogue in ("bias", "gelu_bias"):
        for by_row in (True, False):
            factors = (x[1], scales) if by_row else (one, one)
            name = f"cublaslt {'rows' if by_row else 'tensor'} {epilogue}"
            try:
                product = Float8Product(x[0], factors[0], weight, factors[1], bias, epilogue, True)
            except RuntimeError as error:
                found[name] = _raises(error)
                continue
            for rank in range(min(4, len(product.algorithms))):
                found[f"{name} {rank}"] = lambda product=product, rank=rank: product.launch(rank)  # type: ignore[misc]
    return found


def _int8(x: torch.Tensor, weight: torch.Tensor) -> dict[str, Callable[[], torch.Tensor]]:
    return {"int_mm": lambda: torch._int_mm(x, weight.t())}


def _raises(error: RuntimeError) -> Callable[[], torch.Tensor]:
    def raise_it() -> torch.Tensor:
        raise error

    return raise_it
