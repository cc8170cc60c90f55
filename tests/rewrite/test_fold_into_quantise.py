"""Quantising reads what is in front of its input, with the same numbers; what somebody else reads stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from sfast_core.ops.quantise import quantise
from sfast_core.ops.scaled_linear import scaled_linear
from sfast_core.rewrite import rewrite
from sfast_core.rewrite.patterns import gelu
from sfast_core.weights.kitchen import CODES
from tests.kitchen import kitchen
from tests.models import Forward
from tests.tracing import count, evaluate, trace

BF16, E4M3 = CODES[torch.bfloat16], torch.float8_e4m3fn
KITCHEN: Any = kitchen()
MAKING = (F.silu, gelu, torch.mul, torch.cat)


def product(net: Any, x: torch.Tensor) -> torch.Tensor:
    """A layer that quantises its input by row, of as many features as x has."""
    return KITCHEN.int8_linear(x, net.q[:, : x.shape[-1]].contiguous(), net.scale, None, BF16)  # type: ignore[no-any-return]


def rotated(net: Any, x: torch.Tensor) -> torch.Tensor:
    return KITCHEN.int8_linear(x, net.q[:, : x.shape[-1]].contiguous(), net.scale, None, BF16, True, 16)  # type: ignore[no-any-return]


def by_tensor(net: Any, x: torch.Tensor) -> torch.Tensor:
    weight = net.small[:, : x.shape[-1]].contiguous()
    return torch._scaled_mm(
        KITCHEN.quantize_fp8(x, net.one, CODES[E4M3]),
        weight.t(),
        scale_a=net.one,
        scale_b=net.one,
        out_dtype=torch.bfloat16,
    )


def model(forward: Callable[..., Any]) -> Forward:
    torch.manual_seed(0)
    net = Forward(forward)
    parts = {
        "q": torch.randint(-127, 128, (16, 128), dtype=torch.int8),
        "scale": torch.rand(16, 1) / 100,
        "one": torch.ones(()),
    }
    parts["small"] = torch.randn(16, 128).to(E4M3)
    for name, part in parts.items():
        setattr(net, name, torch.nn.Parameter(part, requires_grad=False))
    return net


class Read(NamedTuple):
    """What quantise is to read besides x: the activation, whether something is gated, whether something is in front."""

    act: str | None = None
    times: bool = False
    front: bool = False


def tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


def halves(x: torch.Tensor) -> Any:
    return x.chunk(2, -1)


#: Forwards of x [2, 8, 64] and y [2, 8, 64].
FOLDED: dict[str, tuple[Callable[..., Any], Read]] = {
    "gelu": (lambda net, x, y: product(net, F.gelu(x)), Read("gelu")),
    "gelu, tanh, rotated": (lambda net, x, y: rotated(net, tanh(x)), Read("gelu_tanh")),
    "silu, by tensor": (lambda net, x, y: by_tensor(net, F.silu(x).reshape(-1, 64)), Read("silu")),
    "other rows": (lambda net, x, y: product(net, tanh(x).reshape(16, 64)), Read("gelu_tanh")),
    "SwiGLU": (lambda net, x, y: product(net, F.silu(x) * y), Read("silu", True)),
    "SwiGLU, the other way round": (lambda net, x, y: product(net, (y * F.silu(x)).view(-1, 64)), Read("silu", True)),
    "SwiGLU of halves": (lambda net, x, y: product(net, (lambda a, b: F.silu(a) * b)(*halves(x))), Read("silu", True)),
    "GEGLU of halves": (lambda net, x, y: product(net, (lambda a, b: a * F.gelu(b))(*halves(x))), Read("gelu", True)),
    "SwiGLU of itself": (lambda net, x, y: product(net, F.silu(x) * x), Read("silu", True)),
    "a sigmoid": (lambda net, x, y: product(net, x * torch.sigmoid(y)), Read("sigmoid", True)),
    "a product": (lambda net, x, y: product(net, x * y), Read(None, True)),
    "a gate that is read elsewhere": (lambda net, x, y: (product(net, (g := F.silu(x)) * y), g + 1), Read(None, True)),
    "in front": (lambda net, x, y: product(net, torch.cat([x, tanh(y)], -1)), Read("gelu_tanh", False, True)),
    "in front, by tensor": (
        lambda net, x, y: by_tensor(net, torch.cat((x, tanh(y)), 2).reshape(16, 128)),
        Read("gelu_tanh", False, True),
    ),
    "in front, gated": (lambda net, x, y: product(net, torch.cat([x, F.silu(y) * x], -1)), Read("silu", True, True)),
    "in front, nothing else": (lambda net, x, y: product(net, torch.cat([tanh(x), y], -1)), Read(None, False, True)),
    "in front, an activation read elsewhere": (
        lambda net, x, y: (product(net, torch.cat([x, g := tanh(y)], -1)), g + 1),
        Read(None, False, True),
    ),
    "rows of a part": (lambda net, x, y: product(net, x[:, 3:].reshape(10, 64)), Read()),
}
NOT_FOLDED: dict[str, Callable[..., Any]] = {
    "read elsewhere": lambda net, x, y: (product(net, g := tanh(x)), g + 1),
    "read elsewhere in other rows": lambda net, x, y: (
        product(net, tanh(x).reshape(16, 64)),
        (tanh(x).reshape(16, 64)) + 1,
    ),
    "quantised twice": lambda net, x, y: product(net, g := tanh(x)) + rotated(net, g),
    "a sum": lambda net, x, y: product(net, x + y),
    "a number": lambda net, x, y: product(net, x * 2),
    "broadcast": lambda net, x, y: product(net, x * y[:, :1]),
    "another activation": lambda net, x, y: product(net, torch.relu(x)),
    "a sigmoid alone": lambda net, x, y: product(net, torch.sigmoid(x)),
    "three parts": lambda net, x, y: product(net, torch.cat([x[..., :32], y[..., :32], x[..., :16]], -1)),
    "along the rows": lambda net, x, y: product(net, torch.cat([x, tanh(y)], 1)),
    "heads after it": lambda net, x, y: product(net, tanh(x).view(2, 8, 4, 16).transpose(1, 2).reshape(16, 64)),
    "already as it lies": lambda net, x, y: product(net, x.reshape(16, 64)),
    "of another dtype": lambda net, x, y: product(net, (x.float() * y.float()).bfloat16()),
}


def has_impl(op: Any, *_: Any) -> bool:
    return op in (quantise, scaled_linear)


def both(forward: Callable[..., Any], impl: Callable[..., bool] = has_impl) -> tuple[int, Graph]:
    """How many places are folded, and the graph: it gives the very numbers of the one without the pass."""
    net, inputs = model(forward), [torch.randn(2, 8, 64, dtype=torch.bfloat16) for _ in "xy"]
    plain, folded = (trace(net, *inputs).graph for _ in "ab")
    rewrite(plain, None, ("fold_into_quantise",), has_impl=has_impl)
    found = rewrite(folded, None, has_impl=impl).counts["fold_into_quantise"]
    for mine, theirs in zip(evaluate(folded, inputs), evaluate(plain, inputs), strict=True):
        assert mine.shape == theirs.shape and torch.equal(mine, theirs)
    return found, folded


def quantising(graph: Graph) -> list[Node]:
    return graph.find_nodes(op="call_function", target=quantise)


@pytest.mark.parametrize("name", FOLDED)
def test_what_is_in_front_is_read(name: str) -> None:
    forward, read = FOLDED[name]
    found, graph = both(forward)
    (node,) = quantising(graph)
    _, _, _, _, act, times, front, _ = node.args
    assert found == 1 and Read(act, times is not None, front is not None) == read  # type: ignore[arg-type]
    if "elsewhere" not in name and "nothing else" not in name:
        assert count(graph, *MAKING) == 0


@pytest.mark.parametrize("name", NOT_FOLDED)
def test_what_only_looks_like_it_stays(name: str) -> None:
    found, graph = both(NOT_FOLDED[name])
    assert found == 0 and all(len(node.args) == 4 for node in quantising(graph))


def test_what_no_kernel_reads_stays() -> None:
    """An impl may quantise and yet know nothing of what is in front."""
    found, graph = both(
        FOLDED["in front"][0], lambda op, *args: has_impl(op) and not (op is quantise and len(args) > 4)
    )
    assert found == 0 and count(graph, torch.cat, gelu) == 2
