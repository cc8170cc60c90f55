"""Nodes are made and taken apart as FX does it."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx import Graph

from sfast_core.capture.nodes import call_function, call_method, new_graph, take_apart


def calls(make_function: Any, make_method: Any) -> Graph:
    graph = Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    total = make_function(graph, torch.add, (x, y), {"alpha": 2})
    linear = make_function(graph, F.linear, (total, y))
    nested = make_function(graph, torch.cat, ([linear, total], -1), {})
    graph.output(make_method(graph, "view", (nested, 2, -1), {}))
    graph.lint()
    return graph


def test_nodes_are_those_that_fx_makes() -> None:
    ours = calls(call_function, call_method)
    theirs = calls(Graph.call_function, Graph.call_method)
    for mine, other in zip(ours.nodes, theirs.nodes, strict=True):
        assert (mine.op, mine.name, mine.target) == (other.op, other.name, other.target)
        assert (str(mine.args), str(mine.kwargs)) == (str(other.args), str(other.kwargs))
        assert [user.name for user in mine.users] == [user.name for user in other.users]
        assert [used.name for used in mine.all_input_nodes] == [used.name for used in other.all_input_nodes]
    assert ours.find_nodes(op="call_function", target=F.linear)[0].name == "linear"


def test_names_that_fx_does_not_give_are_not_given() -> None:
    ours, theirs = new_graph()._graph_namespace, Graph()._graph_namespace
    for name in ("for", "len", "torch", "inf", "device", "NoneType", "linear", "linear", "linear_1", "1st", "a.b"):
        assert ours.create_name(name, None) == theirs.create_name(name, None)


def test_an_older_fx_keeps_its_own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch 2.6 wants to be told of each."""

    class Older(torch.fx.graph._Namespace):
        def __init__(self) -> None:
            super().__init__()
            self._unassociated_names: set[str] = set()

    monkeypatch.setattr(torch.fx.graph, "_Namespace", Older)
    assert type(new_graph()._graph_namespace) is Older


def test_a_graph_that_is_taken_apart_needs_no_collector() -> None:
    graph = calls(call_function, call_method)
    (output,) = graph.find_nodes(op="output")
    copy = call_function(graph, torch.neg, (output.args[0],))
    graph.erase_node(copy)  # FX remembers it
    nodes = [weakref.ref(node) for node in (*graph.nodes, copy)]
    del output, copy
    gc.collect()
    gc.disable()
    try:
        take_apart(graph)
        assert all(node() is None for node in nodes)
    finally:
        gc.enable()


def test_a_long_graph_is_taken_apart() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    for _ in range(50_000):
        x = call_function(graph, torch.neg, (x,))
    graph.output(x)
    take_apart(graph)
    assert not vars(graph)
