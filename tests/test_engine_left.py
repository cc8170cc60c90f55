"""What functions that run live put into the model's own dicts and lists, or take out of them, for what comes behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.taken_in import Host, Net

Put = Callable[[dict[str, Any], float], None]


def _tensor(options: dict[str, Any], sigma: float) -> None:
    options["left"] = torch.full((1, 1, 8), sigma)


def _number(options: dict[str, Any], sigma: float) -> None:
    options["left"] = sigma


def _within(options: dict[str, Any], sigma: float) -> None:
    options.setdefault("table", {})["left"] = torch.full((1,), sigma)


def _in_a_dict_of_the_models(options: dict[str, Any], sigma: float) -> None:
    options["own"]["left"] = torch.full((1,), sigma)


def _in_a_list_of_the_models(options: dict[str, Any], sigma: float) -> None:
    options["list"].append(sigma)


def _at_some_steps(options: dict[str, Any], sigma: float) -> None:
    options.pop("left", None)
    if sigma % 2:
        options["left"] = sigma


def _nothing_at_some_steps(options: dict[str, Any], sigma: float) -> None:
    options["left"] = None if sigma % 2 else sigma


def _taken_out_at_some_steps(options: dict[str, Any], sigma: float) -> None:
    if sigma % 2:
        options.pop("mark", None)


def _in_the_place_of_another(options: dict[str, Any], sigma: float) -> None:
    options["mark"] = sigma


def _found(options: dict[str, Any]) -> Any:
    found = options.get("left", options.get("table", {}).get("left"))
    return options["own"].get("left") if found is None else found


def _of_all(options: dict[str, Any]) -> Any:
    return sum(options["list"]) + (options["mark"] if "mark" in options else 5.0)


class _Own(Net):
    """Makes a dict and a list for the functions, and scales by what it finds in its options afterwards.

    Args:
        find: in them.
    """

    def __init__(self, find: Callable[[dict[str, Any]], Any] = lambda options: None) -> None:
        super().__init__()
        self.find = find

    def forward(self, x: torch.Tensor, transformer_options: dict[str, Any]) -> torch.Tensor:
        options: dict[str, Any] = {**transformer_options, "own": {}, "list": [1.0], "mark": 3.0}
        for index, block in enumerate(self.blocks):
            options["block"] = index
            x = block(x, options)
        scale = self.find(options)
        return x if scale is None else x * scale


class _Scaled:
    """A function that is recorded with the model, by what is in the options."""

    def __init__(self, find: Callable[[dict[str, Any]], Any]) -> None:
        self.find = find

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> Any:
        scale = self.find(options)
        return (q if scale is None else q * scale), k, v


def _puts(put: Put) -> Any:
    """Runs live: it reads a value."""
    return lambda q, k, v, options: (put(options, options["sigmas"][0].item()), (q, k, v))[1]


def _equal(options: dict[str, Any]) -> Any:
    return 2.0 if options.get("left") == 20.0 else 3.0


def _as_a_key(options: dict[str, Any]) -> Any:
    return {20.0: 2.0, 19.0: 4.0}.get(options.get("left"), 3.0)


PUT = [
    _tensor,
    _number,
    _within,
    _in_a_dict_of_the_models,
    _in_a_list_of_the_models,
    _at_some_steps,
    _nothing_at_some_steps,
    _taken_out_at_some_steps,
    _in_the_place_of_another,
]


@pytest.mark.parametrize("put", PUT)
@pytest.mark.parametrize("find", [_found, _of_all])
def test_what_is_recorded_finds_it(put: Put, find: Callable[[dict[str, Any]], Any]) -> None:
    """Functions that are recorded with the model's code find what live code has put there in this very call."""
    host = Host(_Own)

    def make() -> Callable[[int], dict[str, Any]]:
        options = {"patches": {"attn": [_puts(put), _Scaled(find)]}}
        return lambda step: options

    host.check(make, 8)
    host.check(make, 4, tokens=6)


@pytest.mark.parametrize("put", PUT)
def test_the_models_own_code_finds_it(put: Put) -> None:
    """So does the model's own code."""
    host = Host(lambda: _Own(_of_all))
    options = {"patches": {"attn": [_puts(put)]}}
    host.check(lambda: lambda step: options, 8)


@pytest.mark.parametrize("find", [_equal, _as_a_key])
def test_it_is_compared(find: Callable[[dict[str, Any]], Any]) -> None:
    """And looked up by."""
    host = Host(_Own)
    options = {"patches": {"attn": [_puts(_number), _Scaled(find)]}}
    host.check(lambda: lambda step: options, 6)


def test_what_only_live_code_reads_costs_nothing() -> None:
    """It stays where it is until the next one finds it: one trace, and every call of it used."""
    host = Host(_Own)
    read = _puts(lambda options, sigma: options.__setitem__("sum", options["left"] + sigma))

    def scaled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> Any:
        return q * options["sum"] * options["sigmas"][0].item(), k, v

    options = {"patches": {"attn": [_puts(_number), read, scaled]}}
    found = host.check(lambda: lambda step: options, 8)
    assert found["traced"] == 1 and found.get("eager", 0) <= 3 and host.last[1] == 6, (found, host.engine.report.text())


class _Pair:
    """As ComfyUI's LLLite: computes something from the options, and leaves it under itself for a function behind it."""

    def __init__(self, strength: float) -> None:
        self.strength = strength

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> Any:
        options["own"][self] = torch.full((1,), options["sigmas"][0].item() * self.strength)
        return q, k, v

    def second(self) -> Callable[..., Any]:
        def scaled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> Any:
            return q * options["own"][self], k, v

        return scaled


def test_what_is_left_under_a_function() -> None:
    """Another one in its place, as a new queue brings it, is no new trace."""
    host = Host(_Own)

    def options(strength: float) -> dict[str, Any]:
        first = _Pair(strength)
        return {"patches": {"attn": [first, first.second()]}}

    for strength in (1.0, 0.5, 2.0):
        made = options(strength)
        found = host.check(lambda made=made: lambda step: made, 5)  # type: ignore[misc]
    assert found == {"fused": 5}, host.engine.report.text()


def _in_a_dict_of_the_callers(options: dict[str, Any], sigma: float) -> None:
    options["mine"]["left"] = torch.full((1,), sigma)


def _a_number_in_a_dict_of_the_callers(options: dict[str, Any], sigma: float) -> None:
    options["mine"]["left"] = sigma


def _in_a_list_of_the_callers(options: dict[str, Any], sigma: float) -> None:
    options["mine"]["list"].append(sigma)


def _of_the_callers(options: dict[str, Any]) -> Any:
    return options["mine"].get("left", 1.0) + sum(options["mine"]["list"])


@pytest.mark.parametrize(
    "put", [_in_a_dict_of_the_callers, _a_number_in_a_dict_of_the_callers, _in_a_list_of_the_callers]
)
@pytest.mark.parametrize("by_model", [False, True])
def test_what_is_left_in_the_callers_own(put: Put, by_model: bool) -> None:
    """In a dict that comes with the call's options."""
    host = Host((lambda: _Own(_of_the_callers)) if by_model else _Own)

    def make() -> Callable[[int], dict[str, Any]]:
        patches = [_puts(put)] if by_model else [_puts(put), _Scaled(_of_the_callers)]
        return lambda step: {"patches": {"attn": patches}, "mine": {"list": [1.0]}}

    host.check(make, 8)
