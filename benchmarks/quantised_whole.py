"""``COMFYUI_PATH=... python -m benchmarks.quantised_whole --format int8``: Flux dev as a whole in 8 bits, sampled by a
real ComfyUI through the node.

Its random weights are drawn on the GPU as the numbers that a checkpoint has, so that it is ready in seconds. The time
is that of a sampling run of so many steps, the sampler and the prompt's copies with it; beside it what the first run
took, and with ``--comfyui`` ComfyUI's own path on the same weights.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from .comfy_variant import fast_compile
from .command import comfyui_for, need_cuda, parser_of, version
from .machine import facts, write
from .quantised_models import FAMILIES, FORMATS, Family, in_8_bits, is_quantised, load, prompt, shapes_of
from .tables import markdown

_FLUX = FAMILIES["Flux dev, 3 + 6 blocks"]
FLUX = replace(_FLUX, unet={**_FLUX.unet, "depth": 19, "depth_single_blocks": 38})
_TEMPLATE = 256  #: features of a layer that is quantised to see under which keys it is saved


@dataclass
class Row:
    """One variant of the model in one format."""

    model: str
    format: str
    variant: str
    steps: int
    first_s: float  #: of the first run of one step
    run_s: float  #: of a run of all steps, the median of three
    peak_bytes: int
    calls: str  #: how they ran


def checkpoint(family: Family, kind: str, device: torch.device) -> dict[str, torch.Tensor]:
    """The diffusion model's state dict with layers of ``kind`` (ComfyUI's name of a format), or in bfloat16."""
    generator, found = torch.Generator(device).manual_seed(0), dict[str, torch.Tensor]()
    for key, like in shapes_of(family).items():
        if is_quantised(key, like) and kind in ("int8_tensorwise", "float8_e4m3fn"):
            found.update(_numbers(key, like, kind, generator))
        elif like.dim() > 1:
            found[key] = (
                torch.randn(like.shape, dtype=torch.bfloat16, device=device, generator=generator)
                / like[0].numel() ** 0.5
            )
        else:
            found[key] = torch.full(
                like.shape, float(key.endswith(("weight", "scale"))), dtype=torch.bfloat16, device=device
            )
    return found


def _numbers(key: str, like: torch.Tensor, kind: str, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """A layer's numbers, their scale and what says so, under the keys that ComfyUI saves them under."""
    rows, columns = like.shape
    small = in_8_bits(torch.ones(_TEMPLATE, _TEMPLATE, device=generator.device), kind).state_dict(key)
    numbers = torch.empty((rows, columns), dtype=small[key].dtype, device=generator.device)
    if numbers.dtype == torch.int8:
        deviation = 127 / 3**0.5
        numbers.random_(-127, 128, generator=generator)
    else:
        deviation = 32.0
        for part in numbers.split(1024):
            part.copy_(
                torch.randn(part.shape, dtype=torch.float16, device=part.device, generator=generator) * deviation
            )
    found = {
        key: numbers,
        f"{key.removesuffix('.weight')}.comfy_quant": torch.tensor(
            list(json.dumps({"format": kind}).encode()), dtype=torch.uint8
        ),
    }
    for name, scale in small.items():
        if name != key:
            shape = [rows if size == _TEMPLATE else size for size in scale.shape]
            found[name] = torch.full(shape, columns**-0.5 / deviation, dtype=scale.dtype, device=generator.device)
    return found


def measure(name: str, steps: int, comfyui: bool, device: torch.device) -> list[Row]:
    """The rows of one format."""
    start = time.perf_counter()
    patcher = load(FLUX, checkpoint(FLUX, FORMATS[name] or "", device), device)
    torch.cuda.synchronize()
    print(f"Flux dev, {name}: ready in {time.perf_counter() - start:.0f} s", flush=True)
    rows = []
    for variant, prepared in (
        (("comfyui", lambda each: each), ("ours", fast_compile)) if comfyui else (("ours", fast_compile),)
    ):
        model = prepared(patcher.clone())
        torch.cuda.reset_peak_memory_stats()
        first = _sample(model, 1)
        _sample(model, 2)
        run = statistics.median(_sample(model, steps) for _ in range(3))
        rows.append(
            Row(
                "Flux dev",
                name,
                variant,
                steps,
                first,
                run,
                torch.cuda.max_memory_allocated(),
                _calls() if variant == "ours" else "",
            )
        )
    return rows


def _sample(patcher: Any, steps: int) -> float:
    """Seconds of a run."""
    import comfy.sample

    latent = torch.zeros(FLUX.latent)
    noise = comfy.sample.prepare_noise(latent, 0)
    torch.cuda.synchronize()
    start = time.perf_counter()
    comfy.sample.sample(
        patcher,
        noise,
        steps,
        FLUX.cfg,
        "euler",
        "simple",
        prompt(FLUX, 1),
        prompt(FLUX, 2),
        latent,
        disable_pbar=True,
        seed=0,
    )
    torch.cuda.synchronize()
    return time.perf_counter() - start


def _calls() -> str:
    from sfast_core.hosts.comfy import report

    return " ".join(f"{how} {count}" for module in report().modules for how, count in module.calls.items())


def table(rows: list[Row]) -> str:
    """The rows as a Markdown table."""
    head = ["whole model", "format", "variant", "steps", "sampling", "first step", "peak memory", "calls"]
    found = []
    for row in rows:
        times = [f"{row.run_s:.2f} s", f"{row.first_s:.1f} s", f"{row.peak_bytes / 2**30:.2f} GiB"]
        found.append([row.model, row.format, row.variant, row.steps, *times, row.calls])
    return markdown(head, found)


def main() -> None:
    """Parse arguments, measure, print, write."""
    parser = parser_of("quantised_whole", __doc__)
    parser.add_argument("--format", default="int8", help="bf16, int8 or fp8; several with commas between them")
    parser.add_argument("--steps", type=int, default=28)
    parser.add_argument("--comfyui", action="store_true", help="ComfyUI's own path, too")
    args = parser.parse_args()
    comfyui = comfyui_for("quantised_whole")
    need_cuda("quantised_whole")
    import comfy.options  # noqa: F401  (it leaves this program's arguments alone)

    machine = {"ComfyUI": version(comfyui), **facts()}
    rows: list[Row] = []
    with torch.no_grad():
        for name in args.format.split(","):
            rows += measure(name, args.steps, args.comfyui, torch.device("cuda"))
            torch.cuda.empty_cache()
    print("\n" + write(args.out, "quantised_whole", rows, table(rows), machine))


if __name__ == "__main__":
    main()
