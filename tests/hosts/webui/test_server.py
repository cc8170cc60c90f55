"""A1111's, Forge's and reForge's real servers with the repository in ``extensions/``: pictures with the toggle off and
on, and what ran how.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from tests.hosts.webui.live_webui import Failed, LiveWebui
from tests.hosts.webui.pictures import OFF, ON, assert_same, calls_of, differ, fused, off_and_on, pixels

pytestmark = pytest.mark.host
_NUMBERS = count()
#: Forge's API fails where it isn't told ``hr_additional_modules``.
HIRES = {
    "enable_hr": True,
    "hr_scale": 2,
    "hr_upscaler": "Latent",
    "denoising_strength": 0.7,
    "hr_additional_modules": [],
}


def _png(webui: LiveWebui, seed: int = 5) -> str:
    return base64.b64encode(webui.generate("txt2img", {"seed": seed}, OFF)["images"][0]).decode()


def test_the_extension_loads(webui: LiveWebui) -> None:
    """Beside another extension that has a package ``nodes`` and a module ``install`` too; with its tab, its settings
    and its arguments.
    """
    log = webui.log.read_text()
    assert "Error loading script: fast_compile" not in log and "Error executing callback" not in log
    (script,) = (s for s in webui.get("/sdapi/v1/script-info") if s["name"] == "fast compile" and not s["is_img2img"])
    assert script["is_alwayson"] and [argument["value"] for argument in script["args"]] == [
        False,
        True,
        True,
        True,
        "exact",
    ]
    shown = {component["props"].get("elem_id"): component["props"] for component in webui.get("/config")["components"]}
    assert "tab_fast_compile" in shown and "fast_compile_tab_report" in shown
    assert (
        shown["setting_fast_compile_enabled"]["value"] is False
        and shown["setting_fast_compile_cuda_graphs"]["value"] is True
    )
    assert {f"script_{tab}_fast_compile_enabled" for tab in ("txt2img", "img2img")} <= set(shown)


def test_txt2img(webui: LiveWebui) -> None:
    """Three steps are three calls; the second picture is made from the first one's trace,
    and is the same to the bit.
    """
    first, calls, _ = off_and_on(webui, {})
    assert fused(calls) == 3
    again, calls, _ = off_and_on(webui, {})
    assert fused(calls) == 3 and calls["fused"] == 3, "traced a second time"
    assert_same(again, first, 0)
    assert "Fast Compile: on" in json.loads(first["info"])["infotexts"][0]


def test_off_is_as_if_it_were_not_there(webui: LiveWebui) -> None:
    """Without arguments it is off; the forward and the weights' layouts are those from before, and so are the picture's
    bits.
    """
    off = webui.generate("txt2img", {})
    before = webui.post("/probe/look")
    webui.generate("txt2img", {}, ON)
    assert not webui.post("/probe/look")["own_forward"]
    again = webui.generate("txt2img", {})
    assert webui.post("/probe/look") == before
    assert (
        pixels(again)[0].tolist() == pixels(off)[0].tolist()
        and "Fast Compile" not in json.loads(again["info"])["infotexts"][0]
    )


def _prompts(*words: str) -> Iterator[str]:
    """Prompts that weren't used before: the webui keeps what it has encoded."""
    for word in words:
        yield f"{word} {next(_NUMBERS)}"


