"""A step's options, whatever another node has put there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sfast_core.capture import CaptureError
from sfast_core.hosts.hook import HookedCall
from sfast_core.hosts.options import PROMPTS, Steering, live_steering

X = torch.zeros(2, 3)


def steering(args: tuple[Any, ...], kwargs: dict[str, Any], *mentioned: str) -> Steering:
    """Of a call of a model that looks for these options, or for any."""
    call = HookedCall(torch.nn.Identity(), lambda *args, **kwargs: X, None, args, kwargs)
    return live_steering(call, lambda name: not mentioned or name in mentioned)


def test_options_that_hold_themselves_are_refused_by_name() -> None:
    options: dict[str, Any] = {"sigmas": X, "block": ("input", 1)}
    options["own"] = [options]
    for args, kwargs in (((X, options), {}), ((X,), {"transformer_options": options})):
        with pytest.raises(CaptureError, match=r"an argument\['own'\]\[0\]\['own'\].* holds itself"):
            steering(args, kwargs)


def test_arguments_that_hold_themselves_are_refused_where_there_are_no_options() -> None:
    control: list[Any] = [X]
    control.append(control)
    with pytest.raises(CaptureError, match="holds itself"):
        steering((X,), {"control": control})


def test_what_only_travels_along_may_be_anything() -> None:
    patches: dict[str, Any] = {"patches": {}, "sigmas": X}
    loop: list[Any] = []
    loop.append(loop)
    call = steering((X,), {"transformer_options": {**patches, "callbacks": loop}})
    assert call.kwargs == {"transformer_options": {}} and set(call.travelling()) == {"patches", "sigmas", "callbacks"}


def test_calls_for_other_prompts_are_kept_apart_where_functions_go_by_them() -> None:
    """An attention couple repeats the batch for one prompt and not for the other: each has a trace of its own then.

    The functions get the option itself.
    """

    def call(prompts: list[int], apart: frozenset[str]) -> Any:
        options = {"patches": {"attn2_patch": [lambda q, k, v, options: (q, k, v)]}, "cond_or_uncond": prompts}
        call = HookedCall(torch.nn.Linear(1, 1), lambda *args: None, None, (X,), {"transformer_options": options})
        return live_steering(call, lambda name: False, apart)

    together, one, other = call([0], frozenset()), call([0], PROMPTS), call([1], PROMPTS)
    assert together.kwargs == call([1], frozenset()).kwargs and one.kwargs != other.kwargs == call([1], PROMPTS).kwargs
    assert {type(each.travelling()["cond_or_uncond"]).__name__ for each in (together, one)} == {"Unread"}


def test_which_prompts_a_call_is_for_steers_a_model_that_asks() -> None:
    """SeedVR2 does, Trellis 2 and T-GATE's attention: they get the list itself, and calls for others are others."""
    calls = [
        steering((X,), {"transformer_options": {"cond_or_uncond": prompts, "sigmas": X}}, "cond_or_uncond", "sigmas")
        for prompts in ([0], [1], [1, 0])
    ]
    assert [call.kwargs["transformer_options"] for call in calls] == [
        {"cond_or_uncond": [0]},
        {"cond_or_uncond": [1]},
        {"cond_or_uncond": [1, 0]},
    ]
    assert all(set(call.travelling()) == {"sigmas"} for call in calls)


def test_functions_in_a_container_are_others() -> None:
    """Where the model may look for them; what it never looks up counts for nothing."""
    options = {
        "sigmas": X,
        "block_modifiers": [lambda h, when, options: h],
        "of_the_controlnet": [lambda x: x],
        "block": ("input", 1),
    }
    call = steering((X,), {"transformer_options": options}, "block_modifiers", "block")
    assert call.kwargs == {"transformer_options": {"block_modifiers": "['a function']", "block": ("input", 1)}}
    travelling = call.travelling()
    assert (
        type(travelling["block_modifiers"][0]).__name__ == "Foreign"
        and type(travelling["of_the_controlnet"]).__name__ == "Unread"
    )
    assert call.around is not None and call.around.key == frozenset(options)
