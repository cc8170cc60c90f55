"""``python -m benchmarks.ops``: each op by each kernel, beside PyTorch, at shapes of SD1.5, SDXL, the VAE and Flux.

Microseconds (median; see :mod:`benchmarks.op_timing`), TFLOP/s or GB/s, and the share of what this GPU reached in the
same run with a large matrix product or a large copy, whichever bounds the op; the error against float32; and why a
kernel does not apply. FLOP are those of the op as the model is written, bytes those of its arguments and results, once:
a kernel that finds a way to do less may pass 100%.
"""

from __future__ import annotations

import argparse
import inspect
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch

from sfast_core.ops import Op, all_ops
from sfast_core.target import Target, probe

from .command import need_cuda, parser_of
from .machine import facts, write
from .op_shapes import MODELS, SHAPES, OpShape, shapes
from .op_timing import Launch, Peak, capture, copies_for, count_bytes, interleaved_us, measure_peak, tensors
from .op_variants import variants
from .tables import markdown

DTYPE = torch.float16
EAGER = "eager"
NOISE = 1e-4  #: on top of twice eager's error: what is further off is marked


@dataclass
class Row:
    """One kernel of an op at one shape. ``us`` 0: it didn't run, ``why_not`` says why."""

    op: str
    model: str
    shape: str
    impl: str
    us: float = 0.0
    x_eager: float = 0.0
    tflops: float = 0.0
    gbps: float = 0.0
    bound: str = ""  #: "compute" or "memory", by this run's peaks
    percent_of_peak: float = 0.0
    error: float = 0.0
    inexact: bool = False
    why_not: str = ""


@dataclass
class _Candidates:
    """What is to be timed at one shape."""

    shape: OpShape
    op: Op
    launches: dict[str, Launch]
    refused: dict[str, str] = field(default_factory=dict)
    device: torch.device = torch.device("cuda")

    def arguments(self) -> tuple[Any, ...]:
        """The case's arguments, made anew, all by position."""
        return positional(self.op, *self.shape.case.make(DTYPE, self.device))


def positional(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """All of a call's arguments in the order of the op's parameters, defaults included."""
    bound = inspect.signature(op.reference).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.args


def count_flop(op: Op, arguments: tuple[Any, ...]) -> int:
    """The multiplications and additions of the op's matrix products and convolutions."""
    from torch.utils.flop_counter import FlopCounterMode

    meta = [value.to("meta") if isinstance(value, torch.Tensor) else value for value in arguments]
    with FlopCounterMode(display=False) as counter:
        op.reference(*meta)
    return int(counter.get_total_flops())


def error(results: Any, truth: Any) -> float:
    """The largest relative L2 distance of one of the results to what it should be."""
    pairs = zip(tensors(results), tensors(truth), strict=True)
    return max(
        float(torch.linalg.vector_norm(got.float() - exact) / torch.linalg.vector_norm(exact)) for got, exact in pairs
    )


def rate(row: Row, flop: float, moved_bytes: float, peak: Peak) -> Row:
    """Fill in what follows from the time."""
    row.tflops, row.gbps = flop / row.us / 1e6, moved_bytes / row.us / 1e3
    row.bound = "compute" if flop / peak.flop_per_s > moved_bytes / peak.bytes_per_s else "memory"
    row.percent_of_peak = 100 * peak.least_us(flop, moved_bytes) / row.us
    return row


def _candidates(
    shape: OpShape, target: Target, more: Callable[[str, tuple[Any, ...]], dict[str, Launch]] | None
) -> _Candidates:
    op = all_ops()[shape.op]
    found = _Candidates(shape, op, {EAGER: op.reference})
    arguments = found.arguments()
    for impl in op.impls:
        reason = impl.why_not(target, *arguments)
        if reason is None:
            found.launches[impl.name] = impl.launch
        else:
            found.refused[impl.name] = reason.removeprefix(f"{impl.name}: ")
    if more is not None:
        found.launches |= more(op.name, arguments)
    return found


def _warm_up(candidates: list[_Candidates]) -> None:
    """Launch everything once, several at a time: Triton and cuDNN compile outside the interpreter's lock.

    Failures show up in measure.
    """

    def launch(of: _Candidates, name: str) -> None:
        try:
            with torch.inference_mode():
                of.launches[name](*of.arguments())
        except Exception:  # noqa: BLE001
            pass

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda pair: launch(*pair), [(of, name) for of in candidates for name in of.launches]))
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def measure(of: _Candidates, peak: Peak) -> list[Row]:
    """Every kernel at one shape, interleaved."""
    first = of.arguments()
    argument_bytes = count_bytes(first)
    copies = [first, *(of.arguments() for _ in range(copies_for(argument_bytes) - 1))]
    truth = of.op.reference(*(value.float() if isinstance(value, torch.Tensor) else value for value in first))
    flop = count_flop(of.op, first)
    rows = {
        name: Row(of.op.name, of.shape.model, of.shape.case.id, name, why_not=of.refused.get(name, ""))
        for name in _names(of)
    }
    graphs: dict[str, torch.cuda.CUDAGraph] = {}
    for name, launch in of.launches.items():
        try:
            rows[name].error = error(launch(*first), truth) if not name.startswith("part ") else 0.0
            graphs[name] = capture(launch, copies)
        except Exception as failure:  # noqa: BLE001 (a kernel that fails is a result)
            rows[name].why_not = (str(failure).strip() or type(failure).__name__).splitlines()[0][:160]
    moved = argument_bytes + count_bytes([truth]) // 2  # the truth is in float32
    for name, us in interleaved_us(graphs, len(copies)).items():
        rows[name].us = us
        rate(rows[name], flop, moved, peak)
    for row in rows.values():
        row.x_eager = rows[EAGER].us / row.us if row.us else 0.0
        row.inexact = row.error > 2 * rows[EAGER].error + NOISE
    return list(rows.values())


