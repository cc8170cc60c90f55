"""What makes a worker's pictures the same whatever it made before: schedules are computed on the CPU."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from sfast_core.farm.worker import texts


class Tables(torch.nn.Module):
    """A model's noise levels, which tell where they lie."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sigmas", torch.tensor([1.0, 2.0]))
        self.where = "a GPU"

    def cpu(self) -> Any:
        self.where = "the CPU"
        return super().cpu()


def calculate_sigmas(model_sampling: Any, scheduler_name: str, steps: int) -> tuple[Any, str, int]:
    """As ComfyUI's is called."""
    return model_sampling, scheduler_name, steps


def loaded(monkeypatch: pytest.MonkeyPatch, samplers: ModuleType) -> dict[str, Any]:
    """The pack, as ComfyUI loads it from its file."""
    package = ModuleType("comfy")
    package.samplers = samplers  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "comfy", package)
    monkeypatch.setitem(sys.modules, "comfy.samplers", samplers)
    names: dict[str, Any] = {"__name__": "farm_repeatable"}
    exec(compile(texts()[1], "farm_repeatable.py", "exec"), names)
    return names


def test_schedules_are_computed_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    samplers = ModuleType("comfy.samplers")
    samplers.calculate_sigmas = calculate_sigmas  # type: ignore[attr-defined]
    assert loaded(monkeypatch, samplers)["NODE_CLASS_MAPPINGS"] == {}, "without it ComfyUI says that the pack failed"
    model = Tables()
    given, *rest = samplers.calculate_sigmas(model, "normal", steps=4)
    assert given.where == "the CPU" and rest == ["normal", 4] and torch.equal(given.sigmas, model.sigmas)
    assert model.where == "a GPU" and given.sigmas is not model.sigmas, "the model's own stay where they are"
    plain = object()
    assert samplers.calculate_sigmas(plain, "normal", 4)[0] is plain


def test_a_comfyui_that_has_no_such_function(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    loaded(monkeypatch, ModuleType("comfy.samplers"))
    assert "first picture may differ" in caplog.text
