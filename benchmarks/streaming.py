"""``python -m benchmarks.streaming [--models SDXL,Flux] [--parts 0,50,90] [--rounds 10] [--out FOLDER]``: models of
which a part is in main memory.

For each model and part (percent, spread evenly over the layers, in pinned memory) one forward: the time with all
weights on the GPU, what has to be moved divided by the bandwidth that is measured here, and ours: as a call by itself,
and within a sampling, where a part of what is away stays on the GPU. Where nothing stays, a forward can't take less
than the larger of the two; ``ratio`` is ours to that. SDXL's UNet has batch 4, Flux 5 of its 19 double blocks and 10 of
its 38 single ones. Where ``COMFYUI_PATH`` names ComfyUI, SDXL's UNet of ComfyUI stands beside it, with the same part
offloaded by ComfyUI itself. Writes ``streaming.csv``, ``.md``.
"""

from __future__ import annotations

import logging
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from . import streaming_comfy
from .command import parser_of
from .distance import distance
from .machine import facts, write
from .tables import markdown

_DEVICE = torch.device("cuda")
_SETTLING = 4  #: calls: one by one, captured, replayed
_BANDWIDTH_BYTES = 1 << 30


@dataclass
class Row:
    """One part of one model away.

    ``alone_ms``: ours outside of a sampling, where nothing stays. ``bound_ms``: the larger of the resident step and the
    time to move what is away. ``right``: the bits of the whole model, or close to the host's.
    """

    model: str
    part: int
    moved_bytes: int
    ring_bytes: int
    kept_bytes: int
    resident_ms: float
    moving_ms: float
    bound_ms: float
    alone_ms: float
    ours_ms: float
    ratio: float
    host_ms: float
    peak_bytes: int
    budget_bytes: int
    calls: str
    right: bool


def bandwidth() -> float:
    """Bytes per second from pinned memory to the device, of copies as long as a large layer's."""
    source, to = (
        torch.empty(_BANDWIDTH_BYTES, dtype=torch.uint8).pin_memory(),
        torch.empty(_BANDWIDTH_BYTES, dtype=torch.uint8, device=_DEVICE),
    )
    return _BANDWIDTH_BYTES / (_milliseconds(lambda: to.copy_(source, non_blocking=True), 10) / 1e3)


