"""A step's options, whatever another node has put there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sfast_core.capture import CaptureError
from sfast_core.hosts.options import steering

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
