"""The products by csrc/linear_eight_bit.cu, built here with nvcc: checked at small and odd sizes first, then timed at every cut."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sfast_core.native.build import CSRC, find_nvcc
from sfast_core.ops.linear_eight_bit.cuda_kernel import SIGNATURE, Cut, call
from sfast_core.ops.linear_eight_bit.reference import ACTS, linear_eight_bit

from .cases import DTYPE, KINDS, SHAPES, Operands, Shape, dequantised, distance, make
from .timing import Row, Table, folder, microseconds

PART = "cuda"
LIBRARY = Path("/tmp/sfast_linear_eight_bit.so")
SMALL = ((128, 128, 128), (300, 208, 136), (1, 16, 8), (129, 3072, 264), (1024, 512, 768), (2500, 640, 1000))
TOLERANCE = 4e-3  #: bfloat16 rounds to 2^-9 at most; what is wrong is further off
BANDS = (4, 8, 16)


def build() -> subprocess.Popen[bytes]:
    """Start nvcc."""
    command = [str(find_nvcc()), "-O3", "-std=c++17", "-shared", "-Xcompiler", "-fPIC,-fvisibility=hidden"]
    command += ["-gencode=arch=compute_90a,code=sm_90a", "-o", str(LIBRARY), str(CSRC / "linear_eight_bit.cu")]
    return subprocess.Popen(command)


def load() -> Any:
    """The kernel's function."""
    function: Any = ctypes.CDLL(str(LIBRARY)).sfast_linear_eight_bit
    function.argtypes, function.restype = SIGNATURE, ctypes.c_int32
    return function


def run() -> Table:
    """Check, then time all shapes."""
    table = Table(PART)
    function = load()
    wrong = check(function)
    (folder() / "products-cuda-check.txt").write_text("\n".join(wrong) or "all right")
    print("wrong:", len(wrong), *wrong[:20], sep="\n  ", flush=True)
    for shape in SHAPES:
        operands = make(shape)
        for name, kind in KINDS.items():
            x, weights = operands.quantised(kind)
            truth, kernel_truth = operands.exact(), dequantised(x, weights, operands)
            out = torch.empty(shape.rows, shape.columns, dtype=DTYPE, device="cuda")
            act = "silu" if shape.gated else "none"
            for columns in (256,) if shape.gated else (256, 192, 128):
                for sharing in (1, 2, 4):
                    for band in BANDS if sharing == 2 else BANDS[1:2]:
                        cut = Cut(columns, sharing, band)
                        _time(table, shape, name, cut, act, _launch(function, cut, out, x, weights, operands, act), out, truth, kernel_truth)
            if not shape.gated:
                cut = Cut(256, 2, 8)
                launch = _launch(function, cut, out, x, weights, operands, "gelu_tanh")
                _time(table, shape, name, cut, "gelu_tanh", launch, out, *(_gelu(value) for value in (truth, kernel_truth)))
        print(shape.name, "done", flush=True)
    return table


def check(function: Any) -> list[str]:
    """What is wrong at small sizes, with every cut and epilogue; each is told before it starts, so that one that hangs is known."""
    wrong = []
    for rows, depth, columns in SMALL:
        for gated in (False, True):
            operands = make(Shape("check", rows, depth, columns, gated))
            for name, kind in KINDS.items():
                x, weights = operands.quantised(kind)
                for columns_of_tile in (256,) if gated else (256, 192, 128):
                    for sharing in (1, 2, 4):
                        for dtype in (torch.float16, torch.bfloat16) if sharing == 2 else (DTYPE,):
                            cut = Cut(columns_of_tile, sharing, 3)
                            told = f"{rows}x{depth}x{columns} gated={gated} {name} {cut} {dtype}"
                            (folder() / "products-cuda-last.txt").write_text(told)
                            # Poison behind the result, too: nothing may be written there.
                            room = torch.full((rows + 4, columns), 7.0, dtype=dtype, device="cuda")
                            out = room[:rows]
                            act = ACTS[(sharing + columns_of_tile // 64) % len(ACTS)]
                            biases = Operands(operands.x, operands.weights, [bias.to(dtype) for bias in operands.biases])
                            _launch(function, cut, out, x, weights, biases, act)()
                            torch.cuda.synchronize()
                            truth = _truth(x, weights, biases, act)
                            far = ((out.float() - truth).norm() / truth.norm()).item()
                            if not far < TOLERANCE or not torch.equal(room[rows:], torch.full_like(room[rows:], 7.0)):
                                wrong.append(f"{told} {act}: {far:.1e}")
    return wrong


def _truth(x: tuple[torch.Tensor, torch.Tensor], weights: list[tuple[torch.Tensor, torch.Tensor]], operands: Operands, act: str) -> torch.Tensor:
    gate = (*weights[1], operands.biases[1]) if len(weights) > 1 else ()
    return linear_eight_bit(*x, *weights[0], operands.biases[0], torch.float32, act, *gate)


def _gelu(value: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(value, approximate="tanh")


def _launch(
    function: Any,
    cut: Cut,
    out: torch.Tensor,
    x: tuple[torch.Tensor, torch.Tensor],
    weights: list[tuple[torch.Tensor, torch.Tensor]],
    operands: Operands,
    act: str,
) -> Callable[[], None]:
    gate = (*weights[1], operands.biases[1]) if len(weights) > 1 else ()

    def launch() -> None:
        if status := call(function, cut, out, *x, *weights[0], operands.biases[0], act, *gate):
            raise RuntimeError(f"CUDA error {status}")

    return launch


def _time(
    table: Table,
    shape: Shape,
    kind: str,
    cut: Cut,
    act: str,
    launch: Callable[[], None],
    out: torch.Tensor,
    truth: torch.Tensor,
    kernel_truth: torch.Tensor,
) -> None:
    row = Row(PART, shape.name, *shape[1:4], kind, f"128x{cut.columns} sharing {cut.sharing} band {cut.band} {act}")
    try:
        out.fill_(float("nan"))
        launch()
        row.error, row.kernel_error = distance(out, truth), distance(out, kernel_truth)
        row.us = microseconds(launch)
        row.tflops = shape.flop / row.us / 1e6
    except RuntimeError as error:
        row.note = str(error)[:90]
    table.add(row)
