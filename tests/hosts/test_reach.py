"""Calls that go through the node and don't come to the model's forward are counted, with who was in the way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig
from sfast_core.engine import Engine
from sfast_core.hosts.comfy.reach import Reach, first_block
from sfast_core.hosts.hook import Hook, HookedCall
from sfast_core.reporting.report import ModuleReport


class Denoiser(nn.Module):
    """Two blocks in a list, as diffusion models have them; the first is a layer in a container, as a UNet's."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(2, 2)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(2, 2)), nn.Linear(2, 2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


Denoiser.forward.__module__ = "comfy.ldm.denoiser"  # the host's own


def _wrapper(executor: Any, *args: Any) -> Any:
    return executor(*args)


_wrapper.__module__ = "/somewhere/custom_nodes/ComfyUI-Walker.nodes"
OPTIONS = {"wrappers": {"diffusion_model": {"walk": [_wrapper]}, "apply_model": {"nobody": []}}}


def _ended(model: nn.Module, call: Any, options: dict[str, Any] = OPTIONS) -> ModuleReport:
    engine = Engine("Denoiser", CompileConfig())
    reach = Reach(model)
    call(reach)
    reach.end(engine, model, options)
    assert all("forward" not in vars(block) for block in model.modules())
    return engine.report


def test_a_call_that_comes_to_the_forward_is_none_of_these() -> None:
    model = Denoiser()
    report = _ended(model, lambda reach: (reach.arrived(), model(torch.ones(2))))
    assert not report.calls and not report.answered


def test_blocks_that_other_code_runs() -> None:
    model = Denoiser()
    report = _ended(
        model,
        lambda reach: [
            layer(torch.ones(2))
            for block in model.blocks
            for layer in (block if isinstance(block, nn.Sequential) else [block])
        ],
    )
    assert report.reasons == {"its blocks are run by ComfyUI-Walker, not by its forward": 1} and report.calls == {
        "eager": 1
    }


class Inner(Denoiser):
    """As most of ComfyUI's diffusion models: one forward leads to the other."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._forward(x)

    def _forward(self, x: torch.Tensor) -> torch.Tensor:
        return Denoiser.forward(self, x)


class Causal(Inner):
    """As a causal Wan: its own forward leads past the other one to the blocks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Denoiser.forward(self, x)


@pytest.mark.parametrize(("kind", "words"), [(Causal, "the model runs its blocks"), (Inner, "by other code")])
def test_blocks_that_the_models_own_forward_runs(
    kind: type[Denoiser], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind.forward, "__module__", "comfy.ldm.denoiser")
    model = kind()
    report = _ended(model, lambda reach: Denoiser.forward(model, torch.ones(2)), {})
    assert [words in reason for reason in report.reasons] == [True]


def test_an_answer_in_the_models_place() -> None:
    report = _ended(Denoiser(), lambda reach: None)
    assert report.answered == {"ComfyUI-Walker": 1} and not report.calls
    assert "1 more calls didn't run it: ComfyUI-Walker answered in its place" in report.text()
    assert _ended(Denoiser(), lambda reach: None, {}).answered == {"other code": 1}


def test_a_swapped_class_is_named() -> None:
    class Another(Denoiser):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.blocks[1](self.blocks[0][0](x))

    Another.forward.__module__ = "/somewhere/RES4LYF.models"
    model = Denoiser()
    model.__class__ = Another
    assert "run by RES4LYF" in next(iter(_ended(model, lambda reach: model(torch.ones(2)), {}).reasons))


def test_a_model_without_blocks() -> None:
    model = nn.Linear(2, 2)
    assert first_block(model) is None and _ended(model, lambda reach: None, {}).answered == {"other code": 1}


def test_a_hook_that_others_keep_and_put_back_at_each_call_is_one_hook() -> None:
    """As a wrapper does that replaces the forwards of blocks for the length of a call: what it keeps is that of the
    last call.
    """
    block = nn.Linear(2, 2)
    for _ in range(3):
        hook = Hook(block, HookedCall.eager).put()
        kept = block.forward
        block.forward = lambda x, kept=kept: kept(x)  # type: ignore[method-assign, misc, assignment]
        hook.remove()
        block(torch.ones(2))
        block.forward = kept  # type: ignore[method-assign]
    assert getattr(kept._original, "__func__", None) is nn.Linear.forward  # type: ignore[attr-defined]


def test_calls_of_two_threads_leave_nothing_behind() -> None:
    """The first to come is the first to leave, so that what the second one puts back is the first one's."""
    model = Denoiser()
    first, second = Reach(model), Reach(model)
    first.arrived()
    second.arrived()
    assert "forward" not in vars(model.blocks[0][0])


@pytest.mark.parametrize("where", ["comfy.ldm.flux.model", "comfy_extras.nodes_easycache"])
def test_a_wrapper_of_the_hosts_own_goes_by_its_key(where: str) -> None:
    def cache(executor: Any, *args: Any) -> Any:
        return None

    cache.__module__ = where
    report = _ended(Denoiser(), lambda reach: None, {"wrappers": {"diffusion_model": {"easycache": [cache]}}})
    assert report.answered == {"easycache": 1}
