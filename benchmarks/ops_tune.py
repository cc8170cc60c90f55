"""``python -m benchmarks.ops_tune [geglu] [linear_add] [conv] [upsample] [attention]``: the variants of five ops, timed on real shapes.

Not a benchmark to publish: it tells which tiles, plans and backends the ops should prefer on the GPU at hand. Each variant runs in a CUDA
graph over enough copies of its arguments to leave L2 cold; the variants of a shape alternate, the median of the rounds counts. A variant
that is less exact than twice eager is marked with ``!``, one that failed is listed below the table with its error.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from sfast_core.ops import attention, conv2d_act, linear_add, linear_geglu, upsample_conv2d
from sfast_core.target import probe

from .machine import facts

GEGLU = [(8192, 5120, 640), (2048, 10240, 1280), (8192, 2560, 320), (2048, 5120, 640), (512, 10240, 1280), (128, 10240, 1280)]
LINEAR_ADD = [
    (2048, 1280, 1280),
    (2048, 1280, 5120),
    (8192, 640, 640),
    (8192, 640, 2560),
    (8192, 320, 320),
    (128, 1280, 1280),
    (130, 1280, 5120),
]
CONV = [
    (2, 320, 320, 128),
    (2, 640, 640, 64),
    (2, 1280, 1280, 32),
    (2, 320, 320, 64),
    (2, 1280, 1280, 16),
    (1, 128, 128, 1024),
    (1, 512, 512, 256),
]
UPSAMPLE = [
    (2, 1280, 32),
    (2, 640, 64),
    (2, 1280, 8),
    (2, 1280, 16),
    (2, 640, 32),
    (1, 512, 128),
    (1, 512, 256),
    (1, 256, 512),
]
ATTENTION = [
    (2, 10, 4096, 4096, 64),
    (2, 20, 1024, 1024, 64),
    (2, 10, 4096, 77, 64),
    (2, 20, 1024, 77, 64),
    (2, 8, 4096, 4096, 40),
    (2, 8, 4096, 77, 40),
    (2, 8, 1024, 77, 80),
    (2, 8, 256, 77, 160),
    (1, 24, 4608, 4608, 128),
    (1, 1, 4096, 4096, 512),
]
COLD_BYTES = 160 << 20  # three times the L2 of an H100
MAX_COPIES = 24
ROUNDS = 7
NOISE = 1e-4
PARTS = ("gemm", "conv", "weight", "transposed conv")  # compute a part of the op, to see what the rest costs

Launch = Callable[..., torch.Tensor]


@dataclass
class Shape:
    """One line of the table: what is computed, and the ways to compute it."""

    name: str
    flop: float
    make: Callable[[], tuple[Any, ...]]  #: fresh arguments
    exact: Launch
    variants: dict[str, Launch]
    errors: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Timed:
    """A variant that ran, its graph and how many launches a replay has."""

    graph: torch.cuda.CUDAGraph
    launches: int
    inexact: bool


def _capture(launch: Launch, copies: list[tuple[Any, ...]], truth: torch.Tensor, allowed: float) -> Timed:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        out = launch(*copies[0])
        inexact = allowed < float("inf") and _error(out, truth) > allowed
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for arguments in copies:
            launch(*arguments)
    return Timed(graph, len(copies), inexact)


def _error(out: torch.Tensor, truth: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(out.float() - truth) / torch.linalg.vector_norm(truth))


def _bytes(values: Iterable[Any]) -> int:
    return sum(value.numel() * value.element_size() for value in values if isinstance(value, torch.Tensor))


def measure(shape: Shape, eager: str) -> dict[str, tuple[float, bool]]:
    """Microseconds per launch and whether the result is inexact, by variant."""
    first = shape.make()
    copies = [first, *(shape.make() for _ in range(min(MAX_COPIES, COLD_BYTES // _bytes(first)) or 1))]
    truth = shape.exact(*(value.float() if isinstance(value, torch.Tensor) else value for value in first)).float()
    allowed = 2 * _error(shape.variants[eager](*first), truth) + NOISE
    timed: dict[str, Timed] = {}
    for name, launch in shape.variants.items():
        try:
            timed[name] = _capture(launch, copies, truth, float("inf") if name in PARTS else allowed)
        except Exception as error:  # noqa: BLE001 (a variant that fails is a result)
            shape.errors[name] = (str(error).strip() or type(error).__name__).splitlines()[0][:160]
    rounds: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(ROUNDS):
        for name, variant in timed.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            variant.graph.replay()
            end.record()
            end.synchronize()
            rounds[name].append(start.elapsed_time(end) * 1e3 / variant.launches)
    return {name: (statistics.median(times), timed[name].inexact) for name, times in rounds.items()}


def _normal(*shape: int, std: float = 1.0) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.float16) * std


def _image(*shape: int, std: float = 1.0) -> torch.Tensor:
    return _normal(*shape, std=std).contiguous(memory_format=torch.channels_last)


def geglu_shapes() -> Iterable[Shape]:
    """The fused GEMM by tile, beside cuBLAS alone ("gemm": the floor to beat), cuBLAS with the gate kernel, and eager."""
    from sfast_core.ops.linear_geglu import triton_gate_impl, triton_tma_impl

    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    tiles = [
        triton_tma_impl.Tile(*tile, 1.0)
        for tile in (
            (128, 128, 8, 4, 1),
            (128, 128, 8, 3, 1),
            (256, 64, 8, 4, 1),
            (128, 64, 4, 3, 2),
            (128, 64, 4, 4, 1),
            (128, 64, 8, 5, 1),
            (64, 128, 4, 5, 1),
            (64, 64, 4, 4, 2),
            (128, 32, 4, 4, 2),
            (64, 32, 4, 4, 2),
        )
    ]

    def fused(tile: triton_tma_impl.Tile) -> Launch:
        def launch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            out = x.new_empty((x.shape[0], weight.shape[0] // 2))
            return triton_tma_impl.launch_tile(tile, multiprocessors, x, weight, bias, "none", out)

        return launch

    for m, n, k in GEGLU:

        def make(m: int = m, n: int = n, k: int = k) -> tuple[Any, ...]:
            return _normal(m, k), _normal(n, k, std=k**-0.5), _normal(n)

        variants: dict[str, Launch] = {
            "eager": linear_geglu.linear_geglu,
            "gemm": lambda x, w, b: F.linear(x, w, b)[:, : w.shape[0] // 2],
            "gate": triton_gate_impl.launch,
            "chosen": triton_tma_impl.launch,
        }
        for tile in tiles:
            variants[f"{tile.rows}x2x{tile.cols} w{tile.warps} s{tile.stages} p{tile.per_sm}"] = fused(tile)
        yield Shape(f"geglu {m}x{n}x{k}", 2.0 * m * n * k, make, linear_geglu.linear_geglu, variants)


def linear_add_shapes() -> Iterable[Shape]:
    """Each impl beside the linear layer alone ("gemm": the floor) and eager; "+norm": the same with the LayerNorm that follows in models.

    "gemm +norm" is what "cublaslt +norm" takes the place of: there the sum is part of the norm's kernel.
    """
    from sfast_core.ops.add_layer_norm import triton_impl as norm

    target = probe(torch.device("cuda"))
    for (m, n, k), bias in itertools.product(LINEAR_ADD, (True, False)):

        def make(m: int = m, n: int = n, k: int = k, bias: bool = bias) -> tuple[Any, ...]:
            return _normal(m, k), _normal(n, k, std=k**-0.5), _normal(n) if bias else None, _normal(m, n)

        variants: dict[str, Launch] = {"eager": linear_add.linear_add, "gemm": lambda x, w, b, r: F.linear(x, w, b)}
        variants["gemm +norm"] = lambda x, w, b, r: norm.launch(F.linear(x, w, b), r, None, None, 1e-5)[0]
        shape = Shape(f"linear_add {m}x{n}x{k}{'' if bias else ' no bias'}", 2.0 * m * n * k, make, linear_add.linear_add, variants)
        for impl in linear_add.OP.impls:
            reason = impl.why_not(target, *make())
            if reason is None:
                variants[impl.name] = impl.launch
                variants[f"{impl.name} +norm"] = _then_norm(impl.launch, norm)
            else:
                shape.errors[impl.name] = reason
        yield shape


def _then_norm(launch: Launch, norm: Any) -> Launch:
    def both(*args: Any) -> torch.Tensor:
        total = launch(*args)
        norm.launch(total, None, None, None, 1e-5)
        return total

    return both


def conv_shapes() -> Iterable[Shape]:
    """cuDNN's first plans, where it has ready-made ones, beside PyTorch with one epilogue pass and eager."""
    from sfast_core.ops.conv2d_act import cudnn_impl, torch_epilogue_impl

    target = probe(torch.device("cuda"))
    for (b, c, o, h), (residual, act) in itertools.product(CONV, ((False, "none"), (True, "none"), (False, "silu"))):

        def make(b: int = b, c: int = c, o: int = o, h: int = h, residual: bool = residual, act: str = act) -> tuple[Any, ...]:
            weight = _image(o, c, 3, 3, std=(9 * c) ** -0.5)
            return _image(b, c, h, h), weight, _normal(o), 1, 1, 1, 1, _image(b, o, h, h) if residual else None, act

        variants: dict[str, Launch] = {
            "eager": conv2d_act.conv2d_act,
            "conv": lambda x, w, b, s, p, d, g, r, act: F.conv2d(x, w, None, s, p, d, g),
            "torch_epilogue": torch_epilogue_impl.launch,
        }
        reason = cudnn_impl.why_not(target, *make())
        if reason is None:
            variants |= {f"cudnn {rank}": _plan(cudnn_impl, rank) for rank in range(3)}
        name = f"conv {b}x{c}x{h}-{o}{' +res' if residual else ''}{' silu' if act == 'silu' else ''}"
        shape = Shape(name, 2.0 * b * h * h * o * c * 9, make, conv2d_act.conv2d_act, variants)
        if reason is not None:
            shape.errors["cudnn"] = reason
        yield shape


