"""A graph run as a list of instructions computes what FX's generated code does,
and keeps nothing longer than it must.
"""

from __future__ import annotations

import operator
import weakref

import pytest
import torch
from torch import nn
from torch.fx import Graph, GraphModule

from sfast_core.runtime.instructions import as_function


def both(graph: Graph, *arguments: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The outputs by our loop, and by FX."""
    return list(as_function(graph)(*arguments)), list(GraphModule(nn.Module(), graph).forward(*arguments))


def test_values_may_lie_in_arguments_lists_slices_and_keywords() -> None:
    graph = Graph()
    x, y, n = (graph.placeholder(name) for name in "xyn")
    joined = graph.call_function(torch.cat, ([x, y], 1))
    scaled = graph.call_function(torch.add, (joined, 1.5), {"alpha": 2})
    where = graph.call_function(torch.where, (graph.call_function(torch.gt, (scaled, 0.0)), scaled, joined))
    item = graph.call_method("item", (n,))
    part = graph.call_function(operator.getitem, (where, (slice(None), slice(item, None))))
    summed = graph.call_method("sum", (part,), {"dim": (0,), "keepdim": True})
    ends = graph.call_function(torch.clamp, (summed,), {"max": graph.call_method("mean", (x,))})
    graph.output((ends, x, part))
    ours, theirs = both(graph, torch.randn(2, 3), torch.randn(2, 4), torch.tensor(2))
    assert len(ours) == 3 and all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_operators_get_plain_containers() -> None:
    seen: list[type] = []
    graph = Graph()
    x = graph.placeholder("x")
    graph.output(
        (
            graph.call_function(
                lambda x, sizes, *, more: (seen.extend([type(sizes), type(more["dims"])]), x)[1],
                (x, [1, 2]),
                {"more": {"dims": [x]}},
            ),
        )
    )
    as_function(graph)(torch.ones(1))
    assert seen == [list, list]


def test_a_value_goes_behind_its_last_use() -> None:
    made: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def step(x: torch.Tensor) -> torch.Tensor:
        alive.append(sum(ref() is not None for ref in made))
        made.append(weakref.ref(result := x + 1))
        return result

    graph = Graph()
    node = graph.placeholder("x")
    for _ in range(4):
        graph.call_function(step, (node,))  # nobody uses this one
        node = graph.call_function(step, (node,))
    graph.output((node,))
    as_function(graph)(torch.zeros(2))
    assert alive == [0, 0, 1, 1, 1, 1, 1, 1]


def test_the_graph_is_not_needed_any_more() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    doubled = graph.call_function(torch.mul, (x, 2))
    graph.output((doubled,))
    run = as_function(graph)
    doubled.args = (x, 3)
    assert run(torch.tensor(5))[0] == 10


def test_a_wrong_number_of_arguments_and_an_unknown_node_are_errors() -> None:
    graph = Graph()
    graph.output((graph.placeholder("x"),))
    with pytest.raises(ValueError, match="argument"):
        as_function(graph)()
    graph = Graph()
    graph.output((graph.get_attr("weight"),))
    with pytest.raises(NotImplementedError, match="get_attr"):
        as_function(graph)
