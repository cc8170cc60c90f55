"""Records a module's forward, runs a graph, and runs the passes up to one of them: what the tests of capture and
rewrite share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.fx import Graph
from torch.utils._pytree import tree_flatten

from sfast_core.capture import Guard, Signature, Trace, Untraceable, autocast_off, record
from sfast_core.capture.guards import ReadSet
from sfast_core.libraries import known_layers
from sfast_core.ops.linear import linear
from sfast_core.rewrite.graph import drop_unused, drop_unused_weights, named
from sfast_core.rewrite.patterns import HasImpl
from sfast_core.rewrite.pipeline import no_impl, passes
from sfast_core.runtime.instructions import as_function
from sfast_core.runtime.store import WeightStore

CPU = torch.device("cpu")


def try_record(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Any, Trace | Untraceable]:
    """The call's own result, and its trace or why there is none."""
    result, found, _ = guarded(module, *args, **kwargs)
    return result, found


def guarded(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Any, Trace | Untraceable, Guard]:
    """As :func:`try_record`, and what tells later whether that still holds."""
    tensors = Signature(args, kwargs).tensors
    device = tensors[0].device if tensors else CPU
    with torch.no_grad():
        reads = ReadSet(module, module.forward)
        return record(lambda: module(*args, **kwargs), tensors, module, device, reads, known_layers)


def trace(module: nn.Module, *args: Any, **kwargs: Any) -> Trace:
    """The trace of a call that can be recorded."""
    _, found = try_record(module, *args, **kwargs)
    assert isinstance(found, Trace), found.reason
    return found


def evaluate(graph: Graph, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What ``graph`` computes from ``inputs`` and from the weights that its module has now, with autocast off."""
    sources = [node.meta["source"] for node in graph.nodes if "source" in node.meta]
    constants = [node.meta["constant"] for node in graph.nodes if "constant" in node.meta]
    with torch.no_grad(), autocast_off():
        weights = WeightStore().tensors(sources, inputs[0].device if inputs else CPU)
        return list(as_function(graph)(*inputs, *weights, *constants))


def check_recording(net: nn.Module, *inputs: torch.Tensor) -> None:
    """The recorded call returned what the module returns, and its graph computes the same from other values."""
    with torch.no_grad():
        expected = net(*inputs)
    result, found = try_record(net, *inputs)
    assert not isinstance(found, Untraceable), found.reason
    same(result, expected)
    for _ in range(2):
        fresh = [torch.randn_like(x) for x in inputs]
        with torch.no_grad():
            expected = net(*fresh)
        same(found.outputs.build(evaluate(found.graph, fresh), fresh), expected)


def same(mine: Any, theirs: Any) -> None:
    """Both are built alike, of equal tensors and values."""
    (mine, tree), (theirs, other) = tree_flatten(mine), tree_flatten(theirs)
    assert tree == other
    for a, b in zip(mine, theirs, strict=True):
        assert torch.equal(a, b) if isinstance(b, torch.Tensor) else a == b


def count(graph: Graph, *functions: Callable[..., Any] | str) -> int:
    """How many calls of ``functions`` (a method by its name) there are."""
    return sum(node.op in ("call_function", "call_method") and node.target in functions for node in graph.nodes)


def linears(graph: Graph, kind: str) -> list[Any]:
    """The calls of the op ``linear`` with an "act", a "gate" or a "residual"."""
    found = [(node, named(node)) for node in graph.nodes if node.target is linear]
    kinds = {
        "act": lambda call: call.act != "none" and not call.gated,
        "gate": lambda call: call.gated,
        "residual": lambda call: call.residual is not None,
    }
    return [node for node, call in found if kinds[kind](call)]


def rewritten(last: str, module: nn.Module, *inputs: torch.Tensor, has_impl: HasImpl = no_impl) -> tuple[int, Graph]:
    """Trace, run the passes up to ``last``, and compare what is left with the module on new values.

    ``has_impl`` says for which calls of an op there is a kernel.

    Returns:
        how many places the pass ``last`` changed, and the graph behind it.
    """
    torch.manual_seed(0)
    found = 0
    reads = ReadSet(module, module.forward)
    with torch.no_grad():
        recorded = record(lambda: module(*inputs), list(inputs), module, inputs[0].device, reads, returns_each=True)[1]
        assert isinstance(recorded, Trace), recorded.reason
        graph = recorded.graph
        for name, run in passes(WeightStore().may_pack, has_impl).items():
            found = run(graph)
            if name == last:
                break
        else:
            raise ValueError(f"there is no pass {last}")
    drop_unused(graph)
    drop_unused_weights(graph)
    graph.lint()
    fresh = [torch.randn_like(x) if x.is_floating_point() else x for x in inputs]
    with torch.no_grad():
        expected = module(*fresh)
    got = evaluate(graph, fresh)
    for mine, theirs in zip(got, expected if isinstance(expected, (tuple, list)) else [expected], strict=True):
        assert mine.dtype == theirs.dtype
        tolerance = 1e-2 if theirs.dtype in (torch.float16, torch.bfloat16) else 1e-5
        torch.testing.assert_close(mine, theirs, rtol=10 * tolerance, atol=tolerance)
    return found, graph
