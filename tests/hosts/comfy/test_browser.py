"""The badges, in ComfyUI's real front end: its real server, and a headless Chromium driven by Playwright.

Set ``FAST_COMPILE_SCREENSHOTS`` to a folder to keep the pictures that the documentation shows.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.hosts.comfy.editor import BADGE, ROOT, Editor, screenshot
from tests.hosts.comfy.live_server import LiveServer
from tests.hosts.comfy.promised import NODES
from tests.hosts.comfy.test_server_nodes import benchmark, free_memory
from tests.hosts.comfy.test_workflows import LARGE
from tests.hosts.comfy.workflow import txt2img

pytestmark = pytest.mark.host
EXAMPLES = sorted(file.stem for file in (ROOT / "example_workflows").glob("*.json"))
DETAILS = "dialog.fast-compile-details"


@pytest.fixture
def editor(browser: Any, server: LiveServer) -> Iterator[Editor]:
    """The editor on its canvas."""
    found = Editor(browser, server)
    yield found
    found.close()


def _tab_to(page: Any, badge: Any) -> None:
    page.evaluate("() => document.activeElement?.blur()")
    for _ in range(100):
        page.keyboard.press("Tab")
        if badge.evaluate("(badge) => badge === document.activeElement"):
            return
    pytest.fail("the Tab key doesn't reach the badge")


def test_a_badge_while_a_prompt_runs(fresh: LiveServer, editor: Editor) -> None:
    """It changes by itself, a click or Enter opens the report of its model,
    Escape closes it and gives the focus back.
    """
    editor.load("sd15_txt2img")
    page = editor.page
    badge = page.locator(BADGE)
    assert badge.count() == 1 and badge.inner_text() == "ready"
    seen = editor.queue()  # a small model is traced so soon that no page need see it
    assert set(seen) <= {"ready", "tracing 1/6", "fused, no graph", seen[-1]} and seen[-1].startswith(
        "fused, no graph · "
    ), seen
    screenshot(page, "comfyui-badge.png", {"x": 110, "y": 110, "width": 900, "height": 400})
    _tab_to(page, badge)
    page.keyboard.press("Enter")
    dialog = page.locator(DETAILS)
    dialog.get_by_text("SD15 on cpu").wait_for()
    with page.expect_popup() as opened:
        dialog.get_by_role("link", name="why it is not faster").click()
    assert opened.value.locator("h1").inner_text() == "Why is it not faster?" and opened.value.locator("table").count()
    opened.value.get_by_role("link", name="little-vram.md").click()
    opened.value.get_by_role("heading", name="Little VRAM").wait_for()
    opened.value.close()
    assert "Calls of the last sampling: 1 traced, 5 fused" in dialog.inner_text()
    screenshot(page, "comfyui-details.png", {"x": 150, "y": 90, "width": 980, "height": 620})
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    assert badge.evaluate("(badge) => badge === document.activeElement")
    badge.click()
    dialog.get_by_role("button", name="Close").click()
    dialog.wait_for(state="detached")


def test_a_benchmark(editor: Editor) -> None:
    """Once it has measured the model without us, the badge says how many times faster it is."""
    editor.load("benchmark")
    editor.page.evaluate("() => window.app.queuePrompt(0)")
    editor.page.locator(BADGE).filter(has_text="x eager").wait_for()


def test_what_the_badge_says_of_graphs(browser: Any, capturing: LiveServer) -> None:
    """Capturing, replays at so many steps a second, the graph's memory; against eager once that was measured; and
    memory that is freed.
    """
    editor = Editor(browser, capturing)
    editor.load("sd15_txt2img")
    badge, dialog = editor.page.locator(BADGE), editor.page.locator(DETAILS)
    seen = editor.queue()
    said = [words for words in seen if words != "ready"]
    assert said[:3] == ["tracing 1/6", "capturing 2/6", "fast · 100 MB"], seen
    assert re.fullmatch(r"fast · [\d.]+ it/s · 100 MB", seen[-1]), seen
    badge.click()
    dialog.get_by_text("memory: graphs 100 MB").wait_for()
    assert "Calls of the last sampling: 1 traced, 5 replayed" in dialog.inner_text()
    editor.page.keyboard.press("Escape")
    capturing.outputs(benchmark(width=64, height=64, steps=4))
    editor.queue(again=True)
    assert re.fullmatch(r"fast · [\d.]+ it/s · [\d.]+x eager · 100 MB", badge.inner_text()), badge.inner_text()
    capturing.outputs(free_memory(txt2img("tiny-sd15.safetensors", {}, seed=131)))
    assert "MB" not in badge.inner_text(), badge.inner_text()
    editor.close()


def test_the_badge_shows_how_far_a_trace_is(editor: Editor) -> None:
    """As long as what is done, once something is; before that it wanders."""
    editor.load("sd15_txt2img")
    (number,) = editor.page.evaluate(
        "() => app.graph.nodes.filter((node) => node.type === 'ApplyFastCompile').map((node) => node.id)"
    )
    event = {"nodes": [str(number)], "state": "tracing", "model": "SD15", "step": 1, "steps": 20, "graph_bytes": 0}
    # in one step: a page that has just opened a workflow asks the server, which knows nothing of these events
    hear = """([detail, name]) => {
      app.api.dispatchCustomEvent("fast_compile.status", detail);
      const badge = document.querySelector(name);
      const style = getComputedStyle(badge);
      return [badge.textContent, [style.animationName, style.backgroundSize]];
    }"""
    told = [tuple(editor.page.evaluate(hear, [{**event, "done": done}, BADGE])) for done in (0.0, 0.37)]
    assert told[0] == ("tracing 1/20", ["fast-compile-wander", "30% 2px"]), told
    assert (
        told[1][0] == "tracing 1/20 · 37%"
        and told[1][1][0] == "none"
        and "37%" in told[1][1][1].replace("0.37 * 100%", "37%")
    ), told


def test_the_badge_without_a_gpu(browser: Any, bare: LiveServer) -> None:
    """A shared workflow runs; the badge says that it is not faster, why, and what one can do."""
    editor = Editor(browser, bare)
    editor.load("sd15_txt2img")
    editor.page.evaluate("() => window.app.queuePrompt(0)")
    badge, dialog = editor.page.locator(BADGE), editor.page.locator(DETAILS)
    badge.filter(has_text="fell back").wait_for()
    badge.click()
    text = dialog.locator("p").first.inner_text()
    assert "which isn't a CUDA device" in text and "nothing is faster without an NVIDIA GPU" in text, text
    editor.close()


def test_the_badge_in_another_language(browser: Any, server: LiveServer, editor: Editor) -> None:
    """That of the editor's own setting, in the badge and in the details; one that isn't translated falls back to
    English.
    """
    for locale, word in (("zh", "就绪"), ("fr", "ready")):
        other = Editor(browser, server, **{"Comfy.Locale": locale})
        try:
            other.load("sd15_txt2img")
            badge = other.page.locator(BADGE)
            badge.filter(has_text=word).wait_for()
            if locale == "zh":
                other.page.evaluate(
                    "() => { app.graph.nodes.find((node) => node.type === 'KSampler').widgets[0].value = 4321; }"
                )
                other.queue()
            badge.click()
            if locale == "zh":
                other.page.locator(DETAILS).get_by_text("按尺寸").wait_for()
                text = other.page.locator(DETAILS).text_content()
                assert re.search("上次采样的调用：(1 次记录, 5|6) 次融合", text) and "没有图：没有 CUDA 设备" in text, (
                    text
                )
            other.page.locator(DETAILS).get_by_role("button", name="关闭" if locale == "zh" else "Close").click()
        finally:
            server.post("/api/settings/Comfy.Locale", "en")
        other.close()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_opens(editor: Editor, name: str) -> None:
    """As the template browser opens it: every node is known, nothing is reported missing, and each of ours has its
    badge.
    """
    editor.load(name)
    editor.page.wait_for_timeout(1000)
    kinds = editor.page.evaluate(
        "() => app.graph.nodes.map((node) => [node.type, node.type in LiteGraph.registered_node_types])"
    )
    workflow = json.loads((ROOT / "example_workflows" / f"{name}.json").read_text())
    assert sorted(kind for kind, _ in kinds) == sorted(node["type"] for node in workflow["nodes"]) and all(
        known for _, known in kinds
    ), kinds
    if name not in LARGE:  # whose models aren't here
        assert not _missing(editor.page), _missing(editor.page)
    assert editor.page.locator(BADGE).count() == sum("FastCompile" in kind for kind, _ in kinds)


def test_a_node_that_is_missing_would_be_seen(editor: Editor) -> None:
    """What the test above looks for does appear."""
    workflow = json.loads(
        (ROOT / "example_workflows" / "sd15_txt2img.json").read_text().replace("ApplyFastCompile", "NoSuchNode")
    )
    editor.page.evaluate("(workflow) => app.loadGraphData(workflow)", workflow)
    end = time.monotonic() + 15
    while not _missing(editor.page) and time.monotonic() < end:
        editor.page.wait_for_timeout(200)
    assert _missing(editor.page), editor.page.locator("body").inner_text()


def _missing(page: Any) -> list[str]:
    """Lines of the page that speak of something missing, in the words of any front end."""
    words = ("missing", "nosuchnode", "error found", "errors found", "issue found", "issues found")
    return [
        line for line in page.locator("body").inner_text().splitlines() if any(word in line.lower() for word in words)
    ]


def test_a_saved_workflow_stays_as_it_was(editor: Editor) -> None:
    """The badge is no value of the node's, in the file or in the prompt."""
    editor.load("sd15_txt2img")
    node = "(found) => found.find((node) => node.type === 'ApplyFastCompile')"
    assert editor.page.evaluate(f"() => ({node})(window.app.graph.serialize().nodes).widgets_values") == [
        True,
        True,
        "exact",
    ]
    inputs = editor.page.evaluate(
        "async () => Object.values((await window.app.graphToPrompt()).output).map((each) => [each.class_type, each.inputs])"
    )
    (ours,) = [values for kind, values in inputs if kind == "ApplyFastCompile"]
    assert set(ours) == {"model", "enabled", "cuda_graphs", "quality"}


