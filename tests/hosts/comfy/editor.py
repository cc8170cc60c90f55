"""ComfyUI's real front end in a headless Chromium: a page with the editor, and what a person does there."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from tests.hosts.comfy.live_server import LiveServer

ROOT = Path(__file__).resolve().parents[3]
#: What the editor is told before the page opens: no tour, no workflow templates.
SETTINGS = {"Comfy.TutorialCompleted": True, "Comfy.Minimap.Visible": False, "Comfy.Graph.CanvasInfo": False}
SMALL: dict[str, dict[int, Any]] = {
    "CheckpointLoaderSimple": {0: "tiny-sd15.safetensors"},
    "EmptyLatentImage": {0: 64, 1: 64},
    "KSampler": {2: 6},
}
SMALL |= {
    "LoraLoader": {0: "tiny-lora.safetensors"},
    "ControlNetLoader": {0: "tiny-control.safetensors"},
    "LoadImage": {0: "tiny.png"},
}
SMALL["FastCompileBenchmark"] = {0: 64, 1: 64, 3: 4, 7: 1}  # width, height, steps, rounds
BADGE = ".fast-compile-badge"
#: Reads an example as the template browser does.
TEMPLATE = "async (name) => (await app.api.fetchApi(`/workflow_templates/fast-compile/${name}.json`)).json()"
#: Each text that the badge shows from now on.
WATCH = """() => {
  window.seen = [];
  const badge = document.querySelector(".fast-compile-badge");
  new MutationObserver(() => window.seen.push(badge.textContent)).observe(badge, { childList: true, subtree: true });
}"""


class Editor:
    """A page with the editor.

    Attributes:
        page: Playwright's.
        errors: of scripts since the page was ready, which must be none.
    """

    def __init__(self, browser: Any, server: LiveServer, **settings: Any) -> None:
        for name, value in {
            **SETTINGS,
            "Comfy.VueNodes.Enabled": False,
            "Comfy.ColorPalette": "dark",
            **settings,
        }.items():
            server.post(f"/api/settings/{name}", value)
        self._server = server
        self.page = browser.new_page(viewport={"width": 1280, "height": 800})
        self.page.set_default_timeout(300_000)
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(error.stack or str(error)))
        self.page.on(
            "console", lambda message: self.errors.append(message.text) if "fast_compile" in message.text else None
        )
        self.page.goto(server.url)
        self.page.wait_for_function("window.app?.extensions?.some((each) => each.name === 'fast_compile.badges')")
        self.page.wait_for_function(
            "window.app.graph?.nodes !== undefined && window.app.extensionManager?.workflow?.activeWorkflow"
        )
        self.page.wait_for_timeout(1500)  # it loads the workflow of last time
        # without those of the front end's own start
        self.errors = [error for error in self.errors if "fast_compile" in error]

    def load(self, name: str) -> None:
        """Open an example workflow from the server, where the template browser finds it, with the small models and
        sizes.
        """
        workflow = self.page.evaluate(TEMPLATE, name)
        for node in workflow["nodes"]:
            for place, value in SMALL.get(node["type"], {}).items():
                node["widgets_values"][place] = value
        self.page.evaluate("(workflow) => window.app.loadGraphData(workflow)", workflow)
        self.page.wait_for_function(
            "() => window.app.graph.nodes.some((node) => node.widgets?.some((each) => each.name === 'fast_compile_status'))"
        )
        self.page.locator(BADGE).filter(has_text=re.compile(".")).first.wait_for()

    def version(self) -> tuple[int, ...]:
        """The front end's, major and minor."""
        return tuple(map(int, self.page.evaluate("window.__COMFYUI_FRONTEND_VERSION__").split(".")[:2]))

    def queue(self, again: bool = False) -> list[str]:
        """Run the workflow, ``again`` with another seed; gives what the badge showed meanwhile, up to the sum at the
        end.
        """
        if again:
            self.page.evaluate(
                "() => { app.graph.nodes.find((node) => node.type === 'KSampler').widgets[0].value += 1; }"
            )
        done = len(self._server.get("/history"))
        self.page.evaluate(WATCH)
        self.page.evaluate("() => window.app.queuePrompt(0)")
        # until then the badge may still say what the run before came to
        while len(self._server.get("/history")) == done:
            self.page.wait_for_timeout(200)
        self.page.wait_for_function("() => window.seen.at(-1)?.includes('it/s')")
        found: list[str] = self.page.evaluate("window.seen")
        return found

    def close(self) -> None:
        """Leave the page; it must have had no error."""
        self.page.close()
        assert not self.errors


def screenshot(page: Any, name: str, clip: dict[str, int], offset: tuple[int, int] = (-250, 170)) -> None:
    """Keep a picture for the documents, where ``FAST_COMPILE_SCREENSHOTS`` names a folder.

    ``clip``: which part of the page; ``offset``: of the canvas.
    """
    if folder := os.environ.get("FAST_COMPILE_SCREENSHOTS"):
        page.add_style_tag(content=".p-toast { display: none }")
        page.evaluate(
            "(offset) => { app.canvas.deselectAll?.(); app.canvas.ds.scale = 1; app.canvas.ds.offset = offset; app.canvas.setDirty(true, true); }",
            list(offset),
        )
        page.wait_for_timeout(1500)
        page.screenshot(path=Path(folder) / name, clip=clip)
