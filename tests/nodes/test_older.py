"""The nodes for a ComfyUI that is too old: the same ids, inputs and defaults, everything passes, and each says why
nothing is faster.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.hosts.comfy.promised import NODES, inputs_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def pack(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The pack as a ComfyUI without today's API loads it, under a folder's name."""
    name = "fast-compile_older"
    for missing in ("comfy_api", "comfy_api.latest"):
        monkeypatch.delitem(sys.modules, missing, raising=False)
    samplers = types.SimpleNamespace(KSampler=types.SimpleNamespace(SAMPLERS=["euler"], SCHEDULERS=["normal"]))
    monkeypatch.setitem(sys.modules, "comfy", types.SimpleNamespace(samplers=samplers))
    monkeypatch.setitem(sys.modules, "comfy.samplers", samplers)
    spec = importlib.util.spec_from_file_location(name, ROOT / "__init__.py", submodule_search_locations=[str(ROOT)])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    yield module
    for loaded in [found for found in sys.modules if found.startswith(f"{name}.")]:
        del sys.modules[loaded]


def _described(kind: Any) -> tuple[Any, ...]:
    return inputs_of(kind.INPUT_TYPES()), list(kind.RETURN_TYPES), getattr(kind, "OUTPUT_NODE", False)


def test_they_are_those_that_workflows_know(pack: ModuleType) -> None:
    """In the order that widgets have in a saved workflow."""
    assert pack.NODE_DISPLAY_NAME_MAPPINGS == {name: shown for name, (shown, *_) in NODES.items()}
    assert {name: _described(kind) for name, kind in pack.NODE_CLASS_MAPPINGS.items()} == {
        name: tuple(rest) for name, (_, *rest) in NODES.items()
    }


def test_everything_passes_and_the_reason_is_shown(pack: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the node, on its badge, in texts and pictures."""
    sent: list[tuple[Any, ...]] = []
    instance = types.SimpleNamespace(client_id="somebody", send_sync=lambda *message: sent.append(message))
    monkeypatch.setitem(
        sys.modules, "server", types.SimpleNamespace(PromptServer=types.SimpleNamespace(instance=instance))
    )
    for name, kind in pack.NODE_CLASS_MAPPINGS.items():
        required = kind.INPUT_TYPES()["required"]
        output = kind().run(unique_id="8", **{key: f"the {key}" for key in required})
        assert (
            "too old for Fast Compile, which needs 0.3.64 or newer" in output["ui"]["text"][0]
            and "update ComfyUI" in output["ui"]["text"][0]
        )
        assert len(output["result"]) == len(kind.RETURN_TYPES)
        if not name.startswith("FastCompile"):
            assert output["result"] == (f"the {next(iter(required))}",)
        for kind_of, value in zip(kind.RETURN_TYPES, output["result"], strict=True):
            assert str.__ne__(kind_of, "IMAGE") or value.shape[3] == 3
        assert name != "FastCompileSettings" or output["result"] == (None,)
    events = [data for event, data in sent if event == "fast_compile.status"]
    assert len(events) == len(NODES) and all(
        (data["nodes"], data["state"]) == (["8"], "eager") and data["advice"] for data in events
    )


def test_a_type_that_fits_every_other(pack: ModuleType) -> None:
    """Old versions compare types with ``!=``."""
    any_type = pack.NODE_CLASS_MAPPINGS["FastCompileFreeMemory"].RETURN_TYPES[0]
    assert not any_type != "LATENT" and any_type == "*" and {any_type: 1}["*"] == 1


@pytest.mark.parametrize(
    ("python", "torch_version", "words"),
    [
        ((3, 9, 1), "2.11.0+cu130", "Python 3.9, and Fast Compile needs 3.10"),
        ((3, 12, 1), "2.5.1", "PyTorch 2.5.1, and Fast Compile needs 2.6"),
    ],
)
def test_another_python_and_an_old_pytorch(
    pack: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    python: Any,
    torch_version: str,
    words: str,
) -> None:
    """Said when ComfyUI starts, in one sentence with the remedy, and by each node."""
    monkeypatch.setattr(sys, "version_info", python)
    monkeypatch.setitem(sys.modules, "folder_paths", types.ModuleType("folder_paths"))
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(__version__=torch_version))
    sys.modules[f"{pack.__name__}.nodes.older"].say_so()  # type: ignore[attr-defined]
    (line,) = [record.message for record in caplog.records]
    assert words in line and "What you can do: " in line
    assert words in pack.NODE_CLASS_MAPPINGS["ApplyFastCompile"]().run(model="the model")["ui"]["text"][0]
