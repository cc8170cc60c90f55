"""Weights in whose places others come: what the class of a quantised one puts on it isn't somebody's mark."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sfast_core.capture.guards.unmarked import Unmarked
from tests.quantised import Quantised

READ = frozenset({"_data", "_params", "_scale", "mark"})


def quantised() -> Any:
    return Quantised.of(torch.randn(4, 4))


@pytest.mark.parametrize("make", [quantised, lambda: nn.Parameter(torch.randn(4, 4))], ids=["quantised", "plain"])
def test_another_weight_is_no_change_and_a_mark_on_it_is(make: Any) -> None:
    table = {"weight": make(), "bias": None}
    unmarked = Unmarked([table], READ)
    assert not unmarked.weights_changed()
    table["weight"] = make()
    assert not unmarked.weights_changed()
    table["weight"] = make()
    table["weight"].mark = 2.0
    assert unmarked.weights_changed()


def test_one_of_another_class_has_marks_of_its_own() -> None:
    table: dict[str, Any] = {"weight": nn.Parameter(torch.randn(4, 4))}
    unmarked = Unmarked([table], READ)
    table["weight"] = quantised()
    assert unmarked.weights_changed()
