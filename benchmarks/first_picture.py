"""``COMFYUI_PATH=... python -m benchmarks.first_picture``: the first pictures of few steps in fresh processes, by a
real ComfyUI and through the node.

Models that are distilled to four steps are ready before a compiler has begun, so what the first picture takes is what
their users see. Each row is a process of its own: a whole model with random weights on the GPU, sampled once and then
again. ComfyUI alone comes first; then the node, with Triton's cache and the kept choices empty, and twice with them
filled. Nothing of the user's caches is touched.
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from .comfy_models import SHARED, UNETS
from .command import comfyui_for, need_cuda, parser_of, version
from .machine import facts, write
from .own_process import json_of
from .quantised_models import FAMILIES, Family
from .tables import markdown

_XL = {**SHARED, **UNETS["SDXL"], "use_temporal_attention": False}


def _whole(name: str, **unet: Any) -> Family:
    """A model with all of its blocks, without guidance, as those of few steps are sampled."""
    few = FAMILIES[name]
    return replace(few, unet={**few.unet, **unet}, cfg=1.0)


MODELS = {
    "SDXL": Family("SDXL", _XL, (1, 4, 128, 128), (77, 2048), 1280),
    "Flux": _whole("Flux dev, 3 + 6 blocks", depth=19, depth_single_blocks=38, guidance_embed=False),
    "Z-Image": _whole("Z-Image turbo, 4 + 4 blocks", n_layers=30),
}
_VARIANTS = (("comfyui", ""), ("ours", "empty"), ("ours", "filled"), ("ours", "filled"))


@dataclass
class Row:
    """One process."""

    model: str
    variant: str
    caches: str
    steps: int
    first_s: float  #: the first picture
    second_s: float
    first_step_s: float
    parts: str  #: what the first step was spent on, as the report tells it


def sampled(patcher: Any, family: Family, steps: int) -> list[float]:
    """Seconds from the start until each step's result is there, and until the picture is."""
    import comfy.sample

    from .family_sampling import euler
    from .quantised_models import prompt

    latent = torch.zeros(family.latent)
    noise, prompts = comfy.sample.prepare_noise(latent, 0), (prompt(family, 1), prompt(family, 2))
    torch.cuda.synchronize()
    seconds, start = list[float](), time.perf_counter()

    def now(*_: object) -> None:
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)

    euler(patcher, family.cfg, steps, noise, prompts, latent, callback=now)
    now()
    return seconds


def measure(name: str, variant: str, steps: int) -> dict[str, Any]:
    """One variant's first two pictures in this process."""
    import comfy.options  # noqa: F401  (it leaves this program's arguments alone)

    from .quantised_models import load
    from .quantised_whole import checkpoint

    family, device = MODELS[name], torch.device("cuda")
    dtype = torch.float16 if name == "SDXL" else torch.bfloat16
    patcher = load(family, checkpoint(family, "", device), device, dtype)
    if variant == "ours":
        from .comfy_variant import fast_compile

        patcher = fast_compile(patcher)
    with torch.inference_mode():
        first = sampled(patcher, family, steps)
        second = sampled(patcher, family, steps)
    return {
        "first_s": first[-1],
        "second_s": second[-1],
        "first_step_s": first[0],
        "parts": _parts() if variant == "ours" else "",
    }


def _parts() -> str:
    from sfast_core.hosts.comfy import report

    signatures = [each for module in report().modules for each in module.signatures]
    times = {
        "recorded": sum(each.trace_s for each in signatures),
        "rewritten": sum(each.rewrite_s for each in signatures),
        "captured": sum(each.capture_s for each in signatures),
    }
    return ", ".join(f"{name} {seconds:.2f}" for name, seconds in times.items())


def in_own_process(name: str, variant: str, steps: int, caches: Path) -> dict[str, Any]:
    """As :func:`measure`, in a new process that keeps what it compiles below ``caches``.

    Raises:
        RuntimeError: it failed; the message holds the end of its output.
    """
    return json_of(__spec__.name if __spec__ else __name__, ["--one", name, variant, str(steps)], caches)


def table(rows: list[Row]) -> str:
    """The rows as a Markdown table."""
    head = ["1024x1024", "variant", "caches", "steps", "first picture", "beyond ComfyUI's", "second", "first step"]
    theirs = {row.model: row.first_s for row in rows if row.variant == "comfyui"}
    found = []
    for row in rows:
        beyond = "" if row.variant == "comfyui" else f"{row.first_s - theirs[row.model]:+.2f} s"
        times = [f"{row.first_s:.2f} s", beyond, f"{row.second_s:.2f} s", f"{row.first_step_s:.2f} s"]
        found.append([row.model, row.variant, row.caches, row.steps, *times, row.parts])
    return markdown([*head, "parts"], found)


def main() -> None:
    """Parse arguments, measure, print, write."""
    parser = parser_of("first_picture", __doc__)
    parser.add_argument("--models", default=",".join(MODELS), help=f"of {', '.join(MODELS)}")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument(
        "--one", nargs=3, metavar=("MODEL", "VARIANT", "STEPS"), help="measure one, in this process, and print JSON"
    )
    args = parser.parse_args()
    comfyui = comfyui_for("first_picture")
    need_cuda("first_picture")
    if args.one:
        model, variant, steps = args.one
        print(json.dumps(measure(model, variant, int(steps))))
        return
    machine = {"ComfyUI": version(comfyui), **facts()}
    rows: list[Row] = []
    for model in args.models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            for variant, caches in _VARIANTS:
                print(f"{model}: {variant} {caches} ...", flush=True)
                found = in_own_process(model, variant, args.steps, Path(folder))
                rows.append(Row(model=model, variant=variant, caches=caches, steps=args.steps, **found))
                # after each: a run that is cut keeps what it has
                text = write(args.out, "first_picture", rows, table(rows), machine)
    print("\n" + text)


if __name__ == "__main__":
    main()
