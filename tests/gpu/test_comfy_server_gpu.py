"""ComfyUI's real server on a real GPU, started as a user starts it: ``COMFYUI_PATH`` names its folder.

Pictures are queued one after another, with model, VAE and text encoder compiled from the first on, and then plain.
Models are random and tiny.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.hosts.comfy.live_server import LiveServer
from tests.hosts.comfy.workflow import txt2img
from tests.hosts.png import only_picture

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.host,
    pytest.mark.skipif("COMFYUI_PATH" not in os.environ, reason="needs a ComfyUI: set COMFYUI_PATH to its folder"),
]
ROOT = Path(__file__).resolve().parents[2]
COMFYUI = Path(os.environ.get("COMFYUI_PATH", "")).resolve()
PYTHON = os.environ.get("COMFYUI_PYTHON") or sys.executable
WITHOUT = "--disable-dynamic-vram"
MODES = {"as it starts": "", "without dynamic VRAM": WITHOUT}  #: what main.py is told of its device
DYNAMIC = "DynamicVRAM support detected and enabled"  #: in the log of ComfyUI 0.26 to 0.33
#: the only reason for which calls may run as they were
NOT_RESIDENT = "dynamic VRAM keeps a part of the model in main memory"
AIMDO_WORKS = (
    "import torch, comfy_aimdo.control as control; control.init(); raise SystemExit(not control.init_device(0))"
)
PARTS = ("SD15", "Text encoder clip_l (CLIPTextModel)", "VAE decoder (TAESD)")
STEPS = 4


class Kind(NamedTuple):
    """What is asked of a picture."""

    width: int = 128
    lora: float = 0.0  #: its strength


BASE, LORA, WEAKER, WIDE = Kind(), Kind(lora=1.0), Kind(lora=0.4), Kind(width=192)
SEQUENCE = (BASE, BASE, BASE, LORA, LORA, WEAKER, WIDE, BASE, BASE)  #: a new size behind a change of LoRAs, too


class Found(NamedTuple):
    """What came of a server's pictures."""

    plain: dict[Kind, Any]  #: each kind's pixels, int (height, width, 3)
    compiled: list[tuple[Kind, Any]]  #: the pixels of SEQUENCE
    modules: dict[str, dict[str, Any]]  #: the report, by name
    started: str  #: the log until the server answered
    log: str  #: and after that
    dynamic: bool  #: whether the log says that dynamic VRAM is on


def _prompt(kind: Kind, compiled: bool, spaces: int) -> dict[str, Any]:
    """``spaces`` behind the text, which tokenizers drop: ComfyUI computes again only what has another input."""
    prompt = txt2img("tiny-sd15.safetensors", {} if compiled else None, steps=STEPS)
    prompt["2"]["inputs"]["text"] += " " * spaces
    prompt["4"]["inputs"] |= {"width": kind.width, "height": 128}
    model, clip = ["1", 0], ["1", 1]
    if kind.lora:
        strengths = {"strength_model": kind.lora, "strength_clip": kind.lora}
        source = {"model": model, "clip": clip, "lora_name": "tiny-lora.safetensors"}
        prompt["10"] = {"class_type": "LoraLoader", "inputs": {**source, **strengths}}
        model, clip = ["10", 0], ["10", 1]
    prompt["8" if compiled else "5"]["inputs"]["model"] = model
    if compiled:
        for number, what, name, source in (("30", "VAE", "vae", ["1", 2]), ("31", "CLIP", "clip", clip)):
            prompt[number] = {
                "class_type": f"ApplyFastCompile{what}",
                "inputs": {name: source, "enabled": True, "cuda_graphs": True},
            }
        prompt["6"]["inputs"]["vae"], clip = ["30", 0], ["31", 0]
    prompt["2"]["inputs"]["clip"] = prompt["3"]["inputs"]["clip"] = clip
    return prompt


def _apart(mine: Any, theirs: Any) -> float:
    """The root of the mean squared difference, in levels of 255."""
    assert mine.shape == theirs.shape
    return float(((mine - theirs) ** 2).mean() ** 0.5)