def test_vae_and_text_encoder(webui: LiveWebui) -> None:
    """Decoding a picture and encoding its prompts are fused too; with their switches off they aren't touched, and the
    infotext says so.
    """
    for prompt in _prompts("a dog", "a house"):  # prompt and negative prompt are encoded one by one or together
        body = {"prompt": prompt, "negative_prompt": f"no {prompt}"}
        before = {of: calls_of(webui, of)[0] for of in ("VAE decoder", "Text encoder")}
        fast = webui.generate("txt2img", body, ON)
        made = {of: calls_of(webui, of)[0] - calls for of, calls in before.items()}
        assert fused(made["VAE decoder"]) == 1 and fused(made["Text encoder"]) >= 1, made
        webui.generate("txt2img", {"prompt": "something else"}, OFF)
        assert_same(fast, webui.generate("txt2img", body, OFF))
    assert made["VAE decoder"] == {"fused": 1} and not made["Text encoder"]["traced"], "traced a second time"
    # on a CPU, Forge's VAE takes some scores at a time
    found = ("VAE decoder", "Text encoder") if webui.host.name == "A1111" else "Text encoder"
    parts = [module for module in webui.get("/fast_compile/report")["modules"] if module["name"].startswith(found)]
    assert all("attention" in signature["impls"] for module in parts for signature in module["signatures"]), parts
    before = {of: calls_of(webui, of)[0] for of in ("VAE", "Text encoder")}
    (prompt,) = _prompts("a tree")
    off = webui.generate("txt2img", {"prompt": prompt}, [{"enabled": True, "vae": False, "text_encoder": False}])
    assert {of: calls_of(webui, of)[0] for of in before} == before
    text = json.loads(off["info"])["infotexts"][0]
    assert (
        "Fast Compile: on" in text and "Fast Compile VAE: False" in text and "Fast Compile text encoder: False" in text
    )


def test_vae_and_text_encoder_are_left_as_they_were(webui: LiveWebui) -> None:
    """No forward of ours between two pictures, and with the toggle off the weights lie as they lay."""
    webui.generate("txt2img", {}, OFF)
    before = webui.post("/probe/parts")
    webui.generate("txt2img", {"prompt": next(_prompts("a boat"))}, ON)
    between = webui.post("/probe/parts")
    assert [part["own_forward"] for part in between] == [part["own_forward"] for part in before]
    webui.generate("txt2img", {}, OFF)
    assert len(before) >= 3 and webui.post("/probe/parts") == before


@pytest.mark.parametrize(
    ("body", "calls"),
    [
        ({"batch_size": 3}, 3),
        ({"n_iter": 2}, 6),
        ({"cfg_scale": 1}, 3),
        ({"width": 96, "height": 64}, 3),
        ({"prompt": "a long prompt, " * 12}, None),
        ({"s_min_uncond": 100, "steps": 4}, 4),
        ({"tiling": True}, 3),
        ({"sampler_name": "Heun"}, 5),
        ({**HIRES, "hr_second_pass_steps": 2}, None),
    ],
    ids=["batch", "iterations", "cfg 1", "wide", "unequal prompts", "no uncond", "tiling", "two calls a step", "hires"],
)
def test_kinds_of_txt2img(webui: LiveWebui, body: dict[str, Any], calls: int | None) -> None:
    """Whatever makes calls of other shapes or more of them, all of them fused."""
    _, made, _ = off_and_on(webui, body)
    assert fused(made) == calls if calls is not None else fused(made) >= 3


def test_tiling_off_again(webui: LiveWebui) -> None:
    """Tiling changes each convolution's padding; a trace from before must not be used."""
    plain = webui.generate("txt2img", {}, ON)
    tiled = webui.generate("txt2img", {"tiling": True}, ON)
    again = webui.generate("txt2img", {}, ON)
    assert_same(again, plain)
    assert_same(tiled, webui.generate("txt2img", {"tiling": True}, OFF))


def test_img2img_and_inpaint(webui: LiveWebui) -> None:
    """With an image, and with a mask."""
    image = _png(webui)
    body = {"init_images": [image], "denoising_strength": 0.9, "steps": 4}
    encoded, _ = calls_of(webui, "VAE encoder")
    _, calls, _ = off_and_on(webui, body, "img2img")
    assert fused(calls) >= 3 and fused(calls_of(webui, "VAE encoder")[0] - encoded) >= 1
    pil = pytest.importorskip("PIL.Image")
    pil.new("L", (64, 64), 0).save(mask := io.BytesIO(), "PNG")
    half = pil.open(mask)
    half.paste(255, (0, 0, 32, 64))
    half.save(mask := io.BytesIO(), "PNG")
    encoded = base64.b64encode(mask.getvalue()).decode()
    _, calls, _ = off_and_on(webui, {**body, "mask": encoded, "inpainting_fill": 1, "mask_blur": 0}, "img2img")
    assert fused(calls) >= 3


