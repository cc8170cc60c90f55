"""Tensors from elsewhere, operators of others and errors, while a call is recorded."""

from __future__ import annotations

import copy
import functools
import random
import runpy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from sfast_core.capture import CaptureError, Trace, Untraceable
from tests.capture.test_recorder import KEPT, Function, module
from tests.tracing import evaluate, guarded, try_record


def test_a_deep_copy_is_one_of_this_calls_tensor() -> None:
    """Not of one that had the same id."""
    _, found = try_record(module(lambda net, x: copy.deepcopy(net.lin(x))), torch.randn(4, 8))
    assert isinstance(found, Trace)
    assert [node.target for node in found.graph.nodes if node.op == "call_method"] == ["clone"]


class Slot:
    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def _more(tensor: torch.Tensor) -> torch.Tensor:
    other = torch.zeros(1)
    other.more = tensor  # type: ignore[attr-defined]
    return other


def _closing(tensor: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x + tensor


#: name: what keeps a tensor, how the forward reads it there, and how another is put in its place
PLACES: dict[str, tuple[Callable[[torch.Tensor], Any], Function, Callable[[Any, torch.Tensor], object]]] = {
    "a file's name": (
        lambda tensor: KEPT.update({"here": tensor}),
        lambda net, x: x + KEPT["here"],
        lambda net, other: KEPT.update({"here": other}),
    ),
    "a list": (
        lambda tensor: [tensor],
        lambda net, x: x + net.kept[0],
        lambda net, other: net.kept.__setitem__(0, other),
    ),
    "a list that is walked": (
        lambda tensor: [tensor],
        lambda net, x: sum(net.kept, x),
        lambda net, other: net.kept.__setitem__(0, other),
    ),
    "a list in a dict": (
        lambda tensor: {"a": [tensor]},
        lambda net, x: x + net.kept["a"][0],
        lambda net, other: net.kept.update(a=[other]),
    ),
    "an object": (
        lambda tensor: SimpleNamespace(t=tensor),
        lambda net, x: x + net.kept.t,
        lambda net, other: setattr(net.kept, "t", other),
    ),
    "a tensor": (_more, lambda net, x: x + net.kept.more, lambda net, other: setattr(net.kept, "more", other)),
    "a slot": (Slot, lambda net, x: x + net.kept.tensor, lambda net, other: setattr(net.kept, "tensor", other)),
    "a closure": (
        _closing,
        lambda net, x: net.kept(x),
        lambda net, other: setattr(net.kept.__closure__[0], "cell_contents", other),
    ),
    "another closure": (_closing, lambda net, x: net.kept(x), lambda net, other: setattr(net, "kept", _closing(other))),
    "a partial": (
        lambda tensor: functools.partial(torch.add, tensor),
        lambda net, x: net.kept(x),
        lambda net, other: setattr(net, "kept", functools.partial(torch.add, other)),
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_tensor_from_elsewhere_is_bound_where_it_was_found(place: str) -> None:
    """What is written to it is read, and another one in its place is a change."""
    keeping, reading, put = PLACES[place]
    tensor, x = torch.randn(4, 8), torch.randn(4, 8)
    net = module(reading)
    net.kept = keeping(tensor)
    result, found, guard = guarded(net, x)
    assert isinstance(found, Trace), found.reason
    torch.testing.assert_close(result, x + tensor)
    tensor.mul_(3)
    torch.testing.assert_close(evaluate(found.graph, [x])[0], net(x))
    assert guard.changed(net) is None
    put(net, tensor.clone())
    assert guard.changed(net) is not None


def test_an_operator_that_writes_to_its_arguments_is_refused() -> None:
    library = torch.library.Library("fast_compile_test", "DEF")
    library.define("double_it(Tensor(a!) x) -> Tensor(a!)")
    library.impl("double_it", lambda x: x.mul_(2), "CPU")

    def function(net: Any, x: torch.Tensor) -> torch.Tensor:
        y = net.lin(x)
        torch.ops.fast_compile_test.double_it(y)
        return y

    _, found = try_record(module(function), torch.randn(4, 8))
    assert isinstance(found, Untraceable) and "changes its arguments" in found.reason


@pytest.mark.parametrize("installed", [True, False])
def test_an_operators_own_code_steers_unless_it_is_a_librarys(tmp_path: Path, installed: bool) -> None:
    """A library's operator looks its kernel up in caches that it fills: that is its business.

    A user's may read what its file has.
    """
    path = tmp_path / ("site-packages" if installed else "custom_nodes") / "operators.py"
    path.parent.mkdir()
    path.write_text(
        "CACHE, SCALE = {}, 2.0\ndef scaled(x):\n    CACHE[len(CACHE)] = CACHE.get(0, 1)\n    return x * SCALE\n"
    )
    names = runpy.run_path(str(path))
    library = torch.library.Library(f"fast_compile_test_{installed}", "DEF")
    library.define("scaled(Tensor x) -> Tensor")
    library.impl("scaled", names["scaled"], "CPU")
    operator = getattr(torch.ops, f"fast_compile_test_{installed}").scaled
    _, found = try_record(module(lambda net, x: operator(net.lin(x))), torch.randn(4, 8))
    assert isinstance(found, Trace) == installed
    assert installed or "CACHE" in found.reason


def test_errors_of_torch_functions_are_told_apart_from_the_modules_own() -> None:
    def own(net: Any, x: torch.Tensor) -> torch.Tensor:
        raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        try_record(module(own), torch.randn(4, 8))
    with pytest.raises(CaptureError, match="failed while it was recorded: RuntimeError") as caught:
        try_record(module(lambda net, x: x @ x), torch.randn(4, 8))
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize("draw", [random.random, np.random.rand], ids=["Python's", "NumPy's"])
def test_others_random_numbers_are_no_constants(draw: Callable[[], float]) -> None:
    """Another thread may have drawn NumPy's: so it isn't said for good. Of Python's it is known."""
    _, found = try_record(module(lambda net, x: net.lin(x) * float(draw())), torch.randn(4, 8))
    assert isinstance(found, Untraceable)
    if draw is random.random:
        assert found.reason == "it draws random numbers" and not found.passing
    else:
        assert "random numbers were drawn" in found.reason and found.passing
