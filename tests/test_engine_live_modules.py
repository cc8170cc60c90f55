"""Modules of a model's own that run live: those in which something happens that no record can hold, and those that
others have changed.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.live import Host, fused_and_captured, path

host = fused_and_captured()


class Reading(torch.nn.Module):
    """A layer that reads a value, so that no record can hold it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.mean().item() > 0 else x * 3


class Drawing(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn_like(x)


class Counting(torch.nn.Module):
    """A layer with a state of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.scale = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return self.scale(x) * self.count


class Choosing(torch.nn.Module):
    """Experts by index."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        which = x.flatten(0, -2).sum(-1).abs().mul(10).long() % 3
        rows, out = x.flatten(0, -2), torch.zeros_like(x).flatten(0, -2)
        for index, expert in enumerate(self.experts):
            chosen = (which == index).nonzero().flatten()
            out[chosen] = expert(rows[chosen])
        return out.view_as(x)


class Around(torch.nn.Module):
    """One of them between layers that can be recorded."""

    def __init__(self, kind: type[torch.nn.Module]) -> None:
        super().__init__()
        self.first, self.middle = torch.nn.Linear(8, 8), torch.nn.Sequential(torch.nn.LayerNorm(8), kind(), kind())
        self.last = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        return self.last(self.middle(torch.nn.functional.silu(self.first(x))))


@pytest.mark.parametrize("kind", [Reading, Drawing, Counting, Choosing])
def test_a_layer_that_no_record_can_hold_costs_itself_alone(host: Host, kind: type[torch.nn.Module]) -> None:
    import copy

    net = Around(kind)
    mine, twin = Host(net), copy.deepcopy(net)
    for _ in range(9):
        x = torch.randn(2, 5, 8)
        state = torch.get_rng_state()
        result = mine(x)
        torch.set_rng_state(state)
        with torch.inference_mode():
            torch.testing.assert_close(result, twin(x, {}), rtol=1e-4, atol=1e-5)
    assert mine.calls.get("fused", 0) + mine.calls.get("replayed", 0) >= 3, mine.engine.report.text()
    (signature,) = mine.engine.report.signatures
    assert len(signature.live) == 2 and signature.segments == 2 and kind.__name__ in signature.live[0]


def test_a_layer_with_hooks_runs_with_them(host: Host) -> None:
    seen: list[torch.Tensor] = []
    host.net.blocks[1].register_forward_hook(lambda module, args, result: (seen.append(result), result * 2)[1])
    host.check(dict, 8)
    assert host.calls[path(host)] >= 3 and len(seen) == 16, host.engine.report.text()


class Convolving(torch.nn.Module):
    """Convolutions, whose weights lie otherwise while a program runs, on both sides of what runs live."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.Conv2d(4, 3, 3, padding=1)

    def forward(self, x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        x = self.first(x)
        for function in options.get("between", []):
            x = function(x)
        return self.last(x)


def test_live_code_may_run_the_module_as_it_was(host: Host) -> None:
    """Its weights lie plain then: behind it they lie again as the program reads them."""
    mine = Host(Convolving())

    def function(x: torch.Tensor) -> torch.Tensor:
        with mine.engine.store.plain():
            return x + mine.eager(x[:, :3], between=[]).mean()

    for _ in range(5):
        x = torch.randn(1, 3, 8, 8)
        torch.testing.assert_close(mine(x, between=[function]), mine.eager(x, between=[function]), rtol=1e-4, atol=1e-5)
    assert not mine.calls.get("eager")


class Iterating(torch.nn.Module):
    """A layer that goes on with an iterator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = iter(range(1, 100))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * next(self.steps)


def test_a_layer_whose_state_cant_be_compared_runs_live(host: Host) -> None:
    mine, twin = Host(Around(Iterating)), Around(Iterating)
    twin.load_state_dict(mine.net.state_dict())
    for _ in range(6):
        x = torch.randn(2, 5, 8)
        with torch.inference_mode():
            torch.testing.assert_close(mine(x), twin(x, {}), rtol=1e-4, atol=1e-5)
    assert sum(mine.calls.get(way, 0) for way in ("fused", "replayed")) >= 3, mine.engine.report.text()


def test_only_the_layer_that_was_changed_runs_live(host: Host) -> None:
    """As a node puts a forward into one layer's place: others of its class are recorded."""
    layer = host.net.blocks[1].up
    own = layer.forward
    layer.forward = lambda x: own(x) * (1 if x.mean().item() > 0 else 2)
    host.check(dict, 6)
    (signature,) = host.engine.report.signatures
    assert [name.split(" ")[1] for name in signature.live] == ["blocks.1.up"] and host.calls[path(host)] >= 3


def test_layers_whose_forwards_one_node_has_replaced_run_live_together(host: Host) -> None:
    """As a guidance does that shuffles the tokens of many blocks: what one of them does the others do, and each would
    cost a call.
    """

    def shuffling(layer: torch.nn.Module) -> Any:
        own = layer.forward

        def forward(x: torch.Tensor) -> torch.Tensor:
            return own(x[:, torch.randperm(x.shape[1])])

        return forward

    for block in host.net.blocks:
        block.up.forward = shuffling(block.up)
    host.check(dict, 6)
    assert len(host.engine.report.signatures[-1].live) == 3 and host.calls == {
        "eager": 1,
        "traced": 1,
        path(host): 4,
    }, host.engine.report.text()


class Bank:
    """What a node keeps for its blocks."""

    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []


def test_options_with_objects_that_only_a_replaced_forward_reads(host: Host) -> None:
    """As a reference ControlNet's blocks do: they write to its banks in one call, and read these in the next."""

    def banking(block: Any) -> Any:
        def forward(x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
            for bank in options.get("bank" + "s", []):
                bank.kept.append(x.mean())
                x = x + sum(bank.kept[-3:])
            return type(block).forward(block, x, options)

        return forward

    for block in host.net.blocks:
        block.forward = banking(block)
    host.check(lambda: {"banks": [Bank()]}, 6)
    assert host.calls == {"eager": 1, "traced": 1, path(host): 4}, host.engine.report.text()
    assert len(host.engine.report.signatures[-1].live) == 3
