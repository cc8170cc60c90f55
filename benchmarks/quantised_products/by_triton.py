"""The products by Triton: persistent through TMA, and through pointers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

from sfast_core.ops.linear_eight_bit.triton_impl import Cut, launch_pointers, launch_tma
from sfast_core.ops.linear_eight_bit.triton_impl import Operands as TritonOperands

from .cases import DTYPE, KINDS, SHAPES, Operands, Shape, dequantised, distance, make
from .timing import Row, Table, microseconds

PART = "triton"
TMA = (Cut(128, 256, 128, 8, 3), Cut(128, 256, 128, 8, 3, False), Cut(128, 128, 128, 8, 5), Cut(128, 128, 128, 4, 4))
GATED = (Cut(128, 128, 128, 8, 3), Cut(128, 64, 128, 4, 4))
POINTERS = (Cut(128, 256, 128, 8, 3), Cut(128, 128, 128, 8, 4))


def run() -> Table:
    """All shapes, each with every cut."""
    table = Table(PART)
    _compile()
    for shape in SHAPES:
        operands = make(shape)
        for name, kind in KINDS.items():
            x, weights = operands.quantised(kind)
            truth, kernel_truth = operands.exact(), dequantised(x, weights, operands)
            given, act = _given(x, weights, operands), "silu" if shape.gated else "none"
            out = torch.empty(shape.rows, shape.columns, dtype=DTYPE, device="cuda")
            for impl, launch, cut in _ways(shape):
                row = Row(PART, shape.name, *shape[1:4], name, f"{impl} {cut.rows}x{cut.columns}x{cut.depth} {cut.warps}w {cut.stages}s {cut.flatten}")
                try:
                    launch(given, out, act, cut)
                    row.error, row.kernel_error = distance(out, truth), distance(out, kernel_truth)
                    row.us = microseconds(lambda: launch(given, out, act, cut))  # noqa: B023
                    row.tflops = shape.flop / row.us / 1e6
                except Exception as error:  # Triton's: many kinds
                    row.note = f"{type(error).__name__}: {str(error)[:90]}"
                table.add(row)
        print(shape.name, "done", flush=True)
    return table


def _ways(shape: Shape):  # type: ignore[no-untyped-def]
    cuts = GATED if shape.gated else TMA
    return [("tma", launch_tma, cut) for cut in cuts] + [("pointers", launch_pointers, cut) for cut in ([] if shape.gated else POINTERS)]


def _given(x: tuple[torch.Tensor, torch.Tensor], weights: list[tuple[torch.Tensor, torch.Tensor]], operands: Operands) -> TritonOperands:
    gate = (weights[1][0], weights[1][1], operands.biases[1]) if len(weights) > 1 else (None, None, None)
    return TritonOperands(x[0], x[1], weights[0][0], weights[0][1], operands.biases[0], *gate)


def _compile() -> None:
    """All kernels at once, each at a small size: a compilation is seconds of one core."""
    jobs = []
    for gated in (False, True):
        shape = Shape("small", 512, 1024, 1024, gated)
        operands = make(shape)
        for kind in KINDS.values():
            given = _given(*operands.quantised(kind), operands)
            out = torch.empty(shape.rows, shape.columns, dtype=DTYPE, device="cuda")
            jobs += [(launch, given, out, "silu" if gated else "none", cut) for _, launch, cut in _ways(shape)]

    def start(job) -> None:  # type: ignore[no-untyped-def]
        try:
            job[0](*job[1:])
        except Exception as error:  # said again where it is timed
            print(type(error).__name__, str(error)[:200], flush=True)

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(start, jobs))
    torch.cuda.synchronize()
