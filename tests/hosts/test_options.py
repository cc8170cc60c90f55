"""A step's options, whatever another node has put there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sfast_core.capture import CaptureError
from sfast_core.hosts.options import PROMPTS, live_steering, steering

X = torch.zeros(2, 3)


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
    """An attention couple repeats the batch for one prompt and not for the other: each has a trace of its own then. The functions get the option itself."""

    def call(prompts: list[int], apart: frozenset[str]) -> Any:
        options = {"patches": {"attn2_patch": [lambda q, k, v, options: (q, k, v)]}, "cond_or_uncond": prompts}
        return live_steering((X,), {"transformer_options": options}, torch.nn.Linear(1, 1), lambda name: False, lambda *args: None, apart)

    together, one, other = call([0], frozenset()), call([0], PROMPTS), call([1], PROMPTS)
    assert together.kwargs == call([1], frozenset()).kwargs and one.kwargs != other.kwargs == call([1], PROMPTS).kwargs
    assert {type(each.travelling()["cond_or_uncond"]).__name__ for each in (together, one)} == {"Unread"}
