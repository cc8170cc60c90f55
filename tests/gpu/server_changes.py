"""``COMFYUI_PATH=... python -m tests.gpu.server_changes``: random changes of budget, model, LoRA and size in ComfyUI's
real server, one picture each.

The budget is what is left free of the GPU's memory by a block that this process takes and gives back between pictures,
down to less than the larger model: dynamic VRAM, which the server starts with where it can, then keeps a part of it in
main memory. Each picture is compared with the one that the same server gave for the same settings without us, when it
had all of the memory. Prints a line for each tenth of the changes and at the end JSON: how many failed, how many are
stale (further from their own than rounding explains, or nearer to another), how calls ran and why some as they were,
tracebacks in the log. Exits with 1 where anything is wrong. ``--cpu`` runs it without a GPU, where there is no budget,
with two small models.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.hosts.comfy.live_server import Failed, LiveServer, Rejected
from tests.hosts.comfy.workflow import txt2img
from tests.hosts.png import only_picture

ROOT = Path(__file__).resolve().parents[2]
GIB = 2**30
#: Bytes left free; the first: all. ComfyUI's own start takes some, so the last two hold less than the larger model.
BUDGETS = (None, 4 * GIB, 5 * GIB // 2, 3 * GIB // 2, 5 * GIB // 4)
LARGE = "large-sd15.safetensors"  #: with all of SD1.5's blocks, 1.7 GB
SECOND = "second-sd15.safetensors"  #: in its place without a GPU: as small as the first, with other weights
SIZES, SMALL = (128, 192), (64, 96)  #: of pictures, the second without a GPU
STRENGTHS = (0.0, 0.4, 1.0)
STEPS = 4


class State(NamedTuple):
    """What a picture is made of."""

    model: str
    lora: float
    width: int


class Change(NamedTuple):
    """One of the walk: what was changed, and what is there since then."""

    kind: str
    state: State
    budget: int | None


def walk(
    models: list[str], budgets: tuple[int | None, ...], sizes: tuple[int, ...], count: int, seed: int
) -> list[Change]:
    """``count`` changes, the same for the same seed."""
    draw = random.Random(seed)
    state, budget = State(models[0], 0.0, sizes[0]), budgets[0]
    found = []
    kinds = {
        "budget": 4 if len(budgets) > 1 else 0,
        "model": 2 if len(models) > 1 else 0,
        "LoRA": 3,
        "size": 2,
        "unloading": 1,
    }
    while len(found) < count:
        (kind,) = draw.choices(list(kinds), list(kinds.values()))
        if kind == "budget":
            budget = draw.choice([each for each in budgets if each != budget])
        elif kind == "model":
            state = state._replace(model=draw.choice([each for each in models if each != state.model]))
        elif kind == "LoRA":
            state = state._replace(lora=draw.choice([each for each in STRENGTHS if each != state.lora]))
        elif kind == "size":
            state = state._replace(width=draw.choice([each for each in sizes if each != state.width]))
        found.append(Change(kind, state, budget))
    return found


def prompt(state: State, compiled: bool, spaces: int) -> dict[str, Any]:
    """As a client sends it. ``spaces`` behind the text, which tokenizers drop: ComfyUI computes again only what has
    another input.
    """
    made = txt2img(state.model, {} if compiled else None, steps=STEPS)
    made["2"]["inputs"]["text"] += " " * spaces
    made["4"]["inputs"] |= {"width": state.width, "height": min(state.width, SIZES[0])}
    if state.lora:
        made["10"] = {
            "class_type": "LoraLoaderModelOnly",
            "inputs": {"model": ["1", 0], "lora_name": "tiny-lora.safetensors", "strength_model": state.lora},
        }
        made["8" if compiled else "5"]["inputs"]["model"] = ["10", 0]
    return made


class Budget:
    """Takes memory of the GPU, so that no more than so much is left for others."""

    def __init__(self, on: bool) -> None:
        self._on = on
        self._taken: Any = None

    def leave(self, size: int | None) -> None:
        """Leave so many bytes free; None: all."""
        if not self._on:
            return
        import torch

        self._taken = None
        torch.cuda.empty_cache()
        if size is not None and (free := torch.cuda.mem_get_info()[0]) > size:
            self._taken = torch.empty(free - size, dtype=torch.uint8, device="cuda")


def apart(mine: Any, theirs: Any) -> float:
    """The root of the mean squared difference, in levels of 255."""
    return float(((mine - theirs) ** 2).mean() ** 0.5) if mine.shape == theirs.shape else float("inf")


def is_stale(picture: Any, state: State, plain: dict[State, Any]) -> float | None:
    """How far a picture is from its own where that is further than rounding explains, or further than from another
    one's; else None.
    """
    own = apart(picture, plain[state])
    nearest = min((apart(picture, other), each) for each, other in plain.items())[1]
    return (
        own
        if own > 0.5 + 4e-2 * float(plain[state].std())
        or apart(plain[nearest], plain[state]) > 0.0
        and nearest != state
        else None
    )


def add_large(models: Path) -> None:
    """SD1.5 with all of its blocks, random; text encoder and VAE are the tiny model's."""
    from safetensors.torch import load_file, save_file

    sys.path.insert(0, os.environ["COMFYUI_PATH"])
    import comfy.options  # noqa: F401
    import torch
    from comfy.cli_args import args

    args.cpu = True  # the server has the GPU
    from benchmarks.comfy_models import checkpoint

    rest = {
        name: value
        for name, value in load_file(models / "checkpoints" / "tiny-sd15.safetensors").items()
        if not name.startswith("model.")
    }
    unet = {name: value.half().contiguous() for name, value in checkpoint("SD1.5", torch.device("cpu")).items()}
    save_file(unet | rest, models / "checkpoints" / LARGE)