def _milliseconds(call: Callable[[], Any], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


class _Pinned:
    """A module's weights in pinned memory, in the order of its layers; which of them are on the device changes."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._tensors = list(module.parameters())
        self._pinned: list[torch.Tensor | None] = [None] * len(self._tensors)
        self.bytes = sum(tensor.nbytes for tensor in self._tensors)

    def move(self, part: int) -> int:
        """Let ``part`` percent be away, evenly. Returns their bytes."""
        moved = seen = 0
        for index, tensor in enumerate(self._tensors):
            seen += tensor.nbytes
            away = moved + tensor.nbytes <= seen * part / 100 + tensor.nbytes / 2 and part > 0
            moved += tensor.nbytes if away else 0
            if away and tensor.device.type != "cpu":
                kept = self._pinned[index]
                if kept is None:
                    kept = self._pinned[index] = torch.empty_like(tensor, device="cpu").pin_memory()
                kept.copy_(tensor)
                tensor.data = kept
            elif not away and tensor.device.type == "cpu":
                tensor.data = tensor.data.to(_DEVICE)
        torch.cuda.empty_cache()
        return moved


def _sdxl() -> tuple[Any, dict[str, Any]]:
    from .full_size import MODELS, build_unet, inputs_for

    unet = build_unet(MODELS[1].config, _DEVICE, torch.float16)
    return unet, inputs_for(unet, _DEVICE, torch.float16, batch=4)


def _flux() -> tuple[Any, dict[str, Any]]:
    from .transformer import _build_flux, _flux_inputs

    return _build_flux(torch.bfloat16), _flux_inputs(None, torch.bfloat16)


BUILD: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {"SDXL": _sdxl, "Flux": _flux}


def measure(name: str, parts: list[int], rounds: int, budget: int | None, per_second: float) -> list[Row]:
    """All parts of one model, the whole one first."""
    from sfast_core import CompileConfig, compile

    module, inputs = BUILD[name]()
    handle = compile(module, CompileConfig(stream_budget_bytes=budget), name)
    call = partial(handle, **inputs)
    first = call()[0]
    for _ in range(_SETTLING):
        call()
    resident = _milliseconds(call, rounds)
    weights, rows, before = _Pinned(module), [], dict(handle.engine.report.calls)
    for part in parts:
        moved = weights.move(part)
        for _ in range(_SETTLING):
            call()
        alone = _milliseconds(call, rounds // 2)
        with handle.sampling():
            for _ in range(_SETTLING):
                result = call()[0]
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            free = torch.cuda.mem_get_info()[0]
            ours = _milliseconds(call, rounds)
        report = handle.engine.report
        now = {path: count - before.get(path, 0) for path, count in report.calls.items()}
        before, signature = dict(report.calls), report.signatures[0]
        moving = moved / per_second * 1e3
        bound = max(resident, moving)
        rows.append(
            Row(
                name,
                part,
                signature.streamed_bytes,
                signature.ring_bytes,
                signature.kept_bytes,
                resident,
                moving,
                bound,
                alone,
                ours,
                ours / bound,
                0.0,
                torch.cuda.max_memory_allocated(),
                weights.bytes - moved + signature.ring_bytes + signature.kept_bytes,
                " ".join(f"{path}:{count}" for path, count in now.items() if count),
                bool(torch.equal(result, first)),
            )
        )
        print(f"{rows[-1]} free {free}", file=sys.stderr, flush=True)
        for reason, count in report.reasons.items():
            print(f"  eager, {count}x: {reason}", file=sys.stderr)
    return rows


def beside_comfyui(
    name: str, parts: list[int], rounds: int, per_second: float, device: torch.device = _DEVICE
) -> list[Row]:
    """ComfyUI's UNet, partly loaded by ComfyUI, plain and through our node."""
    model, resident = streaming_comfy.PartlyLoaded(name, device, 4), 0.0
    rows: list[Row] = []
    for part in parts:
        with model.loaded(part) as moved:
            for _ in range(2):
                expected = model.call(model.plain)
            host = _milliseconds(lambda: model.call(model.plain), min(rounds, 5))
            before = dict(streaming_comfy.report_of(model).calls) if rows else {}
            for _ in range(_SETTLING):
                model.call(model.fast)
            alone = _milliseconds(lambda: model.call(model.fast), rounds // 2)
            with model.sampling():
                for _ in range(_SETTLING):
                    result = model.call(model.fast)
                torch.cuda.reset_peak_memory_stats()
                ours = _milliseconds(lambda: model.call(model.fast), rounds)
            report = streaming_comfy.report_of(model)
            signature = report.signatures[0]
            now = {path: count - before.get(path, 0) for path, count in report.calls.items()}
            resident = resident or alone
            moving = moved / per_second * 1e3
            away = int(distance(result.float(), expected.float()) > 2e-2)
            rows.append(
                Row(
                    f"{name} in ComfyUI",
                    part,
                    signature.streamed_bytes,
                    signature.ring_bytes,
                    signature.kept_bytes,
                    resident,
                    moving,
                    max(resident, moving),
                    alone,
                    ours,
                    ours / max(resident, moving),
                    host,
                    torch.cuda.max_memory_allocated(),
                    0,
                    " ".join(f"{path}:{count}" for path, count in now.items() if count),
                    not away,
                )
            )
            print(rows[-1], file=sys.stderr, flush=True)
            for reason, count in report.reasons.items():
                print(f"  eager, {count}x: {reason}", file=sys.stderr)
    return rows


def table(rows: list[Row]) -> str:
    """The rows in Markdown."""
    head = ["model", "away", "moved", "ring", "stays", "resident ms", "moving ms", "nothing stays, ms", "ours ms"]
    head += ["to the bound", "the host ms", "peak"]
    found = []
    for row in rows:
        mib = [f"{size / 2**20:.0f} MiB" for size in (row.ring_bytes, row.kept_bytes)]
        sizes = [f"{row.moved_bytes / 2**30:.2f} GiB", *mib]
        times = [f"{ms:.1f}" for ms in (row.resident_ms, row.moving_ms, row.alone_ms, row.ours_ms)]
        host = f"{row.host_ms:.1f}" if row.host_ms else "-"
        ends = [f"{row.ratio:.2f}", host, f"{row.peak_bytes / 2**30:.2f} GiB"]
        found.append([row.model, f"{row.part}%", *sizes, *times, *ends])
    return markdown(head, found)


def main() -> None:
    """Measure and write."""
    parser = parser_of("streaming", __doc__, "docs/measured")
    parser.add_argument("--models", default="SDXL,Flux", help=f"of {', '.join(BUILD)}, with commas between them")
    parser.add_argument("--parts", default="0,50,90", help="percent of the weights that are in main memory")
    parser.add_argument("--rounds", type=int, default=10, help="calls of each")
    parser.add_argument(
        "--budget",
        type=int,
        default=None,
        help="MiB of the GPU's memory for weights on their way; a part of what is free if not given",
    )
    given = parser.parse_args()
    sys.argv = sys.argv[:1]
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    budget = given.budget << 20 if given.budget is not None else None
    with torch.no_grad():
        per_second = bandwidth()
        print(f"{per_second / 1e9:.1f} GB/s from pinned memory", file=sys.stderr)
        parts = [int(part) for part in given.parts.split(",")]
        rows = [
            row for name in given.models.split(",") for row in measure(name, parts, given.rounds, budget, per_second)
        ]
        if streaming_comfy.comfyui() and "SDXL" in given.models:
            streaming_comfy.find(str(streaming_comfy.comfyui()))
            rows += beside_comfyui("SDXL", parts, given.rounds, per_second)
    print(write(given.out, "streaming", rows, table(rows), facts()))


if __name__ == "__main__":
    main()