def _plan(cudnn_impl: Any, rank: int) -> Launch:
    return lambda x, w, b, s, p, d, g, r, act: cudnn_impl.launch_plan(rank, x, w, b, s, p, d, g, r, act)


def upsample_shapes() -> Iterable[Shape]:
    """Each impl that says it can, and parts: the 4x4 weight, and the transposed convolution with it."""
    from sfast_core.ops.upsample_conv2d.triton_impl import transposed_weight

    target = probe(torch.device("cuda"))
    for b, c, h in UPSAMPLE:

        def make(b: int = b, c: int = c, h: int = h) -> tuple[Any, ...]:
            return _image(b, c, h, h), _image(c, c, 3, 3, std=(9 * c) ** -0.5), _normal(c)

        variants: dict[str, Launch] = {
            "eager": upsample_conv2d.upsample_conv2d,
            "weight": lambda x, weight, bias: transposed_weight(weight),
            **_with_ready_weight(c),
        }
        shape = Shape(f"upsample {b}x{c}x{h}-{2 * h}", 2.0 * b * 4 * h * h * c * c * 9, make, upsample_conv2d.upsample_conv2d, variants)
        for impl in upsample_conv2d.OP.impls:
            reason = impl.why_not(target, *make())
            if reason is None:
                variants[impl.name] = impl.launch
            else:
                shape.errors[impl.name] = reason
        yield shape