def add_second(models: Path) -> None:
    """The tiny model with its UNet's matrices in another order."""
    from safetensors.torch import load_file, save_file

    weights = load_file(models / "checkpoints" / "tiny-sd15.safetensors")
    turned = {
        name: value.flip(0).contiguous()
        for name, value in weights.items()
        if name.startswith("model.") and value.dim() > 1
    }
    save_file(weights | turned, models / "checkpoints" / SECOND)


@contextlib.contextmanager
def served(device: str, large: bool, base: str | None) -> Iterator[LiveServer]:
    """A server with models of its own, in the folder ``base``: those of an earlier run, if there are any."""
    comfyui, python = Path(os.environ["COMFYUI_PATH"]).resolve(), os.environ.get("COMFYUI_PYTHON") or sys.executable
    with contextlib.nullcontext(base) if base else tempfile.TemporaryDirectory() as folder:
        if not (models := Path(folder).resolve() / "models").exists():
            _make(models, python, large)
        for link in filter(Path.is_symlink, (Path(folder) / "custom_nodes").glob("*")):
            link.unlink()  # to the pack
        server = LiveServer(Path(folder).resolve(), comfyui, python, {"fast-compile": ROOT}, device=device)
        try:
            server.wait(600)
            yield server
        finally:
            server.stop()


def _make(models: Path, python: str, large: bool) -> None:
    (models / "checkpoints").mkdir(parents=True)
    made = f"from pathlib import Path; from make_checkpoints import extras, sd15; sd15(Path({str(models)!r}) / 'checkpoints'); extras(Path({str(models)!r}))"
    subprocess.run([python, "-c", made], cwd=ROOT / "tests/hosts/comfy", check=True)
    add = "add_large" if large else "add_second"
    subprocess.run(
        [
            python,
            "-c",
            f"from pathlib import Path; from tests.gpu.server_changes import {add}; {add}(Path({str(models)!r}))",
        ],
        cwd=ROOT,
        check=True,
    )


def run(server: LiveServer, changes: list[Change], budget: Budget, limit_s: float) -> dict[str, Any]:
    """All changes, or as many as the time is enough for."""
    spaces, start = itertools.count(), time.perf_counter()
    plain = {
        state: only_picture(server.run(prompt(state, False, next(spaces))))
        for state in dict.fromkeys(change.state for change in changes)
    }
    began = len(server.log.read_text("utf-8", "replace"))
    failed: list[str] = []
    stale: list[str] = []
    done: Counter[str] = Counter()
    for number, change in enumerate(changes, 1):
        budget.leave(change.budget)
        if change.kind == "unloading":
            server.unload()
        done[change.kind] += 1
        what = f"{number}: {change.kind}, {change.state}, {'all' if change.budget is None else f'{change.budget / GIB:.2f} GiB'} left"
        try:
            far = is_stale(only_picture(server.run(prompt(change.state, True, next(spaces)))), change.state, plain)
            if far is not None:
                stale.append(f"{what}: {far:.1f} levels apart")
        except (Failed, Rejected, OSError) as error:
            failed.append(f"{what}: {type(error).__name__}: {error}"[-1500:])
        if number % max(1, len(changes) // 10) == 0:
            print(
                f"{number} of {len(changes)}, {time.perf_counter() - start:.0f} s, {len(failed)} failed, {len(stale)} stale",
                file=sys.stderr,
                flush=True,
            )
        if time.perf_counter() - start > limit_s:
            break
    budget.leave(None)
    modules = server.get("/fast_compile/report")["modules"]
    log = server.log.read_text("utf-8", "replace")
    return {
        "changes": done.total(), "by_kind": dict(done), "states": len(plain), "failed": failed, "stale": stale,
        "calls": dict(sum((Counter(module["calls"]) for module in modules), Counter[str]())),
        "reasons": dict(sum((Counter(module["reasons"]) for module in modules), Counter[str]())),
        "streamed_bytes": max((each["streamed_bytes"] + each["kept_bytes"] for module in modules for each in module["signatures"]), default=0),
        "dynamic_vram": "DynamicVRAM support detected and enabled" in log,
        "tracebacks": log[began:].count("Traceback"),
        "seconds": time.perf_counter() - start,
    }  # fmt: skip


def main() -> int:
    """Parse arguments, walk, print."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu.server_changes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--changes", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0, help="another walk")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="stop after so many seconds")
    parser.add_argument("--cpu", action="store_true", help="without a GPU: the small models, and no budget")
    parser.add_argument(
        "--server", default="", help="further arguments of ComfyUI's main.py, such as --disable-dynamic-vram"
    )
    parser.add_argument(
        "--base", help="a folder whose models are used again, and made where there are none; without it a temporary one"
    )
    given = parser.parse_args()
    if "COMFYUI_PATH" not in os.environ:
        raise SystemExit("tests.gpu.server_changes needs COMFYUI_PATH, the folder of a ComfyUI")
    models = ["tiny-sd15.safetensors", SECOND if given.cpu else LARGE]
    changes = walk(models, (None,) if given.cpu else BUDGETS, SMALL if given.cpu else SIZES, given.changes, given.seed)
    device = f"--cpu --fp32-text-enc {given.server}".strip() if given.cpu else given.server  # 16 bits take a CPU long
    with served(device, large=not given.cpu, base=given.base) as server:
        found = run(server, changes, Budget(not given.cpu), given.limit_s)
        if found["failed"] or found["stale"] or found["tracebacks"]:
            print(server.log.read_text("utf-8", "replace")[-6000:], file=sys.stderr)
    print(json.dumps(found, indent=1))
    return int(bool(found["failed"] or found["stale"] or found["tracebacks"]))


if __name__ == "__main__":
    sys.exit(main())
