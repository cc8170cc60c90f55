"""The nodes around the compiled model on ComfyUI's real server: in what order they run, when again,
and what they show.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.comfy.live_server import LiveServer, Rejected
from tests.hosts.comfy.promised import NODES
from tests.hosts.comfy.workflow import txt2img

pytestmark = pytest.mark.host
ROOT = Path(__file__).resolve().parents[3]
CHECKPOINT = "tiny-sd15.safetensors"


def _shown(outputs: dict[str, Any], node: str) -> str:
    return str(outputs[node]["text"][0])


def _pixels(images: list[bytes]) -> bytes:
    (png,) = images
    found: bytes = pytest.importorskip("PIL.Image").open(io.BytesIO(png)).tobytes()
    return found


def _with_report(seed: int, **node: Any) -> dict[str, Any]:
    prompt = txt2img(CHECKPOINT, node, seed=seed)
    prompt["9"] = {"class_type": "FastCompileReport", "inputs": {"of": ["8", 0], "after": ["5", 0]}}
    prompt["10"] = {"class_type": "PreviewImage", "inputs": {"images": ["9", 1]}}
    return prompt


def warm_up(prompt: dict[str, Any], sizes: str) -> dict[str, Any]:
    """A prompt with a warm-up before its sampler, as node 11."""
    inputs = {"model": ["8", 0], "positive": ["2", 0], "negative": ["3", 0], "sizes": sizes, "cfg": 7.0}
    sampler = {**prompt["5"], "inputs": {**prompt["5"]["inputs"], "model": ["11", 0]}}
    return {**prompt, "5": sampler, "11": {"class_type": "FastCompileWarmUp", "inputs": inputs}}


def free_memory(prompt: dict[str, Any]) -> dict[str, Any]:
    """A prompt that frees the graphs' memory behind its sampler, as node 13."""
    decode = {**prompt["6"], "inputs": {**prompt["6"]["inputs"], "samples": ["13", 0]}}
    return {**prompt, "6": decode, "13": {"class_type": "FastCompileFreeMemory", "inputs": {"anything": ["5", 0]}}}


def benchmark(**inputs: Any) -> dict[str, Any]:
    """A prompt that measures, as node 4."""
    prompt = {key: node for key, node in txt2img(CHECKPOINT, {}).items() if key in ("1", "2", "3")}
    usual = {"batch_size": 1, "cfg": 7.0, "sampler_name": "euler", "scheduler": "normal", "rounds": 1}
    links = {"model": ["1", 0], "positive": ["2", 0], "negative": ["3", 0]}
    return {**prompt, "4": {"class_type": "FastCompileBenchmark", "inputs": {**usual, **links, **inputs}}}


def _calls(text: str) -> dict[str, int]:
    (line,) = [line for line in text.splitlines() if line.startswith("  calls: ")]
    return {path: int(count) for count, path in (part.split() for part in line[len("  calls: ") :].split(", "))}


def test_the_report_runs_after_the_sampler_and_every_time(server: LiveServer) -> None:
    """Also when nothing else has changed: then the rest is taken from the cache, and the report is made anew."""
    server.run(txt2img(CHECKPOINT, {}, seed=100))
    prompt = _with_report(101)
    outputs = server.outputs(prompt)
    text = _shown(outputs, "9")
    before = _calls(text)
    assert "SD15 on cpu" in text and before["fused"] >= 2, text
    assert len(outputs["10"]["images"]) == 1
    again = _shown(server.outputs(prompt), "9")
    assert _calls(again) == before, "the sampler ran again"
    later = _calls(_shown(server.outputs(_with_report(102)), "9"))
    assert later["fused"] == before["fused"] + 2, "the report was made before the sampler was done"