def _names(of: _Candidates) -> list[str]:
    return [*of.launches, *of.refused]


def table(rows: list[Row]) -> str:
    """The rows that ran as a Markdown table, and below it, once each, why others didn't."""
    header = ["op", "model", "shape", "kernel", "µs", "x eager", "reached", "of the peak", "error to float32"]
    found = []
    for row in rows:
        if row.us:
            reached = f"{row.tflops:.0f} TFLOP/s" if row.bound == "compute" else f"{row.gbps:.0f} GB/s"
            off = "" if row.impl.startswith("part ") else f"{row.error:.1e}{' (!)' if row.inexact else ''}"
            figures = [f"{row.us:.1f}", f"{row.x_eager:.2f}", reached, f"{row.percent_of_peak:.0f}%", off]
            found.append([row.op, row.model, row.shape, row.impl, *figures])
    lines = [markdown(header, found)]
    refused: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        if row.why_not:
            refused.setdefault((row.op, row.impl, row.why_not), []).append(row.shape)
    if refused:
        lines += ["", "Does not apply:", ""]
        lines += [f"- `{op}.{impl}` at {', '.join(where)}: {why}" for (op, impl, why), where in refused.items()]
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("ops", __doc__)
    parser.add_argument("--ops", help=f"of {', '.join(SHAPES)} (default: all)")
    parser.add_argument("--models", help=f"of {', '.join(MODELS)} (default: all)")
    parser.add_argument(
        "--variants",
        action="store_true",
        help="also the tiles and parts that tell how an op should choose; not written",
    )
    return parser


@torch.inference_mode()
def main() -> None:
    """Parse arguments, measure, print, write."""
    args = _parser().parse_args()
    try:
        chosen = shapes(args.ops and args.ops.split(","), args.models and args.models.split(","))
    except ValueError as failure:
        raise SystemExit(str(failure)) from None
    need_cuda("ops")
    # else the float32 convolutions that errors are measured against would be TF32
    torch.backends.cudnn.allow_tf32 = False
    target = probe(torch.device("cuda"))
    start = time.perf_counter()
    candidates = [_candidates(shape, target, variants if args.variants else None) for shape in chosen]
    _warm_up(candidates)
    print(f"compiled in {time.perf_counter() - start:.1f} s", flush=True)
    peak = measure_peak(DTYPE)
    machine = {"peak": f"{peak.flop_per_s / 1e12:.0f} TFLOP/s and {peak.bytes_per_s / 1e9:.0f} GB/s", **facts()}
    rows: list[Row] = []
    for of in candidates:
        rows += measure(of, peak)
        torch.cuda.empty_cache()
    print(f"{time.perf_counter() - start:.1f} s in all\n")
    print(table(rows) if args.variants else write(args.out, "ops", rows, table(rows), machine))


if __name__ == "__main__":
    main()
