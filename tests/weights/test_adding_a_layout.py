"""What docs/adding-a-layout.md says is run: the layout, its line, the pass that asks for it, and its cases."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core.rewrite.graph import calls_of, is_free_weight, value
from sfast_core.rewrite.pipeline import PASSES, Pass
from sfast_core.runtime.store import WeightStore
from sfast_core.weights import LAYOUTS, Weight
from tests.models import Forward
from tests.tracing import CPU, trace
from tests.weights import test_layouts

PAGE = Path(__file__).resolve().parents[2] / "docs" / "adding-a-layout.md"


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of the page's code, which has been run."""
    for table in (LAYOUTS, test_layouts.FITS, test_layouts.UNFIT):
        monkeypatch.setitem(table, "turned", None)  # type: ignore[arg-type]  # so that it goes again
    names = {"LAYOUTS": LAYOUTS, "FITS": test_layouts.FITS, "UNFIT": test_layouts.UNFIT, "F": F, "Weight": Weight}
    names |= {"calls_of": calls_of, "is_free_weight": is_free_weight, "value": value}
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL):
        exec("from __future__ import annotations\n" + code, names)
    return names


def test_it_is_a_layout(page: dict[str, Any]) -> None:
    test_layouts.test_a_layout("turned")
    test_layouts.test_what_a_layout_is_not_for("turned")
    test_layouts.test_a_meaning_runs_without_values()


def test_a_pass_asks_for_it_and_a_program_reads_it(page: dict[str, Any]) -> None:
    net, x = (
        Forward(lambda net, x: net.one(x) + net.two(x), one=nn.Linear(6, 4), two=nn.Linear(6, 4)).requires_grad_(False),
        torch.randn(3, 6),
    )
    store, graph = WeightStore(), trace(net, x).graph
    expected = net(x)
    for item in (*PASSES[:1], Pass(page["turn_linears"])):
        found = item.run(graph, **({"may_pack": store.may_pack} if item.name == "turn_linears" else {}))
    assert found == 2
    weights = [node.meta["source"] for node in graph.nodes if "source" in node.meta]
    tensors = store.tensors(weights, CPU)
    turned = [tensor for weight, tensor in zip(weights, tensors, strict=True) if weight.layout == "turned"]
    assert len(turned) == 2 and all(tensor.stride() == (1, 4) for tensor in turned) and turned[0] is net.one.weight
    torch.testing.assert_close(
        F.linear(x, *[net.one.weight, net.one.bias]) + F.linear(x, net.two.weight, net.two.bias), expected
    )
    store.restore()
    assert net.one.weight.stride() == (6, 1)
