"""The ops as operators of PyTorch's."""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

import pytest
import torch
from torch.utils import _pytree

from sfast_core import operators, register_operators
from sfast_core.operators import NAMESPACE
from sfast_core.ops import NAMES, all_ops

CUDA = torch.cuda.is_available()


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    register_operators()
    register_operators()


def operator(name: str) -> Any:
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def examples(name: str, dtype: torch.dtype = torch.float32) -> list[tuple[Any, ...]]:
    """The positional arguments of an op's smaller cases."""
    cases = importlib.import_module(f"tests.ops.cases.{name}").CASES[:6]
    made = [case.make(dtype, torch.device("cuda" if CUDA else "cpu")) for case in cases]
    order = [argument.name for argument in operator(name)._schema.arguments]
    return [
        (*args, *(kwargs.get(key, default) for key, default in _defaults(name, order[len(args) :])))
        for args, kwargs in made
    ]


def _comparable(tensor: torch.Tensor) -> torch.Tensor:
    """What ``assert_close`` can compare: floats of 8 bits as larger ones."""
    return tensor.float() if tensor.dtype.is_floating_point and tensor.itemsize == 1 else tensor


def _defaults(name: str, keys: list[str]) -> list[tuple[str, Any]]:
    arguments = {argument.name: argument for argument in operator(name)._schema.arguments}
    return [(key, arguments[key].default_value if arguments[key].has_default_value() else None) for key in keys]


@pytest.mark.parametrize("name", NAMES)
def test_an_operator_has_its_references_parameters(name: str) -> None:
    reference = all_ops()[name].reference
    arguments = [argument.name for argument in operator(name)._schema.arguments]
    parameters = inspect.signature(reference).parameters
    assert arguments == list(parameters)
    for argument in operator(name)._schema.arguments:
        default = parameters[argument.name].default
        assert argument.has_default_value() == (default is not inspect.Parameter.empty)
        if argument.has_default_value():
            found = argument.default_value
            assert (found[0] if isinstance(found, list) else found) == default


@pytest.mark.parametrize("name", NAMES)
def test_it_computes_what_the_reference_computes(name: str) -> None:
    dtype = torch.float16 if CUDA else torch.float32
    with torch.no_grad():
        for args in examples(name, dtype):
            results, expected = (
                _pytree.tree_leaves(function(*args)) for function in (operator(name), all_ops()[name].reference)
            )
            for found, wanted in zip(map(_comparable, results), map(_comparable, expected), strict=True):
                torch.testing.assert_close(found, wanted, rtol=1e-2 if CUDA else 1e-6, atol=1e-2 if CUDA else 1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_its_fake_foretells_shapes_and_strides(name: str) -> None:
    with torch.no_grad():
        for args in examples(name):
            small = any(
                isinstance(arg, torch.Tensor) and arg.dtype.is_floating_point and arg.itemsize == 1 for arg in args
            )
            # that computes with the arguments
            checks = ("test_faketensor",) if small else ("test_schema", "test_faketensor")
            torch.library.opcheck(operator(name), args, test_utils=checks)


def test_no_result_shares_memory_with_an_argument() -> None:
    """``add_layer_norm``'s sum is x itself where there is nothing to add."""
    x = torch.randn(2, 3, 8)
    total, _ = operator("add_layer_norm")(x, None, None, None, 1e-5)
    assert torch.equal(total, x) and total.data_ptr() != x.data_ptr()


def test_autocast_changes_no_dtype() -> None:
    """The kernels know nothing of it, and the references in their place must not either."""
    with torch.autocast("cpu", torch.bfloat16):
        assert operator("linear")(torch.randn(4, 16), torch.randn(32, 16), None, "gelu", True).dtype == torch.float32


def test_others_compilers_take_it_as_a_whole() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph

    def forward(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.fast_compile.linear(x * 2, weight, None, "gelu", True) + 1
        return result

    x, weight = torch.randn(4, 16), torch.randn(32, 16)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(forward, backend=keep, fullgraph=True)(x, weight), forward(x, weight))
    assert operator("linear") in {
        getattr(node.target, "default", node.target) for graph in graphs for node in graph.graph.nodes
    }


def test_gradients_are_refused_and_not_wrong() -> None:
    weight = torch.randn(32, 16, requires_grad=True)
    with pytest.raises((RuntimeError, NotImplementedError), match="autograd|backward"):
        operator("linear")(torch.randn(4, 16), weight, None, "gelu", True).sum().backward()


@pytest.mark.gpu
def test_the_kernels_of_a_gpu_run_where_they_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half precision by a kernel, a view that isn't aligned by the reference,
    both in the same graph and on any stream.
    """
    x = torch.randn(2, 64, 32, 32, device="cuda", dtype=torch.float16).contiguous(memory_format=torch.channels_last)
    odd = (
        torch.randn(2 * 64 * 32 * 32 + 1, device="cuda", dtype=torch.float16)[1:]
        .view(2, 32, 32, 64)
        .permute(0, 3, 1, 2)
    )
    launched: list[str] = []
    for impl in all_ops()["group_norm_act"].impls:
        module, function = impl.load(), impl.launch
        monkeypatch.setattr(
            module,
            "launch",
            functools.wraps(function)(  # with the parameters that an impl has to have
                lambda *args, name=impl.name, function=function: launched.append(name) or function(*args)
            ),
        )
    # one that keeps no kernel of before, nor these
    monkeypatch.setattr(operators, "_kernel", functools.lru_cache(operators._kernel.__wrapped__))
    compute = operator("group_norm_act")
    compute(x, 32, None, None, 1e-5, "silu"), compute(odd, 32, None, None, 1e-5, "silu")
    assert len(launched) == 1
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = [compute(each, 32, None, None, 1e-5, "silu") for each in (x, odd)]
    x.mul_(3), odd.add_(1)
    graph.replay()
    for out, each in zip(outs, (x, odd), strict=True):
        torch.testing.assert_close(
            out, all_ops()["group_norm_act"].reference(each, 32, None, None, 1e-5, "silu"), rtol=1e-2, atol=1e-2
        )
