"""``python -m benchmarks.cold_start``: first calls in fresh processes, with every cache empty, then with it filled.

Each row is a process of its own: it makes the model, calls it eagerly until PyTorch's libraries are warm, and then
through one provider, first at the model's size and then at three others, the last 2.25 times as large. Prints a table
and writes CSV and Markdown. Nothing of the user's caches is touched.
"""

from __future__ import annotations

import gc
import json
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .command import need_cuda, parser_of
from .full_size import MODELS, build_unet, inputs_for
from .machine import facts, write
from .own_process import json_of
from .tables import markdown

PROVIDERS = ("ours", "compile-reduce-overhead")
CACHES = ("empty", "filled")
_CALLS = 4
_OTHER_SIZES = {"SD1.5": ((64, 96), (96, 80), (96, 96)), "SDXL": ((152, 104), (96, 160), (192, 192))}  #: of the latents


@dataclass
class Row:
    """One process. Seconds; a further size's are eager's first call, ours, and our next three."""

    model: str
    provider: str
    cache: str
    eager_first_s: float
    first_call_s: float
    next_calls_s: float
    sizes_first_s: list[float]
    sizes_next_s: list[float]
    sizes_eager_first_s: list[float]


def _seconds(call: Any) -> float:
    gc.collect()  # a walk over all objects takes 0.35 s: whichever call was to set it off would take that longer
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - start


@torch.no_grad()
def measure(name: str, provider: str) -> dict[str, Any]:
    """One provider's first calls in this process."""
    model = next(model for model in MODELS if model.name == name)
    device = torch.device("cuda")
    unet = build_unet(model.config, device, torch.float16)
    inputs = inputs_for(unet, device, torch.float16)
    eager = partial(type(unet).forward, unet, **inputs)
    eager_first = _seconds(eager)
    eager()
    if provider == "ours":
        import sfast_core

        fast = sfast_core.compile(unet)
    else:
        fast = torch.compile(unet.to(memory_format=torch.channels_last), mode="reduce-overhead")
    call = partial(fast, **inputs)
    found: dict[str, Any] = {"eager_first_s": eager_first, "first_call_s": _seconds(call)}
    found["next_calls_s"] = _seconds(lambda: [call() for _ in range(_CALLS - 1)])
    found |= {"sizes_first_s": [], "sizes_next_s": [], "sizes_eager_first_s": []}
    for height, width in _OTHER_SIZES[name.split()[0]]:
        inputs["sample"] = torch.randn(2, 4, height, width, device=device, dtype=torch.float16)
        # cuDNN and cuBLAS choose their kernels for the new shapes: not ours to count
        found["sizes_eager_first_s"].append(_seconds(eager))
        found["sizes_first_s"].append(_seconds(call))
        found["sizes_next_s"].append(_seconds(lambda: [call() for _ in range(_CALLS - 1)]))
    return found


def in_own_process(name: str, provider: str, caches: Path) -> dict[str, Any]:
    """As :func:`measure`, in a new process that keeps what it compiles below ``caches``.

    Raises:
        RuntimeError: it failed; the message holds the end of its output.
    """
    return json_of(__spec__.name if __spec__ else __name__, ["--one", name, provider], caches)


def table(rows: list[Row]) -> str:
    """The rows as a Markdown table."""
    head = ["UNet, fp16, batch 2", "provider", "caches", "eager's first call", "first call", "next three"]
    head += ["further sizes: eager's first", "first call", "next three"]
    found = []
    for row in rows:
        times = [f"{seconds:.2f} s" for seconds in (row.eager_first_s, row.first_call_s, row.next_calls_s)]
        sizes = [
            ", ".join(f"{seconds:.2f} s" for seconds in each)
            for each in (row.sizes_eager_first_s, row.sizes_first_s, row.sizes_next_s)
        ]
        found.append([row.model, row.provider, row.cache, *times, *sizes])
    return markdown(head, found)


def main() -> None:
    """Parse arguments, measure, print, write."""
    parser = parser_of("cold_start", __doc__)
    parser.add_argument("--models", default="SD1.5,SDXL", help="which models, by the beginning of their names")
    parser.add_argument("--providers", default="ours", help=f"of {', '.join(PROVIDERS)}; torch.compile takes minutes")
    parser.add_argument(
        "--one", nargs=2, metavar=("MODEL", "PROVIDER"), help="measure one, in this process, and print JSON"
    )
    args = parser.parse_args()
    need_cuda("cold_start")
    if args.one:
        print(json.dumps(measure(*args.one)))
        return
    rows: list[Row] = []
    for model in MODELS:
        if any(model.name.startswith(name) for name in args.models.split(",")):
            for provider in args.providers.split(","):
                with tempfile.TemporaryDirectory() as folder:
                    for cache in CACHES:
                        print(f"{model.name}: {provider}, caches {cache} ...", flush=True)
                        rows.append(
                            Row(
                                model=model.name,
                                provider=provider,
                                cache=cache,
                                **in_own_process(model.name, provider, Path(folder)),
                            )
                        )
                        # after each: a run that is cut keeps what it has
                        text = write(args.out, "cold_start", rows, table(rows), facts())
    if rows:
        print("\n" + text)


if __name__ == "__main__":
    main()
