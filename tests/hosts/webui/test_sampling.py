"""A sampling whose steps go past our forward: it is put in again where that helps, and what was lost is said."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sfast_core import CompileConfig
from sfast_core.hosts.webui.accelerator import Accelerator
from tests.hosts.webui.fakes import Net, Network, Webui, a1111_model, forge_model, webui

__all__ = ["webui"]
CONFIG = CompileConfig(allow_cpu=True)
X, CONTEXT = torch.randn(2, 4, 4, 4), torch.randn(2, 3, 6)


def _step(model: Any) -> torch.Tensor:
    with torch.no_grad():
        if hasattr(model, "forge_objects"):
            return model.forge_objects.unet.sample(X, CONTEXT)
        result: torch.Tensor = model.model.diffusion_model(X, torch.ones(2), context=CONTEXT)
        return result


def _sampling(accelerator: Accelerator, model: Any, between: Any = None, steps: int = 4) -> list[torch.Tensor]:
    accelerator.begin(True)
    accelerator.attach(model, CONFIG)
    if between is not None:
        between(model)
    results = []
    for _ in range(steps):
        accelerator.before_step()
        results.append(_step(model))
    accelerator.end()
    return results


def _found(accelerator: Accelerator) -> tuple[dict[str, int], list[str]]:
    module = accelerator.report().modules[0]
    return dict(module.calls), list(module.reasons)


def _over(model: Any) -> None:
    """A forward over ours, which calls the class's own."""
    unet = model.model.diffusion_model

    def forward(*args: Any, **kwargs: Any) -> Any:
        result: torch.Tensor = type(unet).forward(unet, *args, **kwargs)
        return result * 0.5

    unet.forward = forward


def _over_in_forge(model: Any) -> None:
    """A wrapper in the place of ours, on a clone."""
    patcher = model.forge_objects.unet.clone()
    patcher.set_model_unet_function_wrapper(
        lambda apply, given: apply(given["input"], given["timestep"], **given["c"]) * 0.5
    )
    model.forge_objects.unet = patcher


@pytest.mark.parametrize(
    ("kind", "over"), [(a1111_model, _over), (forge_model, _over_in_forge)], ids=["a1111", "forge"]
)
def test_what_comes_over_ours_in_a_sampling(webui: Webui, kind: Any, over: Any) -> None:
    """One step is lost, and said; with the second one ours is over theirs."""
    model, accelerator = kind(Net().eval()), Accelerator()
    plain = _step(model)
    results = _sampling(accelerator, model, over)
    for result in results:
        torch.testing.assert_close(result, plain * 0.5)
    calls, reasons = _found(accelerator)
    assert calls["eager"] == 1 and calls["traced"] == 1 and calls["fused"] == 2
    (reason,) = reasons
    assert reason.startswith("a sampling bypassed it: another extension has put a ") and "(tests)" in reason


@pytest.mark.parametrize("kind", [a1111_model, forge_model], ids=["a1111", "forge"])
def test_nobody_writes_to_weights_within_a_sampling(webui: Webui, kind: Any) -> None:
    """But the Lora extension: what is made of weights holds from the first step to the last, and not beyond."""
    model, accelerator = kind(Net().eval()), Accelerator()
    periods = []

    def step(steps: int = 4) -> None:
        accelerator.before_step(steps)
        _step(model)
        store = accelerator.states()[0].engine.store
        periods.append((store.period(), store.steps))

    accelerator.begin(True)
    accelerator.attach(model, CONFIG)
    step(), step()
    if kind is a1111_model:  # another strength at each step, as some extensions have it
        webui.networks.loaded_networks[:] = [Network("a")]
    step(), step()
    accelerator.attach(model, CONFIG)  # the second pass of hires. fix
    step(2)
    (first, steps), second, third, fourth, (fifth, fewer) = periods
    assert first is not None and second == (first, steps) and third == fourth and (steps, third[1], fewer) == (4, 4, 2)
    assert (third[0] == first) == (kind is forge_model) and fifth not in (None, first, third[0])
    store = accelerator.states()[0].engine.store
    accelerator.end()
    assert store.period() is None and store.steps is None


def test_an_exception_ends_the_sampling(webui: Webui) -> None:
    """The webui then calls nothing; the next generation does, also one that isn't accelerated."""
    model, accelerator = a1111_model(Net().eval()), Accelerator()
    accelerator.attach(model, CONFIG)
    accelerator.before_step(4)
    store = accelerator.states()[0].engine.store
    assert store.period() is not None
    accelerator.begin(False)
    assert store.period() is None


def test_one_step_alone(webui: Webui) -> None:
    """There is no second one in which to do better."""
    model, accelerator = a1111_model(Net().eval()), Accelerator()
    _sampling(accelerator, model, _over, steps=1)
    assert _found(accelerator)[0] == {"eager": 1}


def test_another_unet_in_its_place(webui: Webui) -> None:
    """From the second step on that one is fused."""
    model, accelerator, other = a1111_model(Net().eval()), Accelerator(), a1111_model(Net().eval())
    first, expected = model.model, _step(other)
    for result in _sampling(accelerator, model, lambda model: setattr(model, "model", other.model)):
        torch.testing.assert_close(result, expected)
    mine, theirs = accelerator.report().modules
    assert mine.calls == {"eager": 1} and theirs.calls == {"traced": 1, "fused": 2} and first is not model.model
    assert "another UNet in its place" in next(iter(mine.reasons))


def test_a_sampling_that_the_user_has_ended(webui: Webui) -> None:
    """Then nothing went past."""
    model, accelerator = a1111_model(Net().eval()), Accelerator()
    webui.shared.state = SimpleNamespace(interrupted=True)
    _sampling(accelerator, model, _over, steps=1)
    assert _found(accelerator) == ({}, [])


def test_an_exception_is_no_sampling_that_went_past(webui: Webui) -> None:
    """The webui then calls nothing at the end; the next generation cleans up, and says nothing of it."""
    model, accelerator = a1111_model(Net().eval()), Accelerator()
    accelerator.begin(True)
    accelerator.attach(model, CONFIG)
    accelerator.before_step()
    accelerator.begin(True)
    accelerator.attach(model, CONFIG)
    accelerator.end()
    assert _found(accelerator) == ({}, [])
