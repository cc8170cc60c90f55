"""Pictures of a live webui with the toggle off and on, compared, and how the calls ran that made them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.hosts import png
from tests.hosts.webui.live_webui import LiveWebui

OFF, ON = [False, True], [True, True]


def pixels(answer: dict[str, Any]) -> list[Any]:
    """The pictures of an answer as arrays of ints, height x width x 3."""
    return [png.pixels(picture) for picture in answer["images"]]


def assert_same(mine: dict[str, Any], theirs: dict[str, Any], most: int = 2) -> None:
    """Float rounding moves a channel by 1 of 255; a step that went wrong by dozens."""
    a, b = pixels(mine), pixels(theirs)
    assert len(a) == len(b) and all(x.shape == y.shape for x, y in zip(a, b, strict=True))
    assert all(x.std() > 1 for x in b), "a picture of one colour proves nothing"
    distances = [int(abs(x - y).max()) for x, y in zip(a, b, strict=True)]
    assert max(distances) <= most, f"{distances} of 255 apart"


def differ(mine: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Whether the pictures are others, by more than rounding."""
    return any(abs(x - y).max() > 4 for x, y in zip(pixels(mine), pixels(theirs), strict=True))


def calls_of(webui: LiveWebui, of: str = "UNet") -> tuple[Counter[str], Counter[str]]:
    """The calls of the models that have ``of`` in their name, by path and by reason; those of a UNet's blocks aside,
    which are a part of its.
    """
    calls, reasons = Counter[str](), Counter[str]()
    for module in (
        module
        for module in webui.get("/fast_compile/report")["modules"]
        if of in module["name"] and not module["name"].endswith("its blocks")
    ):
        calls.update(module["calls"])
        reasons.update(module["reasons"])
    return calls, reasons


def off_and_on(
    webui: LiveWebui, body: dict[str, Any], kind: str = "txt2img"
) -> tuple[dict[str, Any], Counter[str], Counter[str]]:
    """Off and on: the same picture. Returns the picture, and the calls of the second by path and by reason."""
    if kind == "img2img":  # the VAE's encoder draws from the generator as the last picture left it
        webui.generate(kind, body, OFF)
    off = webui.generate(kind, body, OFF)
    calls, reasons = calls_of(webui)
    on = webui.generate(kind, body, ON)
    assert_same(on, off)
    after, why = calls_of(webui)
    return on, after - calls, why - reasons


def fused(calls: Counter[str]) -> int:
    """How many calls went through the fused program, the first of a signature included; that no call ran as before."""
    assert calls["eager"] == 0, calls
    return calls["traced"] + calls["fused"]
