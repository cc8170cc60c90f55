"""Live code that calls a function of the model's own as it didn't when it was recorded: it runs once for each call all
the same.
"""

# ruff: noqa: B023 - models bind no variable of their loops either
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.live import Host, Net, fused_and_captured

host = fused_and_captured()
Way = Callable[[dict[str, Any], Callable[..., Any]], Any]
CALLS = 12


def _longer(args: dict[str, Any], own: Callable[..., Any]) -> Any:
    x = args["x"]
    return {"x": own({**args, "x": torch.cat([x, x], 1)})["x"][:, : x.shape[1]]}


def _halved(args: dict[str, Any], own: Callable[..., Any]) -> Any:
    return {"x": own({**args, "x": args["x"][:1]})["x"].expand(2, -1, -1)}


def _with_more(args: dict[str, Any], own: Callable[..., Any]) -> Any:
    return own({**args, "more": 1})


def _by_name(args: dict[str, Any], own: Callable[..., Any]) -> Any:
    return own(args=args)


def _twice(args: dict[str, Any], own: Callable[..., Any]) -> Any:
    return own({**own(args), "options": args["options"], "again": True})


def _transposed(args: dict[str, Any], own: Callable[..., Any]) -> Any:
    return own({**args, "x": args["x"].transpose(0, 1).contiguous().transpose(0, 1)})


def _written(args: dict[str, Any], own: Callable[..., Any]) -> Any:
    args["x"].mul_(0.5)
    return own({**args, "more": 1})


def _caught(args: dict[str, Any], own: Callable[..., Any]) -> Any:
    try:
        return own({"x": args["x"]})
    except KeyError:
        return args


WAYS: list[Way] = [_longer, _halved, _with_more, _by_name, _twice, _transposed, _written, _caught]


