"""What hosts do to weights, done to models of which all, or every other weight, is away: what a graph would copy from
an address, it copies here.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from sfast_core import CompileConfig, compile
from sfast_core.graphed import GraphedProgram
from sfast_core.weights import Arriving
from tests.capturing import pretend_graphs
from tests.planting import planted
from tests.runtime.test_planted_faults import CHANGES, Change, Net, at_its_address
from tests.streaming import PretendOffload


@pytest.fixture(autouse=True)
def _replays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    pretend_graphs(monkeypatch)
    weights = GraphedProgram._weights

    def by_address(self: GraphedProgram) -> list[Any]:
        return [
            dataclasses.replace(each, sources=tuple(map(at_its_address, each.sources)))
            if isinstance(each, Arriving)
            else at_its_address(each)
            for each in weights(self)
        ]

    monkeypatch.setattr(GraphedProgram, "_weights", by_address)
    with torch.no_grad():
        yield


def check(change: Change, names: tuple[str, ...]) -> None:
    """As ``test_planted_faults`` does."""
    torch.manual_seed(0)
    net = Net().eval().requires_grad_(False)
    twin = copy.deepcopy(net)
    handle = compile(net, CompileConfig(allow_cpu=True, stream_budget_bytes=0))
    handle.engine.store._offload = PretendOffload(*names)  # type: ignore[attr-defined]
    for step in range(7):
        if step == 3:
            assert handle.engine.report.calls["replayed"] == 2, handle.report().text()
            assert handle.engine.report.signatures[0].streamed_bytes
            change(net), change(twin)
        if step == 5:
            settled = sum(signature.captures for signature in handle.engine.report.signatures)
        x = torch.randn(2, 8)
        torch.testing.assert_close(handle(x), twin(x))
    assert sum(signature.captures for signature in handle.engine.report.signatures) == settled, (
        "it is captured again at each call"
    )


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("names", [("",), ("q", "conv", "one", "table")], ids=["all", "some"])
def test_a_change_is_noticed(name: str, names: tuple[str, ...]) -> None:
    check(CHANGES[name], names)


#: What may be left out of the checks, see ``test_planted_faults``.
FAULTS: dict[str, tuple[Any, str, str, str]] = {
    "where weights are copied from isn't asked": (
        GraphedProgram,
        "_still_good",
        "if self._bound.valid() and self._streams.readable() and self._streams.same():",
        "if True:",
    ),
    "sources are told apart by nothing": (Arriving, "data_ptr", "return tuple(", "return 0 and tuple("),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_noticed(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    owner, name, old, new = FAULTS[fault]
    monkeypatch.setattr(owner, name, planted(owner, name, old, new))
    noticed = []
    for change_name, change in CHANGES.items():
        try:
            check(change, ("",))
        except Exception:
            noticed.append(change_name)
    assert noticed, "no test fails without this check"
