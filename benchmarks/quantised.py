"""``COMFYUI_PATH=... python -m benchmarks.quantised``: diffusion transformers from 8-bit checkpoints in a real ComfyUI,
plain and through the node.

For each family and format ComfyUI's own path on the same weights, and ours; bf16 beside them. A step is what one more
sampling step takes, with the sampler around it. Errors are relative L2 distances of a step's result to what the
checkpoint means (its weights dequantised, computed in float32), and of ours to ComfyUI's on the same format.

With ``--loras 1,4`` so many LoRAs are put on, on all quantised layers: what a step and the swap take then, and whether
the weights that ours computes with have the bits of ComfyUI's.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch

from .comfy_variant import fast_compile
from .command import comfyui_for, need_cuda, parser_of, version
from .distance import distance
from .machine import facts, write
from .quantised_models import FAMILIES, FORMATS, Family, load, lora, meant, prompt, quantised, weights_of
from .tables import markdown

_VARIANTS = {"comfyui": lambda patcher: patcher, "ours": fast_compile}


@dataclass
class Row:
    """One format of one family, by one variant, with so many LoRAs."""

    model: str
    format: str
    variant: str
    loras: int
    step_ms: float
    first_s: float  #: of the first step: without LoRAs with all that is made once, with LoRAs with the swap
    peak_bytes: int
    error: float  #: of the latent behind one step to what the checkpoint means in float32, relative L2; NaN with LoRAs
    to_comfyui: float  #: to ComfyUI's with the same weights
    traces: int  #: that this took
    same_weights: bool  #: whether all quantised weights have the bits of ComfyUI's


@dataclass
class _Theirs:
    """What ComfyUI's own path made of one number of LoRAs."""

    latent: torch.Tensor
    weights: list[torch.Tensor]


def measure(name: str, formats: list[str], steps: int, loras: list[int], device: torch.device) -> list[Row]:
    """Every format and variant of one family."""
    family = FAMILIES[name]
    weights = weights_of(family, device)
    rows: list[Row] = []
    for kind in formats:
        exact = _sample(load(family, meant(weights, FORMATS[kind]), device, torch.float32), family, 1)[0]
        torch.cuda.empty_cache()
        patcher = load(family, quantised(weights, FORMATS[kind]), device)
        theirs: dict[int, _Theirs] = {}
        # one after the other: a swap is from one number of LoRAs to the next
        for variant, prepared in _VARIANTS.items():
            for count in (0, *loras):
                model = _with_loras(prepared(patcher.clone()), weights, count)
                torch.cuda.reset_peak_memory_stats()
                traces = _traces()
                result, first = _sample(model, family, 1)
                _sample(model, family, steps)
                result = _sample(model, family, 1)[0]
                short, long = ([_sample(model, family, number)[1] for _ in range(5)] for number in (1, steps))
                step = (statistics.median(long) - statistics.median(short)) / (steps - 1) * 1e3
                peak = torch.cuda.max_memory_allocated()
                theirs.setdefault(count, _Theirs(result, [part.clone() for part in _parts(model)] if count else []))
                # whoever holds a weight is in a swap's way
                same = not count or all(map(torch.equal, _parts(model), theirs[count].weights))
                error, to_comfyui = (
                    float("nan") if count else distance(result, exact),
                    distance(result, theirs[count].latent),
                )
                rows.append(
                    Row(name, kind, variant, count, step, first, peak, error, to_comfyui, _traces() - traces, same)
                )
        del patcher, model, theirs
        torch.cuda.empty_cache()
    return rows


def _with_loras(patcher: Any, weights: dict[str, torch.Tensor], count: int) -> Any:
    import comfy.sd

    for number in range(count):
        patcher = comfy.sd.load_lora_for_models(patcher, None, lora(weights, 1000 * number), 0.7, 0.0)[0]
    return patcher