def test_loras(webui: LiveWebui) -> None:
    """On, stronger, off again, always with the toggle on: a replay must not skip the change."""
    prompts = ["a cat", "a cat <lora:loud:1>", "a cat <lora:loud:0.3>", "a cat", "a cat <lora:loud:1>"]
    off = [webui.generate("txt2img", {"prompt": prompt}, OFF) for prompt in prompts]
    assert differ(off[1], off[0]) and differ(off[2], off[1]), "the LoRA isn't seen"
    calls, _ = calls_of(webui)
    on = [webui.generate("txt2img", {"prompt": prompt}, ON) for prompt in prompts]
    for mine, theirs in zip(on, off, strict=True):
        assert_same(mine, theirs)
    made = calls_of(webui)[0] - calls
    assert fused(made) == 15
    assert_same(webui.generate("txt2img", {}, OFF), off[0], 0)


def test_hires_with_another_lora(webui: LiveWebui) -> None:
    """The LoRA comes in the middle of the generation."""
    _, calls, _ = off_and_on(webui, {**HIRES, "hr_prompt": "a cat <lora:loud:1>", "steps": 2})
    assert fused(calls) >= 4


def test_an_exception_in_the_middle(webui: LiveWebui) -> None:
    """The webui then calls no ``postprocess``: the next picture cleans up, with the toggle off as well as on."""
    off = webui.generate("txt2img", {}, OFF)
    for arguments in (OFF, ON):
        webui.post("/probe/fail")
        with pytest.raises(Failed):
            webui.generate("txt2img", {}, ON)
        assert_same(webui.generate("txt2img", {}, arguments), off)
        assert not webui.post("/probe/look")["own_forward"]
    _, calls, _ = off_and_on(webui, {})
    assert fused(calls) == 3


def test_on_and_off_twenty_times(webui: LiveWebui) -> None:
    """Always the same two pictures and the same UNet, and nothing is traced anew or kept twice."""
    off, on = webui.generate("txt2img", {}, OFF), webui.generate("txt2img", {}, ON)
    webui.generate("txt2img", {}, OFF)
    before, (calls, _) = webui.post("/probe/look"), calls_of(webui)
    signatures = {module["name"]: len(module["signatures"]) for module in webui.get("/fast_compile/report")["modules"]}
    for _ in range(20):
        assert_same(webui.generate("txt2img", {}, ON), on, 0)
        assert_same(webui.generate("txt2img", {}, OFF), off, 0)
        assert webui.post("/probe/look") == before
    made = calls_of(webui)[0] - calls
    assert made == {"fused": 60}, made
    assert {
        module["name"]: len(module["signatures"]) for module in webui.get("/fast_compile/report")["modules"]
    } == signatures


def test_another_checkpoint(webui: LiveWebui) -> None:
    """A1111 loads it into the same modules."""
    tiny = webui.generate("txt2img", {}, OFF)
    other = {
        "override_settings": {"sd_model_checkpoint": "other.safetensors"},
        "override_settings_restore_afterwards": False,
    }
    webui.generate("txt2img", {}, ON)
    mine, calls, _ = off_and_on(webui, other)
    assert fused(calls) == 3 and differ(mine, tiny)
    back = {**other, "override_settings": {"sd_model_checkpoint": "tiny.safetensors"}}
    assert_same(webui.generate("txt2img", back, ON), tiny)


def test_another_vae(webui: LiveWebui) -> None:
    """The webui loads it into the same modules; without one named, A1111 the checkpoint's own again."""
    if webui.host.name == "Forge":
        pytest.skip("Forge takes a VAE as a module of the checkpoint")
    own = webui.generate("txt2img", {}, ON)
    for name in ("other.safetensors", "None"):
        chosen = {"override_settings": {"sd_vae": name}, "override_settings_restore_afterwards": False}
        before = calls_of(webui, "VAE decoder")[0]
        fast = webui.generate("txt2img", chosen, ON)
        assert fused(calls_of(webui, "VAE decoder")[0] - before) == 1
        assert_same(fast, webui.generate("txt2img", chosen, OFF))
        assert differ(fast, own) or name == "None"


def _both(webui: LiveWebui, body: dict[str, Any], fast: list[Any]) -> dict[str, Any]:
    """With another script's arguments beside ours."""
    return webui.generate(
        "txt2img", {**body, "alwayson_scripts": {**body["alwayson_scripts"], "Fast Compile": {"args": fast}}}
    )


