"""Other extensions, and what a webui brings that works inside the UNet, beside ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.hosts.webui.live_webui import LiveWebui
from tests.hosts.webui.pictures import OFF, ON, assert_same, calls_of, differ, fused, off_and_on
from tests.hosts.webui.test_server import _both


def test_other_extensions(webui: LiveWebui) -> None:
    """One replaces the UNet's forward: its picture, in A1111 block by block, in Forge with the reason named; and when
    it is gone, ours again.
    """
    plain = webui.generate("txt2img", {}, OFF)
    webui.post("/probe/wrap")
    try:
        wrapped, calls, reasons = off_and_on(webui, {})
    finally:
        webui.post("/probe/unwrap")
    assert differ(wrapped, plain)
    if webui.host.name == "A1111":
        assert fused(calls) == 3
    else:
        assert calls["eager"] == 3 and any("another extension replaces its forward" in reason for reason in reasons), (
            reasons
        )
    mine, calls, _ = off_and_on(webui, {})
    assert fused(calls) == 3
    assert_same(mine, plain)


def _settled(webui: LiveWebui, setting: str, on: Any, off: Any) -> None:
    """A setting that works inside the UNet: its picture each time, and fused once it is known what has to run live; off
    again likewise.
    """
    plain = webui.generate("txt2img", {}, OFF)
    webui.post("/sdapi/v1/options", {setting: on})
    try:
        for _ in range(5):
            _, calls, reasons = off_and_on(webui, {})
    finally:
        webui.post("/sdapi/v1/options", {setting: off})
    assert fused(calls) == 3, reasons
    for _ in range(5):
        mine, calls, _ = off_and_on(webui, {})
    assert fused(calls) == 3
    assert_same(mine, plain)


def test_token_merging(webui: LiveWebui) -> None:
    """Blocks that look at a generator of random numbers run live."""
    _settled(webui, "token_merging_ratio", 0.5, 0)


def _with(webui: LiveWebui, kind: str, arguments: list[Any]) -> dict[str, Any]:
    """A picture with the probe at work inside the UNet."""
    webui.post(f"/probe/put?kind={kind}")
    try:
        return webui.generate("txt2img", {}, arguments)
    finally:
        webui.post("/probe/take")


@pytest.mark.parametrize("kind", ["attention", "hook", "reading"])
def test_others_inside_the_unet(webui: LiveWebui, kind: str) -> None:
    """Replaced attention that counts its calls, a hook, a forward of the UNet's that reads a value into Python: on, on,
    off, on, off.
    """
    if kind == "reading" and webui.host.name != "A1111":
        pytest.skip("a replaced forward of the UNet's runs as it is there")
    plain, other = webui.generate("txt2img", {}, OFF), _with(webui, kind, OFF)
    assert differ(other, plain)
    for _ in range(2):
        _until_fast(webui, lambda: assert_same(_with(webui, kind, ON), other))
        _until_fast(webui, lambda: assert_same(webui.generate("txt2img", {}, ON), plain))


def _until_fast(webui: LiveWebui, picture: Callable[[], None]) -> None:
    """Pictures until one is made without a trace.

    What ran live is looked at again once in a while, so which one that is differs.
    """
    for _ in range(5):
        before, _ = calls_of(webui)
        picture()
        made = calls_of(webui)[0] - before
        if made == {"fused": 3}:
            return
    raise AssertionError(made)


_FREEU, _PAG = "FreeU Integrated (SD 1.x, SD 2.x, SDXL)", "PerturbedAttentionGuidance Integrated"
_SAG, _HRFIX = "SelfAttentionGuidance Integrated (SD 1.x, SD 2.x, SDXL)", "Kohya HRFix Integrated"


@pytest.mark.parametrize(
    ("script", "arguments", "stronger"),
    [
        (_FREEU, [True, 1.4, 1.4, 0.2, 0.2, 0.0, 1.0], [True, 1.8, 1.8, 0.1, 0.1, 0.0, 0.5]),
        (_PAG, [True, 3.0, 0.0, 0.0, 1.0], [True, 6.0, 0.0, 0.0, 0.5]),
        (_SAG, [True, 0.5, 2.0, 1.0], [True, 2.0, 2.0, 1.0]),
        (
            _HRFIX,
            [True, 1, 2.0, 0.0, 0.35, True, "bicubic", "bicubic"],
            [True, 1, 2.0, 0.0, 1.0, False, "bicubic", "bicubic"],
        ),
        ("StyleAlign Integrated", [True, 1.0], [True, 0.5]),
        (
            "MultiDiffusion Integrated",
            [True, "MultiDiffusion", 48, 48, 16, 4],
            [True, "Mixture of Diffusers", 48, 48, 16, 4],
        ),
    ],
    ids=["freeu", "pag", "sag", "hrfix", "stylealign", "multidiffusion"],
)
def test_what_forge_brings(webui: LiveWebui, script: str, arguments: list[Any], stronger: list[Any]) -> None:
    """On, changed, off, on again, and with a LoRA: its functions run live between segments."""
    if webui.host.name != "Forge":
        pytest.skip("only Forge has it")
    webui.generate("txt2img", {}, OFF)  # loads the model
    webui.post("/probe/channels")
    bodies = [
        {"prompt": prompt, "alwayson_scripts": {script: {"args": args}} if args else {}}
        for prompt, args in (
            ("a cat", arguments),
            ("a cat", stronger),
            ("a cat", None),
            ("a cat", arguments),
            ("a cat <lora:loud:1>", arguments),
        )
    ]
    off = [_both(webui, body, OFF) for body in bodies]
    assert script == "StyleAlign Integrated" or differ(off[0], off[2])
    for body, theirs in zip(bodies, off, strict=True):
        before, _ = calls_of(webui)
        assert_same(_both(webui, body, ON), theirs)
        assert fused(calls_of(webui)[0] - before) >= 3


def test_hypertile(webui: LiveWebui) -> None:
    """Attention that draws its tiles runs live."""
    if webui.host.name != "A1111":
        pytest.skip("Forge has none")
    _settled(webui, "hypertile_enable_unet", True, False)
