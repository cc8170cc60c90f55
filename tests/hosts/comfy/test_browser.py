"""The badges, in ComfyUI's real front end: its real server, and a headless Chromium driven by Playwright.

Set ``FAST_COMPILE_SCREENSHOTS`` to a folder to keep the pictures that the documentation shows.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.comfy.live_server import LiveServer

pytestmark = pytest.mark.host
ROOT = Path(__file__).resolve().parents[3]
#: What the editor is told before the page opens: no tour, no workflow templates.
SETTINGS = {"Comfy.TutorialCompleted": True, "Comfy.Minimap.Visible": False, "Comfy.Graph.CanvasInfo": False}
SMALL: dict[str, dict[int, Any]] = {"CheckpointLoaderSimple": {0: "tiny-sd15.safetensors"}, "EmptyLatentImage": {0: 64, 1: 64}, "KSampler": {2: 6}}
SMALL["FastCompileBenchmark"] = {0: 64, 1: 64, 3: 4, 7: 1}  # width, height, steps, rounds
BADGE = ".fast-compile-badge"
#: Each text that the badge shows from now on.
WATCH = """() => {
  window.seen = [];
  const badge = document.querySelector(".fast-compile-badge");
  new MutationObserver(() => window.seen.push(badge.textContent)).observe(badge, { childList: true, subtree: true });
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium: the system's, or Playwright's own."""
    api = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install playwright")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with api.sync_playwright() as playwright:
        try:
            chromium = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        except api.Error as error:
            pytest.skip(f"needs a Chromium: playwright install chromium ({str(error).splitlines()[0]})")
        yield chromium
        chromium.close()


class Editor:
    """A page with the editor.

    Attributes:
        page: Playwright's.
        errors: of scripts since the page was ready, which must be none.
    """

    def __init__(self, browser: Any, server: LiveServer, **settings: Any) -> None:
        for name, value in {**SETTINGS, "Comfy.VueNodes.Enabled": False, "Comfy.ColorPalette": "dark", **settings}.items():
            server.post(f"/api/settings/{name}", value)
        self.page = browser.new_page(viewport={"width": 1280, "height": 800})
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(error.stack or str(error)))
        self.page.on("console", lambda message: self.errors.append(message.text) if "fast_compile" in message.text else None)
        self.page.goto(server.url)
        self.page.wait_for_function("window.app?.extensions?.some((each) => each.name === 'fast_compile.badges')", timeout=60_000)
        self.page.wait_for_function("window.app.graph?.nodes !== undefined && window.app.extensionManager?.workflow?.activeWorkflow")
        self.page.wait_for_timeout(1500)  # it loads the workflow of last time
        self.errors = [error for error in self.errors if "fast_compile" in error]  # without those of the front end's own start

    def load(self, name: str) -> None:
        """Open an example workflow, with the small models and sizes."""
        workflow = json.loads((ROOT / "example_workflows" / f"{name}.json").read_text())
        for node in workflow["nodes"]:
            for place, value in SMALL.get(node["type"], {}).items():
                node["widgets_values"][place] = value
        self.page.evaluate("(workflow) => window.app.loadGraphData(workflow)", workflow)
        self.page.wait_for_function("() => window.app.graph.nodes.some((node) => node.type === 'ApplyFastCompile' && node.widgets?.length === 3)")
        self.page.wait_for_timeout(500)

    def version(self) -> tuple[int, ...]:
        """The front end's, major and minor."""
        return tuple(map(int, self.page.evaluate("window.__COMFYUI_FRONTEND_VERSION__").split(".")[:2]))

    def queue(self) -> list[str]:
        """Run the workflow; gives what the badge showed meanwhile."""
        self.page.evaluate(WATCH)
        self.page.evaluate("() => window.app.queuePrompt(0)")
        self.page.wait_for_function("() => window.seen.at(-1)?.includes('it/s')", timeout=120_000)
        found: list[str] = self.page.evaluate("window.seen")
        return found

    def close(self) -> None:
        """Leave the page; it must have had no error."""
        self.page.close()
        assert not self.errors


@pytest.fixture(scope="module", autouse=True)
def as_it_was(server: LiveServer) -> Iterator[None]:
    """The server's other tests find no model of ours, whose calls they would count."""
    yield
    server.post("/free", {"unload_models": True, "free_memory": True})
    time.sleep(2)  # the queue's thread looks for it once a second


@pytest.fixture
def editor(browser: Any, server: LiveServer, front_end: bool) -> Iterator[Editor]:
    """The editor on its canvas."""
    if not front_end:
        pytest.skip("needs ComfyUI's front end: pip install comfyui-frontend-package")
    found = Editor(browser, server)
    yield found
    found.close()


def _screenshot(page: Any, name: str, clip: dict[str, int] | None = None) -> None:
    if folder := os.environ.get("FAST_COMPILE_SCREENSHOTS"):
        page.add_style_tag(content=".p-toast { display: none }")
        page.evaluate("() => { app.canvas.ds.scale = 1; app.canvas.ds.offset = [-250, 170]; app.canvas.setDirty(true, true); }")
        page.wait_for_timeout(1500)
        page.screenshot(path=Path(folder) / name, clip=clip)


def _tab_to(page: Any, badge: Any) -> None:
    page.evaluate("() => document.activeElement?.blur()")
    for _ in range(100):
        page.keyboard.press("Tab")
        if badge.evaluate("(badge) => badge === document.activeElement"):
            return
    pytest.fail("the Tab key doesn't reach the badge")


def test_a_badge_while_a_prompt_runs(editor: Editor) -> None:
    """It changes by itself, a click or Enter opens the report of its model, Escape closes it and gives the focus back."""
    editor.load("sd15_txt2img")
    page = editor.page
    badge = page.locator(BADGE)
    assert badge.count() == 1 and badge.inner_text() == "ready"
    seen = editor.queue()
    assert seen[0] == "tracing 1/6" and "fused, no graph" in seen and seen[-1].startswith("fused, no graph · "), seen
    _screenshot(page, "comfyui-badge.png", {"x": 110, "y": 110, "width": 900, "height": 400})
    _tab_to(page, badge)
    page.keyboard.press("Enter")
    dialog = page.locator("dialog.fast-compile-details")
    dialog.get_by_text("SD15 on cpu").wait_for()
    assert "Calls of the last sampling: 1 traced, 5 fused" in dialog.inner_text()
    _screenshot(page, "comfyui-details.png", {"x": 150, "y": 90, "width": 980, "height": 620})
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
    editor.page.locator(BADGE).filter(has_text="x eager").wait_for(timeout=120_000)


def test_a_saved_workflow_stays_as_it_was(editor: Editor) -> None:
    """The badge is no value of the node's, in the file or in the prompt."""
    editor.load("sd15_txt2img")
    node = "(found) => found.find((node) => node.type === 'ApplyFastCompile')"
    assert editor.page.evaluate(f"() => ({node})(window.app.graph.serialize().nodes).widgets_values") == [True, True]
    inputs = editor.page.evaluate("async () => Object.values((await window.app.graphToPrompt()).output).map((each) => [each.class_type, each.inputs])")
    (ours,) = [values for kind, values in inputs if kind == "ApplyFastCompile"]
    assert set(ours) == {"model", "enabled", "cuda_graphs"}


def test_every_node_has_one(editor: Editor) -> None:
    """Each node of ours, and no other; there is room for it."""
    found = editor.page.evaluate("""() => {
      const { LiteGraph, app } = window;
      app.graph.clear();
      const badge = (node) => node.widgets?.some((widget) => widget.name === "fast_compile_status") && node.computeSize()[1] <= node.size[1];
      return Object.keys(LiteGraph.registered_node_types)
        .filter((type) => /FastCompile|KSampler$|^VAEDecode$/.test(type))
        .map((type) => { const node = LiteGraph.createNode(type); app.graph.add(node); return [type, !!badge(node)]; });
    }""")
    assert len(found) == 11 and all(has == ("FastCompile" in kind) for kind, has in found), found


def test_the_theme_and_vue_nodes(browser: Any, server: LiveServer, editor: Editor) -> None:
    """The colours are the theme's. Nodes that aren't drawn on the canvas have the badge too, where the front end gives them such widgets."""
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
        other.page.locator("dialog.fast-compile-details").wait_for()
        other.page.keyboard.press("Escape")
        other.close()
    assert colours[0] != colours[1] and colours[0] == colours[2], colours