def around(way: Way, period: int = 4, inside: bool = False) -> tuple[Callable[[], dict[str, Any]], list[list[int]]]:
    """Options with a function that goes another way once in a while, and how often each of those made ran."""
    counts: list[list[int]] = []

    def make() -> dict[str, Any]:
        calls = [0, 0]
        counts.append(calls)

        def replace(args: dict[str, Any], extra: dict[str, Any]) -> Any:
            calls[0] += 1
            own = extra["original_block"]
            out = way(args, own) if calls[0] % period == 3 else own(args)
            return {"x": out["x"] * (1 + 0.01 * calls[0])}

        def within(x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
            calls[1] += 1
            return x * (1 + 0.01 * calls[1])

        return {"replace": {1: replace}} | ({"inside": [within]} if inside else {})

    return make, counts


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_function_of_the_models_is_called_in_another_way(host: Host, way: Way, inside: bool) -> None:
    make, counts = around(way, inside=inside)
    host.check(make, CALLS)
    assert counts[0] == counts[1] and counts[0][0] == CALLS
    assert host.calls["traced"] <= 4 and host.calls.get("eager", 0) < CALLS / 2


class Closing(Net):
    """Its functions close over what is another at each turn of its loop, and over what it has computed."""

    def forward(self, x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        mean = x.mean(1, keepdim=True)
        for i in range(len(self.blocks)):
            more = {"by": i + 1} if i == 1 else {}

            def shifted(y: torch.Tensor, by: int = i) -> torch.Tensor:
                return y + mean * by

            def wrap(args: dict[str, Any], *, sign: int = 1) -> dict[str, Any]:
                return {"x": sign * shifted(self.blocks[i](args["x"], args["options"]), **more) - mean}

            replace = options.get("replace", {}).get(i)
            args = {"x": x, "options": options}
            own = {"original_block": wrap, "module": self.blocks[i].forward}
            x = replace(args, own)["x"] if replace else wrap(args)["x"]
            mean = mean + x.mean(1, keepdim=True)
        return self.out(x)


def _negated(args: dict[str, Any], extra: dict[str, Any]) -> Any:
    return extra["original_block"](args, sign=-1)


def _longer_ahead(args: dict[str, Any], extra: dict[str, Any]) -> Any:
    return extra["original_block"]({**args, "x": torch.cat([args["x"], args["x"]], 1)})


def _module_itself(args: dict[str, Any], extra: dict[str, Any]) -> Any:
    return {"x": extra["module"](x=args["x"], options=args["options"])}


@pytest.mark.parametrize("way", [_negated, _longer_ahead, _module_itself])
@pytest.mark.parametrize("often", [3, 5])
def test_what_such_a_function_closes_over_is_this_calls(way: Any, often: int) -> None:
    host = Host(Closing())
    counts = []

    def make() -> dict[str, Any]:
        calls = [0]
        counts.append(calls)

        def replace(args: dict[str, Any], extra: dict[str, Any]) -> Any:
            calls[0] += 1
            out = way(args, extra) if calls[0] % often == 0 else extra["original_block"](args)
            return {"x": out["x"][:, : args["x"].shape[1]] * (1 + 0.01 * calls[0])}

        return {"replace": {1: replace}}

    host.check(make, CALLS)
    assert counts == [[CALLS], [CALLS]]
    assert host.calls["fused"] and host.calls["traced"] <= 4


def test_a_function_that_was_never_called_when_recorded_is_called_later() -> None:
    host, counts = Host(Closing()), []

    def make() -> dict[str, Any]:
        calls = [0]
        counts.append(calls)

        def replace(args: dict[str, Any], extra: dict[str, Any]) -> Any:
            calls[0] += 1
            out = extra["original_block"](args)["x"] if calls[0] > 6 and calls[0] % 2 else args["x"]
            return {"x": out * (1 + 0.01 * calls[0])}

        return {"replace": {1: replace}}

    host.check(make, CALLS)
    assert counts == [[CALLS], [CALLS]] and host.calls["traced"]


class Listing(Net):
    """Its functions close over a list, which they could change."""

    def forward(self, x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        factors = [1.0, 2.0]
        for block in self.blocks:

            def wrap(args: dict[str, Any], which: int = 0, block: Any = block) -> dict[str, Any]:
                return {"x": block(args["x"], args["options"]) * factors[which]}

            x = options["replace"]({"x": x, "options": options}, wrap)["x"]
        return self.out(x)


def test_code_that_keeps_a_state_leaves_no_trace_where_it_would_run_twice() -> None:
    host, counts = Host(Listing()), []

    def make() -> dict[str, Any]:
        calls = [0]
        counts.append(calls)

        def replace(args: dict[str, Any], own: Callable[..., Any]) -> Any:
            calls[0] += 1
            return {"x": own(args, calls[0] % 5 == 0)["x"] * (1 + 0.01 * calls[0])}

        return {"replace": replace}

    host.check(make, 5)
    assert counts == [[15], [15]]


class Handing(Net):
    """Its functions close over a dict that other code is handed before and behind them, and that it changes between."""

    def forward(self, x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        box = {"first": 1.0}
        x = options["reads"](x, box)
        box["second"] = 2.0

        def wrap(args: dict[str, Any]) -> dict[str, Any]:
            return {"x": self.blocks[0](args["x"], {}) * box["second"]}

        x = options["replace"]({"x": x}, wrap)["x"]
        return self.out(options["reads"](x, box))


def test_a_dict_that_such_a_function_closes_over_is_handed_on_whole() -> None:
    host = Host(Handing())

    def make() -> dict[str, Any]:
        def reads(x: torch.Tensor, box: dict[str, float]) -> torch.Tensor:
            return x * sum(box.values()) * float(x.shape[0] + (x.sum().item() > 1e9))

        def replace(args: dict[str, Any], own: Callable[..., Any]) -> Any:
            return {"x": own(args)["x"] + float(args["x"].sum().item() > 1e9)}

        return {"reads": reads, "replace": replace}

    host.check(make, 5)
    assert host.calls["fused"] >= 3
