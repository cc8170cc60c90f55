"""ControlNets: their residuals are inputs of the fused forward, come and go between steps, and are consumed by the
forward.
"""

from __future__ import annotations

from typing import Any

import comfy.controlnet
import tiny
import torch
from driver import assert_close, assert_differs, assert_fused, calls, fast_compile, load, prompt, sample


def _net() -> Any:
    return comfy.controlnet.load_controlnet_state_dict(tiny.control_net())


def _controlled(model: Any, net: Any, strength: float = 1.0, start: float = 0.0, end: float = 1.0) -> dict[str, Any]:
    """Positive and negative prompts with the ControlNet on them, as Apply ControlNet makes them."""
    hint = tiny.noise((1, 3, 64, 64), 77)
    control = net.copy().set_cond_hint(hint, strength, (start, end))
    both = [prompt(model, seed, control=control, control_apply_to_uncond=False) for seed in (1, 2)]
    return dict(zip(("positive", "negative"), both, strict=True))


def scenario_a_control_net() -> None:
    model, net = load("sd15"), _net()
    plain, expected = sample(model), sample(model, **_controlled(model, net))
    assert_differs(expected, plain)
    fast = fast_compile.apply(model)
    sample(fast), sample(fast, **_controlled(model, net))
    before = calls(model)
    assert_close(sample(fast, **_controlled(model, net)), expected)
    assert_close(sample(fast, **_controlled(model, net, 0.5)), sample(model.clone(), **_controlled(model, net, 0.5)))
    assert_close(sample(fast), plain)
    assert_fused(model, before)
    assert not (calls(model) - before)["traced"]


def scenario_a_control_net_on_some_steps() -> None:
    model, net = load("sd15"), _net()
    options = {"steps": 4, **_controlled(model, net, 1.0, 0.3, 0.7)}
    expected = sample(model, **options)
    assert_differs(expected, sample(model, steps=4))
    assert_differs(expected, sample(model, steps=4, **_controlled(model, net)))
    fast = fast_compile.apply(model)
    sample(fast, **options)
    before = calls(model)
    assert_close(sample(fast, **options), expected)
    assert_fused(model, before)


def scenario_two_control_nets() -> None:
    model = load("sd15")
    first, second = _net().set_cond_hint(tiny.noise((1, 3, 64, 64), 77), 0.6, (0.0, 1.0)), _net()
    second.set_cond_hint(tiny.noise((1, 3, 64, 64), 78), 0.8, (0.0, 0.5)).set_previous_controlnet(first)
    both = {name: prompt(model, seed, control=second) for name, seed in (("positive", 1), ("negative", 2))}
    expected = sample(model, steps=3, **both)
    fast = fast_compile.apply(model)
    sample(fast, steps=3, **both)
    before = calls(model)
    assert_close(sample(fast, steps=3, **both), expected)
    assert_fused(model, before)


def scenario_residuals_that_are_missing_in_places() -> None:
    """Lists with None in them, as some control models return: other structures are other signatures."""

    class Fixed(comfy.controlnet.ControlBase):  # type: ignore[misc, name-defined]
        def __init__(self, mask: int) -> None:
            super().__init__()
            self.mask = mask

        def get_control(self, x_noisy: torch.Tensor, *args: Any) -> dict[str, list[torch.Tensor | None]]:
            shape = (x_noisy.shape[0], 320, *x_noisy.shape[2:])
            residual = tiny.noise(shape, 5, 0.5)
            return {
                "output": [residual if self.mask & 1 else None, residual * 0.5 if self.mask & 2 else None],
                "middle": [],
                "input": [],
            }

        def get_models(self) -> list[Any]:
            return []

        def copy(self) -> Any:
            return self

    model = load("sd15")
    fast = fast_compile.apply(model)
    for mask in (1, 2, 3, 0, 1):
        both = {"positive": prompt(model, 1, control=Fixed(mask)), "negative": prompt(model, 2, control=Fixed(mask))}
        sample(fast, **both)
        got = sample(fast, **both)
        assert_close(got, sample(model.clone(), **both))
