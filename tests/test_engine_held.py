"""Who holds a module's weights: what is captured reads them by their addresses, and keeps none. Who changes weights in
place asks whether others hold them, and a model that goes has to give its memory back at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from sfast_core.runtime.graphs import DeviceGraphs
from sfast_core.weights.memory import holders, nobody_else
from tests.capturing import pretend_graphs
from tests.fakes import FakeBackend, FakeReplay
from tests.live import Host


class _Forgetful(FakeBackend):
    """As a GPU's: a graph knows addresses, and not what it was made from."""

    def capture(
        self, run: Callable[[], None], alone: bool = False, warm_up: Callable[[], object] | None = None, room: int = 0
    ) -> FakeReplay:
        super().capture(run, alone, warm_up, room)
        return FakeReplay(lambda: None, self)


def _through_a_block(args: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    return {"x": extra["original_block"](args)["x"] * 1.1}


OPTIONS: dict[str, dict[str, Any]] = {
    "nothing live": {},
    "between blocks": {"between": [lambda x, skip, options: (x * 1.1, skip)]},
    "around a block": {"replace": {1: _through_a_block}},
}


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> DeviceGraphs:
    """Captures that keep nothing of what they ran."""
    found = pretend_graphs(monkeypatch)
    found.backend = _Forgetful()
    return found


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_graphs_hold_no_weights(graphs: DeviceGraphs, options: dict[str, Any]) -> None:
    host = Host()
    tables = [(module._parameters, name) for module in host.net.modules() for name in module._parameters]
    for _ in range(3):
        host(torch.randn(2, 5, 8), **options)
        assert {holders(*place) for place in tables} == {nobody_else()}
    assert host.calls["replayed"] == 2 and graphs.captures == 1


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_weights_that_were_replaced_go_with_the_next_call(graphs: DeviceGraphs, options: dict[str, Any]) -> None:
    host = Host()
    for _ in range(2):
        host(torch.randn(2, 5, 8), **options)
    layer = host.net.blocks[1].up  # type: ignore[index, union-attr]
    before = layer.weight.untyped_storage()._weak_ref()  # type: ignore[operator, union-attr]
    try:
        layer.weight = torch.nn.Parameter(layer.weight.detach() * 2, requires_grad=False)  # type: ignore[union-attr]
        host(torch.randn(2, 5, 8), **options)
        assert torch.UntypedStorage._expired(before)
    finally:
        torch.UntypedStorage._free_weak_ref(before)
    assert graphs.captures == 2
