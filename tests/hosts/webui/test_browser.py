"""The accordion and the tab in the webuis' real pages: their real servers, and a headless Chromium driven by
Playwright.

Set ``FAST_COMPILE_SCREENSHOTS`` to a folder to keep the pictures that the documentation shows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.chromium import chromium
from tests.hosts.webui.live_webui import LiveWebui

pytestmark = pytest.mark.host


@pytest.fixture(scope="module")
def page(webui: LiveWebui) -> Iterator[Any]:
    """The webui's page, in its dark theme."""
    with chromium() as browser:
        opened = browser.new_page(viewport={"width": 1400, "height": 1000})
        opened.set_default_timeout(300_000)
        opened.goto(f"{webui.url}/?__theme=dark")
        opened.wait_for_selector("#txt2img_generate")
        opened.wait_for_function("() => executedOnLoaded")  # the webui's own scripts are there and have set the page up
        opened.wait_for_timeout(3000)  # its Gradio goes on for a while
        yield opened


def _screenshot(page: Any, webui: LiveWebui, element: Any, name: str) -> None:
    if folder := os.environ.get("FAST_COMPILE_SCREENSHOTS"):
        element.scroll_into_view_if_needed()
        page.mouse.move(0, 0)
        page.wait_for_timeout(1000)
        box = element.bounding_box()
        clip = {**box, "height": min(box["height"], 640)}  # a report is long
        page.screenshot(path=Path(folder) / f"{webui.host.name.lower()}-{name}.png", clip=clip)


def _open_tab(page: Any, name: str) -> None:
    page.locator("#tabs > .tab-nav button, #tabs > div button[role=tab]").filter(has_text=name).first.click()


def test_a_picture_with_the_accordion(webui: LiveWebui, page: Any) -> None:
    """Opening it only opens it; tick it and generate: the status line says what became of the calls, and the tab's
    toggle is ticked too.
    """
    page.locator("#txt2img_prompt textarea").first.fill("a red fox")
    for name, value in (("width", "64"), ("height", "64"), ("steps", "3")):
        field = page.locator(f"#txt2img_{name} input[type=number]").first
        field.fill(value)
        field.press("Tab")
    accordion = page.locator("#script_txt2img_fast_compile_accordion")
    accordion.locator(".label-wrap").first.click()
    toggle = accordion.locator("#script_txt2img_fast_compile_enabled input")
    toggle.wait_for()
    assert not toggle.is_checked()
    toggle.check()
    status = page.locator("#script_txt2img_fast_compile_status").last  # gradio 3 gives its block the same id
    status.wait_for()
    page.locator("#txt2img_generate").click()
    page.wait_for_function(
        "() => /UNet[^·]*fused/.test(document.querySelector('#script_txt2img_fast_compile_status')?.textContent ?? '')",
        timeout=300_000,
    )
    assert (
        "Last picture: fast." in status.inner_text()
        and "VAE decoder" in status.inner_text()
        and "Text encoder" in status.inner_text()
    )
    _screenshot(page, webui, accordion, "accordion")
    _open_tab(page, "Fast Compile")
    page.locator("#fast_compile_tab_report textarea").wait_for()
    assert page.locator("#fast_compile_tab_enabled input").is_checked()
    page.reload()
    page.wait_for_function("() => executedOnLoaded")
    page.wait_for_function(
        "() => document.querySelector('#script_txt2img_fast_compile_enabled input')?.checked", timeout=30_000
    )


def test_the_tab_warms_up(webui: LiveWebui, page: Any) -> None:
    """A size, the button, a progress bar, what became of it, and it is in the report."""
    _open_tab(page, "Fast Compile")
    page.locator("#fast_compile_tab_sizes textarea").fill("96x64, 64x96 x2")
    page.evaluate(
        """() => { window.bars = []; new MutationObserver(() => {
            const bar = document.querySelector("#fast_compile_tab_warmed .progress-text, #fast_compile_tab_warmed .progress-level-inner");
            if (bar) window.bars.push(bar.textContent);
        }).observe(document.body, { childList: true, subtree: true, characterData: true }); }"""
    )
    page.locator("#fast_compile_tab_warm").click()
    page.wait_for_function(
        "() => /64x96 x2: .*\\n96x64: /.test(document.querySelector('#fast_compile_tab_warmed textarea').value)"
    )
    assert any("Warming up" in text or "sizes" in text for text in page.evaluate("window.bars")), page.evaluate(
        "window.bars"
    )
    page.wait_for_function(
        "() => document.querySelector('#fast_compile_tab_report textarea').value.includes('[4, 4, 12, 8]')"
    )
    _screenshot(page, webui, page.locator("#tab_fast_compile"), "tab")


def test_a_page_at_rest_asks_nothing(page: Any) -> None:
    """An answer to Gradio 4 is news of every HTML component of the page: an event on one of them would go round for
    ever.
    """
    asked: list[str] = []
    for kind in ("request", "websocket"):
        page.on(kind, lambda made: asked.append(made.url))
    page.wait_for_timeout(3000)
    assert asked == []
