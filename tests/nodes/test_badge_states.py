"""What the badge's script makes of a graph and of events, in Node.js: web/js/state.js needs no page."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

STATE = Path(__file__).resolve().parents[2] / "web" / "js" / "state.js"
LOOK = """
import { placed, shown, switchedOff, Told, typeOf } from "./state.mjs";
const told = new Told();
let lines = "";
process.stdin.on("data", (data) => (lines += data)).on("end", () => {
  const { graph, events, board, workflow } = JSON.parse(lines);
  if (board) told.replace(workflow, board);
  for (const event of events ?? []) told.hear(event, workflow);
  const texts = {};
  for (const { node, id, around } of placed(graph)) {
    if (!/FastCompile/.test(typeOf(node))) continue;
    const { state, parts } = shown(told, typeOf(node), { off: switchedOff(node, around), ...told.of(workflow, [id]) });
    texts[id] = [state, ...parts.map((part) => (typeof part === "string" ? part : [part[0], ...Object.values(part[1] ?? {}), part[2]].filter(Boolean).join(" ")))];
  }
  console.log(JSON.stringify(texts));
});
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """``look(**case)``: what the badges say."""
    found = shutil.which("node")
    if found is None:
        pytest.skip("needs Node.js")
    folder = tmp_path_factory.mktemp("script")
    (folder / "state.mjs").write_text(STATE.read_text("utf-8"), "utf-8")
    (folder / "look.mjs").write_text(LOOK, "utf-8")

    def look(**case: Any) -> dict[str, list[str]]:
        done = subprocess.run(
            [found, "look.mjs"],
            cwd=folder,
            input=json.dumps({"workflow": "w", **case}),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        told: dict[str, list[str]] = json.loads(done.stdout)
        return told

    return look


def _apply(number: int = 8, **about: Any) -> dict[str, Any]:
    return {
        "id": number,
        "type": "ApplyFastCompile",
        "mode": 0,
        "widgets": [{"name": "enabled", "value": True}],
        **about,
    }


FAST = {
    "nodes": ["8"],
    "workflow": "w",
    "state": "fast",
    "model": "SD15",
    "inputs": "x",
    "rate": 5.12,
    "graph_bytes": 2**20,
}


def test_switches_come_first(node: Any) -> None:
    """Bypassed, muted and off, here or around it; a switch that another node sets says nothing."""
    off = {"widgets": [{"name": "enabled", "value": False}]}
    inside = {"nodes": [_apply(8), _apply(9, mode=2)]}
    graph = {
        "nodes": [
            _apply(1, mode=4), _apply(2, mode=2), _apply(3, **off), _apply(4, **off, inputs=[{"name": "enabled", "link": 7}]),
            {"id": 5, "type": "uuid", "mode": 4, "subgraph": inside}, {"id": 6, "type": "uuid", "mode": 0, "subgraph": inside}, _apply(),
        ]
    }  # fmt: skip
    texts = node(graph=graph, events=[{**FAST, "nodes": [str(number) for number in range(9)]}])
    assert [texts[key][0] for key in ("1", "2", "3", "4", "8")] == ["bypassed", "muted", "off", "fast", "fast"]
    assert [texts[key][0] for key in ("5:8", "5:9", "6:8", "6:9")] == ["bypassed", "bypassed", "ready", "muted"]


def test_whose_an_event_is(node: Any) -> None:
    """The node's in its own workflow; nobody's, where no editor has queued the prompt.

    An older server names no workflow.
    """
    graph = {"nodes": [_apply()]}
    for workflow, state in (("w", "fast"), ("another", "ready"), (None, "ready")):
        assert node(graph=graph, events=[{**FAST, "workflow": workflow}])["8"][0] == state
    assert (
        node(graph=graph, events=[{key: value for key, value in FAST.items() if key != "workflow"}])["8"][0] == "fast"
    )


def test_what_is_said(node: Any) -> None:
    """Progress, speed, the benchmark's figure as it was measured, memory; what the server's board says takes the place
    of all.
    """
    graph = {"nodes": [_apply(), {"id": 7, "type": "FastCompileBenchmark"}, {"id": 6, "type": "FastCompileReport"}]}
    tracing = {**FAST, "state": "tracing", "step": 1, "steps": 20, "done": 0.37, "rate": None, "graph_bytes": 0}
    assert node(graph=graph, events=[tracing])["8"] == ["tracing", "tracing 1/20", "37%"]
    assert node(graph=graph, events=[FAST])["8"] == ["fast", "fast", "rate 5.12", "megabytes 1048576"]
    measured = {"nodes": ["7"], "workflow": "w", "state": "measured", "model": "SD15", "inputs": "x", "times": 2.345}
    texts = node(graph=graph, events=[measured, FAST])
    assert texts["7"] == ["measured", "times 2.35"] or texts["7"] == ["measured", "times 2.34"]
    assert texts["8"][3] == texts["7"][1] and texts["6"] == ["ready", "graphs 1048576"]
    board: dict[str, Any] = {"events": [{**FAST, "idle": True}], "graphs": {}, "times": []}
    assert node(graph=graph, board=board)["8"] == ["idle", "idle"]
    assert node(graph=graph, events=[FAST, {**FAST, "state": "ready"}])["8"] == ["ready", "ready"]
    without = {"events": [], "graphs": {}, "times": [], "machine": {"why": "no GPU", "advice": "none"}}
    assert node(graph=graph, board=without)["8"] == ["eager", "notHere"]