def test_arguments(webui: LiveWebui) -> None:
    """By name too; wrong ones make a picture as before, and the reply and the log say what is wrong."""
    answer = webui.generate("txt2img", {}, [{"enabled": True, "cuda_graphs": False}])
    assert "Fast Compile CUDA graphs: False" in json.loads(answer["info"])["infotexts"][0]
    # reForge keeps another checkpoint's too
    unets = (m for m in webui.get("/fast_compile/report")["modules"] if "UNet" in m["name"])
    (module,) = (m for m in unets if m["settings"]["cuda_graphs"] is False)
    assert module["calls"] == {"traced": 1, "fused": 2}
    before, _ = calls_of(webui)
    answer = webui.generate("txt2img", {}, [{"enable": True}])
    assert calls_of(webui)[0] == before and "there is no argument 'enable'" in webui.log.read_text()
    assert (
        "there is no argument 'enable'" in json.loads(answer["info"])["extra_generation_params"]["Fast Compile error"]
    )


def test_infotext_is_pasted(webui: LiveWebui) -> None:
    """A picture's infotext turns it on."""
    if webui.host.name != "A1111":
        pytest.skip("only A1111's API takes an infotext")
    text = "a cat\nSteps: 3, Sampler: Euler, CFG scale: 7, Seed: 1, Size: 64x64, Fast Compile: on"
    webui.generate("txt2img", {}, [{"enabled": True}])
    before, _ = calls_of(webui)
    answer = webui.generate("txt2img", {"infotext": text})
    assert "Fast Compile: on" in json.loads(answer["info"])["infotexts"][0] and fused(calls_of(webui)[0] - before) == 3


def test_xyz_plot(webui: LiveWebui) -> None:
    """Off beside on: two cells of the same picture, one of them fused."""
    webui.generate("txt2img", {}, ON)
    before, _ = calls_of(webui)
    known = next(s for s in webui.get("/sdapi/v1/script-info") if s["name"] == "x/y/z plot" and not s["is_img2img"])[
        "args"
    ]
    axis = known[0]["choices"].index("[Fast Compile] Enabled")
    rest = [0, "", [], 0, "", [], False, False, True, False, False, False, False, 0, False, *[False] * 9]
    arguments = [axis, "off,on", ["off", "on"], *rest][: len(known)]
    answer = webui.generate("txt2img", {"script_name": "x/y/z plot", "script_args": arguments})
    assert answer["images"] and fused(calls_of(webui)[0] - before) == 3


def test_refiner(webui: LiveWebui) -> None:
    """Another checkpoint from the second step on, in the same modules: same picture, and no call at the old speed."""
    if webui.host.name != "A1111":
        pytest.skip("Forge has it differently")
    before = webui.post("/probe/look")["own_forward"]  # True where another test's wrapper was taken off
    body = {"refiner_checkpoint": "other.safetensors", "refiner_switch_at": 0.3, "steps": 4}
    mine, calls, _ = off_and_on(webui, body)
    assert calls == {"traced": 2, "fused": 2} and "Refiner: other" in json.loads(mine["info"])["infotexts"][0]
    assert webui.post("/probe/look")["own_forward"] is before


def test_reload_ui(webui: LiveWebui) -> None:
    """The extension is unloaded and loaded again: the toggle is remembered, the model is as it was found, and all works
    as before.
    """
    off = webui.generate("txt2img", {}, OFF)
    before = webui.post("/probe/look")
    webui.generate("txt2img", {}, ON)
    webui.post("/sdapi/v1/options", {"fast_compile_enabled": True})
    webui.post("/probe/reload_ui")
    webui.wait(starts=2)
    assert webui.post("/probe/look") == before and webui.get("/fast_compile/report")["modules"] == []
    shown = {component["props"].get("elem_id"): component["props"] for component in webui.get("/config")["components"]}
    assert (
        shown["fast_compile_tab_enabled"]["value"] is True
        and shown["script_txt2img_fast_compile_enabled"]["value"] is True
    )
    assert_same(webui.generate("txt2img", {}), off)
    assert fused(calls_of(webui)[0]) == 3