def _with_ready_weight(channels: int) -> dict[str, Launch]:
    transposed = _image(channels, channels, 4, 4, std=0.01)
    return {"transposed conv": lambda x, weight, bias: F.conv_transpose2d(x, transposed, None, stride=2, padding=1)}


def attention_shapes() -> Iterable[Shape]:
    """Every impl that says it can, and for few keys the tiles of the Triton kernel."""
    target = probe(torch.device("cuda"))
    for b, h, q, k, d in ATTENTION:

        def make(b: int = b, h: int = h, q: int = q, k: int = k, d: int = d) -> tuple[Any, ...]:
            if q == k:
                return tuple(x.transpose(1, 2) for x in _normal(b, q, 3, h, d).unbind(2))
            return _normal(b, q, h, d).transpose(1, 2), *(x.transpose(1, 2) for x in _normal(b, k, 2, h, d).unbind(2))

        shape = Shape(f"attention {b},{h},{q},{k},{d}", 4.0 * b * h * q * k * d, make, attention.attention, {"eager": attention.attention})
        arguments = make()
        for impl in attention.OP.impls:
            reason = impl.why_not(target, *arguments)
            if reason is None:
                shape.variants[impl.name] = impl.launch
            else:
                shape.errors[impl.name] = reason
        if "triton_cross" in shape.variants:
            shape.variants |= dict(_cross_variants(k, d))
        yield shape