def test_after_a_warm_up_the_sampler_traces_nothing(server: LiveServer) -> None:
    """At a size that was not seen before, on the real server."""
    prompt = _with_report(110)
    prompt["4"]["inputs"] = {"width": 96, "height": 64, "batch_size": 2}
    prompt = warm_up(prompt, "96x64 x2\n64x128")
    prompt["12"] = {"class_type": "FastCompileReport", "inputs": {"of": ["8", 0], "after": ["11", 0]}}
    alone = {key: node for key, node in prompt.items() if key in ("1", "2", "3", "8", "11", "12")}
    warmed = _calls(_shown(server.outputs(alone), "12"))
    outputs = server.outputs(prompt)
    sampled = _calls(_shown(outputs, "9"))
    assert sampled["traced"] == warmed["traced"] and sampled["fused"] == warmed["fused"] + 2, (warmed, sampled)


def test_graphs_from_warm_up_to_freeing(capturing: LiveServer) -> None:
    """What each node says of graphs: captured, held, replayed by the sampler, freed."""
    capturing.unload()
    prompt = warm_up(_with_report(140), "64x64, 64x96")
    outputs = capturing.outputs(prompt)
    lines = _shown(outputs, "11").splitlines()
    assert [line.partition(":")[0] for line in lines] == ["64x64", "64x96"] and all(
        "100 MB" in line for line in lines
    ), lines
    report = _shown(outputs, "9")
    assert _calls(report) == {"traced": 2, "replayed": 4} and report.count("graph: 100 MB") == 2, report
    (module,) = [module for module in capturing.get("/fast_compile/report")["modules"] if module["name"] == "SD15"]
    assert [signature["captures"] for signature in module["signatures"]] == [1, 1]
    assert module["graph_bytes"] == sum(signature["graph_bytes"] for signature in module["signatures"]) > 200 * 2**20
    assert f"({module['graph_bytes']:,} bytes)" in _shown(capturing.outputs(free_memory(prompt)), "13")
    text = _shown(capturing.outputs(benchmark(width=64, height=64, steps=2)), "4")
    assert "replayed" in text and "graphs: 100 MB" in text, text


def test_a_wrong_size_is_refused_before_anything_runs(server: LiveServer) -> None:
    with pytest.raises(Rejected) as refusal:
        server.outputs(warm_up(txt2img(CHECKPOINT, {}, seed=120), "64x64, big"))
    (error,) = refusal.value.answer["node_errors"]["11"]["errors"]
    assert "sizes, line 1: got 'big'" in error["details"]


def test_memory_is_freed_on_the_way(server: LiveServer) -> None:
    """What comes in goes out, and the node says how much it was."""
    prompt = txt2img(CHECKPOINT, {}, seed=130)
    plain = server.run(prompt)
    prompt = free_memory(prompt)
    assert "nothing to free" in _shown(server.outputs(prompt), "13")
    prompt["7"]["inputs"]["filename_prefix"] = "again"
    assert _pixels(server.run(prompt)) == _pixels(plain)


def test_the_benchmark_runs_every_time(server: LiveServer) -> None:
    prompt = benchmark(width=64, height=64, steps=1)
    first, second = (_shown(server.outputs(prompt), "4") for _ in range(2))
    assert "x eager" in first and "x eager" in second and first != second, "the second time it was taken from the cache"


# -- what the editor reads -----------------------------------------------------------------------------------------


def _ours(server: LiveServer) -> list[str]:
    return sorted(name for name, node in server.get("/object_info").items() if node["category"] == "model/fast compile")


def test_every_node_has_its_pages(server: LiveServer) -> None:
    """Where the editor asks for them: in the pack's own web folder."""
    names = _ours(server)
    assert names == sorted(NODES)
    for name in names:
        for language in ("en", "zh"):
            page = server.text(f"/extensions/fast-compile/docs/{name}/{language}.md")
            assert page == (ROOT / "web" / "docs" / name / f"{language}.md").read_text("utf-8")


def test_the_translations(server: LiveServer) -> None:
    found = server.get("/i18n")
    for language in ("en", "zh"):
        assert set(_ours(server)) <= set(found[language]["nodeDefs"])


def test_the_templates(server: LiveServer) -> None:
    """The example workflows are offered, under the pack's name."""
    files = {file.stem for file in (ROOT / "example_workflows").glob("*.json")}
    assert set(server.get("/workflow_templates")["fast-compile"]) == files
