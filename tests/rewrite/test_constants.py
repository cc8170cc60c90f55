"""What a graph computes of neither inputs nor weights."""

from __future__ import annotations

import weakref

import torch
from torch.fx import Graph

from sfast_core.rewrite.constants import known, values


def test_what_a_value_is_made_of_is_held_no_longer_than_it_is_read() -> None:
    made: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def step(x: torch.Tensor) -> torch.Tensor:
        result = x + 1
        made.append(weakref.ref(result))
        alive.append(sum(ref() is not None for ref in made))
        return result

    graph = Graph()
    node = graph.call_function(torch.zeros, (3,))
    for _ in range(5):
        node = graph.call_function(step, (node,))
    graph.output(node)

    assert torch.equal(values(graph, [node])[node], torch.full((3,), 5.0))
    assert alive == [1, 2, 2, 2, 2] and sum(ref() is not None for ref in made) == 0


def test_what_depends_on_an_input_is_not_known() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    table = graph.call_function(torch.arange, (3,))
    graph.output(graph.call_function(torch.add, (graph.call_method("float", (table,)), x)))

    assert [node.name for node in known(graph)] == [table.name, "float_1"]