def test_every_node_has_one(editor: Editor) -> None:
    """Each node of ours that has something to say, and no other; there is room for it."""
    found = editor.page.evaluate("""() => {
      const { LiteGraph, app } = window;
      app.graph.clear();
      const badge = (node) => node.widgets?.some((widget) => widget.name === "fast_compile_status") && node.computeSize()[1] <= node.size[1];
      return Object.keys(LiteGraph.registered_node_types)
        .filter((type) => /FastCompile|KSampler$|^VAEDecode$/.test(type))
        .map((type) => { const node = LiteGraph.createNode(type); app.graph.add(node); return [type, !!badge(node)]; });
    }""")
    ours = {kind: has for kind, has in found if "FastCompile" in kind}
    assert ours == {kind: kind != "FastCompileSettings" for kind in NODES}, found
    assert {kind: has for kind, has in found if kind not in ours} == {"KSampler": False, "VAEDecode": False}, found


def test_the_theme_and_vue_nodes(browser: Any, server: LiveServer, editor: Editor) -> None:
    """The colours are the theme's. Nodes that aren't drawn on the canvas have the badge too, where the front end gives
    them such widgets.
    """
    editor.load("sd15_txt2img")
    colours = [editor.page.locator(BADGE).evaluate("(badge) => getComputedStyle(badge).color")]
    for settings in ({"Comfy.ColorPalette": "light"}, {"Comfy.VueNodes.Enabled": True}):
        other = Editor(browser, server, **settings)
        other.load("sd15_txt2img")
        if "Comfy.VueNodes.Enabled" in settings and other.version() < (1, 45):
            other.close()  # without an error
            return
        colours.append(other.page.locator(BADGE).evaluate("(badge) => getComputedStyle(badge).color"))
        other.page.locator(BADGE).click()
        other.page.locator(DETAILS).wait_for()
        other.page.keyboard.press("Escape")
        other.close()
    assert colours[0] != colours[1] and colours[0] == colours[2], colours
