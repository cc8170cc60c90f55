"""What a badge says is what a queue would do: in ComfyUI's real front end, with a headless Chromium driven by
Playwright.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.hosts.comfy.editor import BADGE, Editor, screenshot
from tests.hosts.comfy.live_server import LiveServer

pytestmark = pytest.mark.host
#: `ours`: the node, wherever it lies.
FIND = """
  const everywhere = (graph) => graph.nodes.flatMap((node) => [node, ...(node.subgraph ? everywhere(node.subgraph) : [])]);
  const find = (type) => everywhere(app.rootGraph ?? app.graph).find((node) => node.type === type);
  const ours = find("ApplyFastCompile");
"""
RAN = "(fused, no graph|fast)"  # without graphs, and with
RATE = RAN + " · .*it/s"
TEXT = "pre.fast-compile-text"


def run(editor: Editor, script: str, argument: Any = None) -> Any:
    """What a script gives in the page, which knows `find` and `ours`; the editor is told that the graph has changed."""
    return editor.page.evaluate(
        f"""async (argument) => {{ {FIND}
          const result = await (async () => {{ {script} }})();
          const tracker = app.extensionManager.workflow.activeWorkflow?.changeTracker;
          (tracker?.captureCanvasState ?? tracker?.checkState)?.call(tracker);
          return result; }}""",
        argument,
    )


def says(editor: Editor, words: str, page: Any = None, seconds: float = 90) -> None:
    """The badge says this, at once or soon."""
    editor_page = page or editor.page
    try:
        editor_page.wait_for_function(
            "(words) => new RegExp(words).test(document.querySelector('.fast-compile-badge')?.textContent ?? '')",
            arg=f"^{words}",
            timeout=1000 * seconds,
        )
    except Exception:
        pytest.fail(f"the badges say {editor_page.locator(BADGE).all_inner_texts()}, not {words!r}")


def keep_the_seed(editor: Editor) -> None:
    """So that a second queue has nothing to do."""
    run(editor, "find('KSampler').widgets[1].value = 'fixed';")


def queue(editor: Editor, change: str = "") -> None:
    """Run the workflow to its end."""
    editor.page.evaluate(
        """() => { window.over = new Promise((resolve) => {
          for (const name of ["execution_success", "execution_error", "execution_interrupted"]) app.api.addEventListener(name, () => resolve(name), { once: true });
        }); }"""
    )
    run(editor, f"{change}; await app.queuePrompt(0);")
    editor.page.evaluate("window.over")


@pytest.fixture
def sampled(browser: Any, server: LiveServer) -> Iterator[Editor]:
    """The editor with a workflow that has run once."""
    found = Editor(browser, server)
    found.load("sd15_txt2img")
    keep_the_seed(found)
    queue(found, "find('KSampler').widgets[0].value = Math.floor(Math.random() * 1e9)")
    says(found, RATE)
    yield found
    found.close()


def test_a_nodes_own_switches(sampled: Editor) -> None:
    """Bypassed, muted, off: nothing would run through it, whatever ran before; and the server isn't asked."""
    for script, words in (
        ("ours.mode = 4", "bypassed"),
        ("ours.mode = 2", "muted"),
        ("ours.mode = 0", RAN),
        ("const w = ours.widgets.find((w) => w.name === 'enabled'); w.value = false; w.callback?.(false)", "off"),
    ):
        run(sampled, script)
        says(sampled, words)
    sampled.page.locator(BADGE).click()
    assert "Its switch 'enabled' is off" in sampled.page.locator("dialog.fast-compile-details").inner_text()
    sampled.page.keyboard.press("Escape")


def test_a_queue_that_ran_no_model(sampled: Editor) -> None:
    """The sampling was kept from before, or another node ran the model: the node did nothing."""
    queue(sampled)
    says(sampled, "not used in the last queue")
    queue(sampled, "find('KSampler').widgets[0].value += 1")
    says(sampled, RAN)
    queue(
        sampled,
        "find('KSampler').widgets[0].value += 1; const loader = find('CheckpointLoaderSimple'); loader.connect(0, find('KSampler'), 0)",
    )
    says(sampled, "not used in the last queue")


def test_a_reload_and_a_second_tab(browser: Any, server: LiveServer, sampled: Editor) -> None:
    """The server remembers; and a page hears of what another one queues."""
    workflow = run(sampled, "return (app.rootGraph ?? app.graph).serialize()")
    words = sampled.page.locator(BADGE).inner_text()
    other = Editor(browser, server)
    other.page.evaluate("(workflow) => app.loadGraphData(workflow)", workflow)
    says(other, words.partition(" ·")[0])
    queue(sampled, "find('KSampler').widgets[0].value += 1; find('KSampler').widgets[2].value = 3")
    says(other, RATE), says(sampled, RATE)
    assert other.page.locator(BADGE).inner_text() == sampled.page.locator(BADGE).inner_text()
    other.close()
    sampled.page.reload()
    sampled.page.wait_for_function(
        "window.app?.extensionManager?.workflow?.activeWorkflow && window.app.graph?.nodes?.length"
    )
    says(sampled, RAN)
    sampled.errors.clear()


def test_another_workflow_with_the_same_numbers(browser: Any, server: LiveServer, sampled: Editor) -> None:
    """Nothing has run through it, whatever runs elsewhere, in a page or without one."""
    other = Editor(browser, server)
    other.load("sd15_txt2img")
    run(other, "(app.rootGraph ?? app.graph).id = 'another-one'")
    queue(sampled, "find('KSampler').widgets[0].value += 1")
    other.page.wait_for_timeout(1000)
    says(other, "ready")
    other.close()


