"""Pictures of text and bars, and the one of a report."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("PIL")
from PIL import ImageFont

from nodes.picture import BLUE, GREEN, RED, TRACK, Picture
from nodes.report_picture import draw
from sfast_core.reporting.report import ModuleReport, Report
from sfast_core.reporting.signature_report import SignatureReport


def _pixels(picture: Picture, colour: tuple[int, int, int]) -> int:
    tensor = picture.tensor()
    return int((tensor == torch.tensor(colour, dtype=torch.float32) / 255.0).all(-1).sum())


def test_a_tensor_as_comfyui_wants_it() -> None:
    tensor = Picture(640).title("a").line("b").gap().tensor()
    assert tensor.shape[0] == 1 and tensor.shape[2:] == (640, 3) and tensor.dtype == torch.float32
    assert 0 <= tensor.min() and tensor.max() <= 1 and tensor.std() > 0


def test_a_bar_is_as_long_as_its_parts() -> None:
    whole = _pixels(Picture().bar("", "", [(1.0, BLUE)]), BLUE)
    half = Picture().bar("", "", [(0.25, GREEN), (0.25, BLUE)])
    assert abs(_pixels(half, GREEN) / whole - 0.25) < 0.02 and abs(_pixels(half, BLUE) / whole - 0.25) < 0.02
    assert abs(_pixels(half, TRACK) / whole - 0.5) < 0.02


@pytest.mark.parametrize("parts", [[], [(0.0, RED)], [(-1.0, RED)]])
def test_an_empty_bar(parts: list[Any]) -> None:
    assert _pixels(Picture().bar("", "", parts), RED) == 0


def test_too_much_stays_inside() -> None:
    """A bar longer than its track, a word longer than the page."""
    whole = _pixels(Picture().bar("", "", [(1.0, BLUE)]), BLUE)
    assert (
        _pixels(Picture().bar("a label that is much too long for its place", "", [(0.7, RED), (9.0, BLUE)]), BLUE)
        < whole
    )
    page = Picture(300).line("x" * 500).tensor()
    assert (page[0, :, -14:] == page[0, 0, 0]).all(), "text runs over the margin"
    assert Picture(300).line("word " * 100).tensor().shape[1] > Picture(300).line("word").tensor().shape[1]


def test_letters_that_a_font_lacks() -> None:
    assert (
        Picture().title("\u4e2d \U0001f600").bar("\u4e2d", "\u4e2d", []).legend([("\u4e2d", BLUE)]).image().size[0]
        == 1000
    )


def test_an_old_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 10.1 the font has one size."""
    bitmap = (
        ImageFont.load_default_imagefont() if hasattr(ImageFont, "load_default_imagefont") else ImageFont.load_default()
    )
    monkeypatch.setattr(ImageFont, "load_default", lambda: bitmap)
    picture = Picture().title("\u4e2d abc").line("a b").bar("a", "b", [(0.5, BLUE)]).legend([("c", BLUE)])
    assert _pixels(picture, BLUE) > 1000


def _report() -> Report:
    module = ModuleReport("SDXL", "cuda:0")
    module.calls.update(replayed=3, eager=1)
    module.reasons["a reason"] = 1
    for count in range(20):
        module.signatures.append(
            SignatureReport(
                f"float16[{count}]", passes={"fuse_x": 2, "fuse_y": 0}, graph_bytes=2**20, calls=1, trace_s=0.1
            )
        )
    return Report([module], {"torch": "2.0"})


def test_the_picture_of_a_report() -> None:
    picture = draw(_report())
    assert _pixels(picture, GREEN) > _pixels(picture, RED) > 0


@pytest.mark.parametrize(
    "modules", [[], [ModuleReport("nothing yet")], [ModuleReport("x", signatures=[SignatureReport("y")])]]
)
def test_the_picture_of_little(modules: list[ModuleReport]) -> None:
    """Nothing has run, or it was given up."""
    assert draw(Report(modules, {})).tensor().std() > 0