def _parts(patcher: Any) -> list[torch.Tensor]:
    """The numbers of all quantised weights, as bytes."""
    found = [getattr(weight, "_qdata", None) for weight in patcher.model.diffusion_model.parameters()]
    return [numbers.view(torch.uint8) for numbers in found if numbers is not None]


def _traces() -> int:
    from sfast_core.hosts.comfy import report

    return sum(module.calls["traced"] for module in report().modules)


def _sample(patcher: Any, family: Family, steps: int) -> tuple[torch.Tensor, float]:
    """The latent, and the seconds that it took."""
    import comfy.sample

    latent = torch.zeros(family.latent)
    noise = comfy.sample.prepare_noise(latent, 0)
    torch.cuda.synchronize()
    start = time.perf_counter()
    result = comfy.sample.sample(
        patcher,
        noise,
        steps,
        family.cfg,
        "euler",
        "simple",
        prompt(family, 1),
        prompt(family, 2),
        latent,
        disable_pbar=True,
        seed=0,
    )
    torch.cuda.synchronize()
    return result.float().cpu(), time.perf_counter() - start


def table(rows: list[Row]) -> str:
    """The rows as Markdown tables: the formats, and the LoRAs where there are some."""
    head = ["a step", "format", "variant", "ms", "first call", "peak memory", "error", "distance to ComfyUI's"]
    found: list[list[object]] = []
    for row in rows:
        if not row.loras:
            cells = [row.model, row.format, row.variant, f"{row.step_ms:.1f}", f"{row.first_s:.1f} s"]
            found.append([*cells, f"{row.peak_bytes / 2**30:.2f} GiB", f"{row.error:.1e}", f"{row.to_comfyui:.1e}"])
    formats = markdown(head, found)
    if not any(row.loras for row in rows):
        return formats
    head = ["LoRAs", "format", "variant", "number", "ms", "first step, with the swap", "new traces", "weights"]
    head.append("distance to ComfyUI's")
    found = []
    for row in rows:
        if row.loras:
            cells = [row.model, row.format, row.variant, str(row.loras), f"{row.step_ms:.1f}", f"{row.first_s:.2f} s"]
            bits = "the same bits" if row.same_weights else "other bits"
            found.append([*cells, row.traces, bits, f"{row.to_comfyui:.1e}"])
    return f"{formats}\n\n{markdown(head, found)}"


def main() -> None:
    """Parse arguments, measure, print, write."""
    parser = parser_of("quantised", __doc__)
    parser.add_argument(
        "--models",
        default=";".join(FAMILIES),
        help="which families, with semicolons between them; the beginning of a name will do",
    )
    parser.add_argument(
        "--formats",
        default="bf16,int8,fp8",
        help=f"of {', '.join(FORMATS)}; GGUF's need COMFYUI_GGUF_PATH, ComfyUI-GGUF's folder",
    )
    parser.add_argument("--loras", default="", help="numbers of LoRAs, with commas between them")
    parser.add_argument("--steps", type=int, default=9)
    args = parser.parse_args()
    comfyui = comfyui_for("quantised")
    need_cuda("quantised")
    import comfy.options  # noqa: F401  (it leaves this program's arguments alone)

    machine = {"ComfyUI": version(comfyui), **facts()}
    names = [name for name in FAMILIES if any(name.startswith(asked) for asked in args.models.split(";"))]
    rows: list[Row] = []
    for name in names:
        print(f"{name}: {args.formats} ...", flush=True)
        with torch.no_grad():  # PyTorch 2.13 makes no parameter of a tensor of a class of its own in inference mode
            rows += measure(
                name,
                args.formats.split(","),
                args.steps,
                [int(number) for number in args.loras.split(",") if number],
                torch.device("cuda"),
            )
        # after each: a run that is cut keeps what it has
        text = write(args.out, "quantised", rows, table(rows), machine)
    print("\n" + text)


if __name__ == "__main__":
    main()
