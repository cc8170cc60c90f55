"""What is behind a badge, line by line: in ComfyUI's real front end, with a headless Chromium driven by Playwright."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.hosts.comfy.editor import BADGE, Editor
from tests.hosts.comfy.live_server import LiveServer

pytestmark = pytest.mark.host
DETAILS = "dialog.fast-compile-details"
_SECONDS, _MEMORY = r"[\d.]+ s", r"\d+ MB"
#: Each line of what leads, of each size, and of the rest, for one model that sampled once, with graphs that only pretend.
_LEAD = [
    r"SD15 on cpu: traced and fused, which makes nothing faster on a CPU",
    r"  calls: 5 replayed, 1 traced",
    rf"  memory: graphs {_MEMORY}, weights laid out anew {_MEMORY}",
]
_SIZES = [r"SD15", rf"  64x64, 2 at once, 77 tokens: 6 calls, ready in {_SECONDS}, graph {_MEMORY}"]
_ALL = [
    r"fast compile \d.*, python 3\.\d.*, torch \d.*, comfyui \d.*",
    r"SD15",
    r"  float32\[2, 4, 8, 8\], .*float32\[2, 77, 768\], .*: 6 calls",
    r"    \d+ operations became \d+; distance to eager \d\.\de-\d+",
    rf"    traced in {_SECONDS}, rewritten in {_SECONDS}, captured 1x in {_SECONDS}",
    r"    rewrites: (\w+ \d+(, |$))+",
    r"    impls: (\w+: (\w+ \d+(, |; |$))+)+",
    r"    found nothing to do: (\w+(, |$))+",
    rf"    graph: {_MEMORY}",
]
#: What each link says, and the page behind it begins with.
_PAGES = {
    "why it is not faster": "Why is it not faster?",
    "what it works with": "Does it work for my model, my GPU, my file?",
    "little memory": "Little VRAM",
    "limits": "Limits",
    "all reasons": "Troubleshooting",
}


def _lines(dialog: Any) -> list[list[str]]:
    """Those of each part of the report, folded ones too."""
    texts: list[str] = dialog.evaluate(
        "(dialog) => [...dialog.querySelectorAll('pre')].map((each) => each.textContent)"
    )
    return [text.split("\n") for text in texts]


def _are(lines: list[str], expected: list[str]) -> None:
    for number, (line, words) in enumerate(zip(lines, expected, strict=True)):
        assert re.fullmatch(words, line), f"line {number}: {line!r}, expected {words!r}"


def test_every_line_and_button(browser: Any, capturing: LiveServer) -> None:
    """What a person asks comes first, the rest is folded; each link opens its page, and Copy takes all of it along."""
    capturing.unload()  # other tests have sampled with this model
    editor = Editor(browser, capturing)
    editor.load("sd15_txt2img")
    editor.queue()
    page, dialog = editor.page, editor.page.locator(DETAILS)
    page.locator(BADGE).click()
    dialog.get_by_text("SD15 on cpu").wait_for()
    title, calls = dialog.locator("h2").inner_text(), dialog.locator("p").first.inner_text()
    # a benchmark that another test made of this model stands there, too
    assert re.fullmatch(rf"Fast Compile: fast · [\d.]+ it/s( · [\d.]+x eager)? · {_MEMORY}", title), title
    assert calls == "Calls of the last sampling: 1 traced, 5 replayed"
    for lines, expected in zip(_lines(dialog), (_LEAD, _SIZES, _ALL), strict=True):
        _are([line for line in lines if "as the benchmark measured" not in line], expected)

    folded = dialog.locator("details")
    assert [summary.inner_text() for summary in folded.locator("summary").all()] == ["By size", "Everything"]
    for each in folded.all():
        text = each.locator("pre")
        assert not text.is_visible()
        each.locator("summary").click()
        assert text.is_visible()

    for words, heading in _PAGES.items():
        with page.expect_popup() as opened:
            dialog.get_by_role("link", name=words, exact=True).click()
        assert opened.value.locator("h1").first.inner_text() == heading
        opened.value.close()

    page.evaluate("() => { navigator.clipboard.writeText = async (text) => { window.taken = text; }; }")
    dialog.get_by_role("button", name="Copy").click()
    dialog.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("window.taken") == "\n\n".join([title, *("\n".join(lines) for lines in _lines(dialog))])
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    editor.close()


def test_a_server_that_has_nothing_to_tell(browser: Any, capturing: LiveServer) -> None:
    """A node that no model has come through yet says so, and one whose server is gone or refuses says that: no empty
    parts.
    """
    editor = Editor(browser, capturing)
    editor.load("sd15_txt2img")
    page, dialog = editor.page, editor.page.locator(DETAILS)

    def lead() -> str:
        page.locator(BADGE).click()
        page.wait_for_function("(name) => document.querySelector(name).querySelector('details').hidden", arg=DETAILS)
        found: str = dialog.locator("pre").first.inner_text()
        assert not any(each.is_visible() for each in dialog.locator("details").all())
        page.keyboard.press("Escape")
        dialog.wait_for(state="detached")
        return found

    assert lead() == "Nothing has run through this node yet."
    editor.queue(again=True)  # another seed than the test above
    page.route("**/fast_compile/report?*", lambda route: route.fulfill(status=500))
    assert "500" in lead()
    page.route("**/fast_compile/report?*", lambda route: route.abort())
    assert "Failed to fetch" in lead()
    page.close()  # whose console has these two answers