def _has_dynamic_vram() -> bool:
    """ComfyUI has since 2026."""
    return WITHOUT in (COMFYUI / "comfy" / "cli_args.py").read_text("utf-8")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of them for all servers."""
    folder = tmp_path_factory.mktemp("made") / "models"
    (folder / "checkpoints").mkdir(parents=True)
    subprocess.run([PYTHON, str(ROOT / "tests/hosts/comfy/make_checkpoints.py"), str(folder)], check=True)
    yield folder
    for model in folder.rglob("*.safetensors"):
        model.unlink()


@pytest.fixture(scope="module", params=MODES)
def found(request: pytest.FixtureRequest, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    """What came of all pictures, on a server of its own for each mode."""
    device = MODES[request.param]
    if device == WITHOUT and not _has_dynamic_vram():
        pytest.skip("this ComfyUI has no dynamic VRAM")
    base = tmp_path_factory.mktemp("server")
    (base / "models").symlink_to(models, target_is_directory=True)
    # schedules on the CPU, or ComfyUI's own first picture differs from its later ones
    packs = {"fast-compile": ROOT, "farm_repeatable.py": ROOT / "sfast_core" / "farm" / "repeatable.py"}
    server = LiveServer(base, COMFYUI, PYTHON, packs, device=device)
    try:
        server.wait()
        started, spaces = server.log.read_text("utf-8", "replace"), count()
        compiled = [(kind, only_picture(server.run(_prompt(kind, True, next(spaces))))) for kind in SEQUENCE]
        modules = {module["name"]: module for module in server.get("/fast_compile/report")["modules"]}
        plain = {kind: only_picture(server.run(_prompt(kind, False, next(spaces)))) for kind in dict.fromkeys(SEQUENCE)}
        log = server.log.read_text("utf-8", "replace")[len(started) :]
        yield Found(plain, compiled, modules, started, log, DYNAMIC in started)
    finally:
        server.stop()


def test_dynamic_vram_is_on_where_it_works(found: Found, request: pytest.FixtureRequest) -> None:
    """Where ComfyUI has it and isn't told to do without, as its log says."""
    works = (
        _has_dynamic_vram()
        and not subprocess.run([PYTHON, "-c", AIMDO_WORKS], capture_output=True, check=False).returncode
    )
    wanted = MODES[request.node.callspec.params["found"]] != WITHOUT
    assert found.dynamic == (works and wanted), found.started[-3000:]


def test_the_pictures_are_the_plain_ones(found: Found) -> None:
    """Up to the rounding of bfloat16, in which ComfyUI decodes, and of a PNG's levels; a LoRA and its strength change
    them by more.
    """
    distances = [_apart(picture, found.plain[kind]) for kind, picture in found.compiled]
    contrast = min(picture.std() for picture in found.plain.values())
    assert contrast > 5, f"{contrast:.1f} levels: a picture of one colour proves nothing"
    assert max(distances) <= 0.5 + 4e-2 * contrast, f"{distances} levels apart, of a contrast of {contrast:.1f}"
    for one, other in ((BASE, LORA), (BASE, WEAKER), (LORA, WEAKER)):
        assert _apart(found.plain[one], found.plain[other]) > 5 * max(distances), (one, other, distances)


def test_the_same_picture_has_the_same_bits(found: Found) -> None:
    """Whatever ran in between: a LoRA, another strength of it, another size."""
    first: dict[Kind, Any] = {}
    differ = {
        number: _apart(picture, first.setdefault(kind, picture))
        for number, (kind, picture) in enumerate(found.compiled)
    }
    assert not any(differ.values()), f"levels from the first of their kind, by their place in SEQUENCE: {differ}"


@pytest.mark.parametrize("part", PARTS)
def test_each_part_is_replayed(found: Found, part: str) -> None:
    """On the GPU, for every picture; under dynamic VRAM calls while something isn't resident run as they were, and say
    so.
    """
    module = found.modules[part]
    calls, reasons, signatures = module["calls"], module["reasons"], module["signatures"]
    no_graph = [reason for signature in signatures if (reason := signature["not_captured_because"])]
    shown = f"{calls}, {reasons}, {no_graph}\n{found.log[-2000:]}"
    assert calls.get("eager", 0) == sum(reasons.values()), shown
    assert module["device"].startswith("cuda") and sum(calls.values()) >= len(SEQUENCE), shown
    if found.dynamic and (reasons or no_graph):
        assert all(NOT_RESIDENT in reason for reason in [*reasons, *no_graph]), shown
    else:
        assert not reasons and not no_graph and module["graph_bytes"] > 0, shown
        assert calls.get("replayed", 0) > calls.get("fused", 0), shown


def test_the_log_has_no_traceback(found: Found) -> None:
    """Since the server answered: before that ComfyUI shows its own,
    for each package that some node of its own lacks.
    """
    assert "Traceback" not in found.log, found.log[-5000:]
    (pack,) = [line for line in found.started.splitlines() if line.endswith("custom_nodes/fast-compile")]
    assert "IMPORT FAILED" not in pack, found.started[-3000:]