def test_copied_pasted_and_deleted(sampled: Editor) -> None:
    """ComfyUI keeps what the first one gave, and executes no node: the one that stands there now is told of."""
    run(
        sampled,
        """const copy = ours.clone(); app.graph.add(copy); const [input] = ours.inputs.filter((each) => each.name === "model");
        app.graph.getNodeById(app.graph.links.get?.(input.link)?.origin_id ?? app.graph.links[input.link].origin_id).connect(0, copy, 0);
        copy.connect(0, find("KSampler"), 0); app.graph.remove(ours);""",
    )
    says(sampled, "ready")
    queue(sampled, "find('KSampler').widgets[0].value += 1")
    says(sampled, RATE)


def test_in_a_subgraph(sampled: Editor) -> None:
    """The node in it is told of, and the closed subgraph shows it."""
    if not sampled.page.evaluate("typeof app.graph.convertToSubgraph === 'function'"):
        pytest.skip("this front end has no subgraphs")
    run(sampled, "app.graph.convertToSubgraph(new Set([ours]))")
    queue(sampled, "find('KSampler').widgets[0].value += 1")
    drawn = """() => { const node = app.graph.nodes.find((each) => each.subgraph);
      return node.badges.map((each) => (typeof each === "function" ? each() : each)).some((each) => each.height === 20 && each.text === "" && each.getWidth(app.canvas.ctx) > 60); }"""
    sampled.page.wait_for_function(drawn)
    run(sampled, "const around = app.graph.nodes.find((each) => each.subgraph); app.canvas.setGraph(around.subgraph)")
    says(sampled, RATE)
    run(sampled, "app.canvas.setGraph(app.rootGraph); app.graph.nodes.find((each) => each.subgraph).mode = 4")
    run(sampled, "app.canvas.setGraph(app.graph.nodes.find((each) => each.subgraph).subgraph)")
    says(sampled, "bypassed")


def test_an_interrupted_first_step(browser: Any, server: LiveServer) -> None:
    """A queue would begin anew: nothing of it stays on the badge."""
    editor = Editor(browser, server)
    editor.load("sd15_txt2img")
    script = "find('EmptyLatentImage').widgets[0].value = 96; find('KSampler').widgets[2].value = 20; await app.queuePrompt(0);"
    run(
        editor,
        f"app.api.addEventListener('fast_compile.status', ({{ detail }}) => detail.state === 'tracing' && app.api.interrupt(), {{ once: true }}); {script}",
    )
    says(editor, "ready")
    editor.page.wait_for_timeout(1000)
    says(editor, f"ready|{RAN}")
    editor.close()


@pytest.mark.parametrize("vue", [False, True], ids=["canvas", "vue"])
def test_the_text_of_a_node(browser: Any, server: LiveServer, vue: bool) -> None:
    """Preformatted, within the node, which stays as large as it was saved."""
    editor = Editor(browser, server, **{"Comfy.VueNodes.Enabled": vue})
    editor.load("sd15_txt2img")
    size = run(
        editor,
        """const node = LiteGraph.createNode("FastCompileReport"); app.graph.add(node); node.pos = [50, 50]; find("KSampler").connect(0, node, 1);
        return [...node.size];""",
    )
    queue(editor)
    text = editor.page.locator(TEXT)
    text.filter(has_text="By size").wait_for()
    assert "\n" in text.inner_text() and text.evaluate("(text) => getComputedStyle(text).whiteSpace") == "pre-wrap"
    editor.page.wait_for_timeout(500)
    after = run(editor, "return [...find('FastCompileReport').size]")
    assert after == size, (size, after)
    scale = editor.page.evaluate("app.canvas.ds.scale")
    height = text.bounding_box()["height"] / scale
    assert 60 < height <= size[1] and text.evaluate("(text) => text.scrollHeight > text.clientHeight"), (height, size)
    assert run(editor, "return find('FastCompileReport').serialize().widgets_values ?? []") in ([], {})
    badges = [badge.bounding_box()["height"] / scale for badge in editor.page.locator(BADGE).all()]
    assert len(badges) == 2 and max(badges) < 26, badges  # the room is the text's
    if vue:
        queue(editor, "find('KSampler').widgets[0].value += 1; find('KSampler').pos = [1300, -100]")
        run(editor, "ours.pos = [400, -100]; find('FastCompileReport').pos = [720, -100]")
        says(editor, RATE)
        screenshot(editor.page, "comfyui-vue-nodes.png", {"x": 140, "y": 110, "width": 760, "height": 330}, (-250, 250))
    editor.close()


def test_a_collapsed_node_shows_its_state(browser: Any, server: LiveServer, sampled: Editor) -> None:
    """Above its title, in both renderers."""
    run(sampled, "ours.collapse()")
    width = "() => { const all = app.graph.nodes.find((each) => each.type === 'ApplyFastCompile').badges.map((each) => (typeof each === 'function' ? each() : each)); return Math.max(...all.map((each) => each.text === '' ? each.getWidth(app.canvas.ctx) : 0)); }"
    sampled.page.wait_for_function(f"({width})() > 60")
    run(sampled, "ours.collapse()")
    sampled.page.wait_for_function(f"({width})() === 0")
    if sampled.version() < (1, 45):
        return
    workflow = run(sampled, "ours.collapse(); return app.graph.serialize()")
    other = Editor(browser, server, **{"Comfy.VueNodes.Enabled": True})
    other.page.evaluate("(workflow) => app.loadGraphData(workflow)", workflow)
    other.page.wait_for_selector(".lg-node:is([data-fast-compile-state=fused], [data-fast-compile-state=fast])")
    other.close()