def _cross_variants(keys: int, depth: int) -> Iterable[tuple[str, Launch]]:
    from sfast_core.ops.attention import triton_cross_impl

    chosen = triton_cross_impl.cut(keys, depth)
    for rows, warps, stages in ((128, 8, 2), (128, 4, 2), (64, 4, 2), (64, 4, 1)):
        if sum(chosen.head) > 96 and rows == 128:
            continue
        plan = chosen._replace(block_l=rows, warps=warps, stages=stages)
        for blocks in (1, 2, 4):

            def launch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: Any = plan, blocks: int = blocks) -> torch.Tensor:
                out = q.new_empty((q.shape[0], q.shape[2], q.shape[1], q.shape[3]))
                triton_cross_impl.launch_cut(plan, blocks, q, k, v, q.shape[3] ** -0.5, out)
                return out.transpose(1, 2)

            yield f"L{rows} w{warps} s{stages} x{blocks}", launch


def _compile(shapes: list[Shape]) -> None:
    """Launch everything once, several at a time: Triton compiles outside the interpreter's lock. Failures show up again in measure."""

    def launch(shape: Shape, variant: Launch) -> None:
        try:
            variant(*shape.make())
        except Exception:  # noqa: BLE001
            pass

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda pair: launch(*pair), [(shape, variant) for shape in shapes for variant in shape.variants.values()]))
    torch.cuda.synchronize()


def main() -> None:
    """Print one table: a line per shape, its variants from the fastest to the slowest."""
    sections = {
        "geglu": geglu_shapes,
        "linear_add": linear_add_shapes,
        "conv": conv_shapes,
        "upsample": upsample_shapes,
        "attention": attention_shapes,
    }
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False  # else the float32 convolutions that errors are measured against would be TF32
    print(" ".join(f"{name}={value}" for name, value in facts().items()))
    with torch.inference_mode():
        for section in sys.argv[1:] or sections:
            start = time.perf_counter()
            shapes = list(sections[section]())
            _compile(shapes)
            compiled = time.perf_counter() - start
            for shape in shapes:
                times = measure(shape, "eager")
                ranked = sorted(times.items(), key=lambda item: item[1][0])
                cells = [f"{name}{'!' if inexact else ''} {us:.1f} ({shape.flop / us / 1e6:.0f})" for name, (us, inexact) in ranked]
                print(f"{shape.name} | us (TFLOP/s) | " + " | ".join(cells), flush=True)
                for name, error in shape.errors.items():
                    print(f"    {name}: {error}")
                torch.cuda.empty_cache()
            print(f"{section}: compiled in {compiled:.1f} s, {time.perf_counter() - start:.1f} s in all\n", flush=True)


if __name__ == "__main__":
    main()
