"""A result is the very thing that the uncompiled module returns: an argument, a weight, a view, one tensor twice. What a
caller does to it is seen where it would be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, compile
from tests.models import Forward

Seen = Callable[[Any, torch.Tensor, Any], Any]


def set_on(value: Any, name: str, to: Any) -> Any:
    setattr(value, name, to)
    return value


def rounded(value: Any) -> Any:
    return round(value, 3) if isinstance(value, float) else value


def kept(net: Any, x: torch.Tensor) -> torch.Tensor:
    y = net.lin(x)
    net.last, net.first, net.all, net.given = y, y[0], [y], x
    return y


def in_all_three(net: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    y.add_(1)
    return net.last is y, net.all[0] is y, net.given is x, float(net.first.sum())


def part_of_what_is_kept(net: Any, x: torch.Tensor) -> torch.Tensor:
    net.last = net.lin(x)
    net.first = net.last[0, :2]
    return net.last[:1]


def in_what_is_kept(net: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    y.add_(1)
    return float(net.last.sum()), float(net.first.sum())


def kept_twice(net: Any, x: torch.Tensor) -> torch.Tensor:
    y = net.lin(x)
    net.last = net.table["k"] = [y]
    return y


def kept_again(net: Any, x: torch.Tensor) -> torch.Tensor:
    net.last = (net.held,)
    return net.lin(x)


def written_to(value: torch.Tensor, whole: torch.Tensor) -> Any:
    """Who writes to a view writes to what it is a view of."""
    before = float(whole.sum())
    value.add_(1)
    return value.stride(), round(float(whole.sum()) - before, 3)


#: What the forward returns, and what is seen of that. Its third is whether the call is fused.
CASES: dict[str, tuple[Callable[[Any, torch.Tensor], Any], Seen, bool]] = {
    "an argument": (lambda net, x: (x, net.lin(x)), lambda net, x, y: (y[0] is x, float(x.add_(1).sum())), True),
    "an argument alone": (lambda net, x: [x], lambda net, x, y: y[0] is x, True),
    "an argument that it writes to": (
        lambda net, x: (x.mul_(2), net.lin(x)),
        lambda net, x, y: (y[0] is x, float(y[0].add_(1).sum())),
        True,
    ),
    "a view of an argument": (
        lambda net, x: (x[0], net.lin(x)),
        lambda net, x, y: (float(x.add_(1).sum()), float(y[0].sum()), y[0].shape),
        True,
    ),
    "an argument in another shape": (
        lambda net, x: (x.t().unflatten(0, (2, 4)), net.lin(x)),
        lambda net, x, y: (float(y[0].add_(1).sum()), float(x.sum()), y[0].stride()),
        True,
    ),
    "an argument's values as they lie": (
        lambda net, x: (x.detach(), net.lin(x)),
        lambda net, x, y: (float(y[0].add_(1).sum()), float(x.sum())),
        True,
    ),
    "an argument in another dtype": (
        lambda net, x: (x.view(torch.int32), net.lin(x)),
        lambda net, x, y: (y[0].dtype, y[0].tolist(), float(x.add_(y[0].zero_().sum()).sum())),
        False,
    ),
    "an argument as complex numbers": (
        lambda net, x: (torch.view_as_complex(x.unflatten(1, (4, 2))), net.lin(x)),
        lambda net, x, y: (y[0].mul_(2).dtype, x.tolist()),
        False,
    ),
    "a result, and its conjugate": (
        lambda net, x: [z := torch.view_as_complex(net.lin(x).unflatten(1, (4, 2))), z.conj()],
        lambda net, x, y: (y[0].mul_(2).real.tolist(), y[1].real.tolist(), y[1].is_conj()),
        True,
    ),
    "the conjugate of a result, and that": (
        lambda net, x: [(z := torch.view_as_complex(net.lin(x).unflatten(1, (4, 2)))).conj()[:, 1:], z],
        lambda net, x, y: (y[1].mul_(2).real.tolist(), y[0].imag.tolist(), y[0].is_conj()),
        True,
    ),
    "the conjugate of every second number": (
        lambda net, x: torch.view_as_complex(net.lin(x).unflatten(1, (4, 2)))[:, ::2].conj(),
        lambda net, x, y: (y.is_conj(), y.stride(), torch.view_as_real(y.resolve_conj()).tolist()),
        True,
    ),
    "what is negated when it is read": (
        lambda net, x: torch.view_as_complex(net.lin(x).unflatten(1, (4, 2))).conj().imag,
        lambda net, x, y: (y.is_neg(), y.stride(), y.tolist()),
        True,
    ),
    "the conjugate of an argument": (
        lambda net, x: [net.lin(x), torch.view_as_complex(x.unflatten(1, (4, 2))).conj()],
        lambda net, x, y: (y[1].is_conj(), y[1].mul_(2).real.tolist(), x.tolist()),
        False,
    ),
    "the conjugate of a part of a result, twice": (
        lambda net, x: [(z := torch.view_as_complex(net.lin(x).unflatten(1, (4, 2))).conj())[:1], z],
        lambda net, x, y: (y[0].mul_(2).real.tolist(), y[1].real.tolist()),
        False,
    ),
    "complex numbers' parts": (
        lambda net, x: torch.view_as_complex(net.lin(x).unflatten(1, (4, 2))).real,
        lambda net, x, y: y.mul_(2).tolist(),
        True,
    ),
    "a weight": (lambda net, x: (net.lin.weight, net.lin(x)), lambda net, x, y: y[0] is net.lin.weight, True),
    "a tensor of a list": (lambda net, x: (net.held[0], net.lin(x)), lambda net, x, y: y[0] is net.held[0], True),
    "one tensor twice": (lambda net, x: [net.lin(x)] * 2, lambda net, x, y: y[0] is y[1], True),
    "a tensor and a part of it": (
        lambda net, x: (lambda y: (y[0], y))(net.lin(x)),
        lambda net, x, y: (float(y[0].add_(1).sum()), float(y[1].sum())),
        True,
    ),
    "parts of one tensor": (
        lambda net, x: net.lin(x).chunk(2),
        lambda net, x, y: (float(y[0].add_(1).sum()), float(y[1].sum())),
        True,
    ),
    "a size": (lambda net, x: (net.lin(x), x.shape), lambda net, x, y: (type(y[1]), y[1].numel()), True),
    "what is kept, too": (kept, in_all_three, True),
    "a part of a weight": (
        lambda net, x: (net.lin.weight[1:3], net.lin(x)),
        lambda net, x, y: written_to(y[0], net.lin.weight),
        True,
    ),
    "a weight's transpose": (
        lambda net, x: (net.lin.weight.t(), net.lin(x)),
        lambda net, x, y: written_to(y[0], net.lin.weight),
        True,
    ),
    "a weight's values": (
        lambda net, x: (net.lin.bias.detach(), net.lin(x)),
        lambda net, x, y: written_to(y[0], net.lin.bias),
        True,
    ),
    "a part of a convolution's weight": (
        lambda net, x: (net.conv.weight[0], net.conv(x.view(1, 2, 1, 8).expand(1, 2, 4, 8))),
        lambda net, x, y: written_to(y[0], net.conv.weight),
        True,
    ),
    "a weight for each": (
        lambda net, x: (net.lin.bias.expand(2, 8), net.lin(x)),
        lambda net, x, y: (y[0].stride(), float(net.lin.bias.add_(1).sum()), float(y[0].sum())),
        True,
    ),
    "a part of a tensor of a list": (
        lambda net, x: (net.held[0][:1], net.lin(x) + net.held[0].sum()),
        lambda net, x, y: written_to(y[0], net.held[0]),
        True,
    ),
    "a part of what is kept": (part_of_what_is_kept, in_what_is_kept, True),
    "parts that have something in common": (
        lambda net, x: (lambda y: (y[:, :5], y[:, 3:]))(net.lin(x)),
        lambda net, x, y: (float(y[0].add_(1).sum()), float(y[1].sum())),
        False,
    ),
    "a tensor with an attribute": (
        lambda net, x: set_on(net.lin(x), "k", 2.0),
        lambda net, x, y: getattr(y, "k", None),
        False,
    ),
    "a tensor that wants a gradient": (
        lambda net, x: net.lin(x).requires_grad_(),
        lambda net, x, y: y.requires_grad,
        False,
    ),
    "a list of the module's own": (lambda net, x: (net.held, net.lin(x)), lambda net, x, y: y[0] is net.held, False),
    "a dict of the module's own, in a list": (
        lambda net, x: [net.table, net.lin(x)],
        lambda net, x, y: y[0] is net.table,
        False,
    ),
    "one list twice": (
        lambda net, x: {"a": (one := [net.lin(x)]), "b": one},
        lambda net, x, y: y["a"] is y["b"],
        False,
    ),
    "a dict that is kept, too": (
        lambda net, x: set_on(net, "last", {"y": net.lin(x)}).last,
        lambda net, x, y: y is net.last,
        False,
    ),
    "a list that is kept twice": (kept_twice, lambda net, x, y: net.last is net.table["k"], False),
    "a list that is kept, of its own": (kept_again, lambda net, x, y: net.last[0] is net.held, False),
}


def fused_as_uncompiled(forward: Callable[..., Any], seen: Seen) -> bool:
    """Whether calls of a module are fused, whose caller finds in each call's result what it finds without us."""
    found: list[list[Any]] = []
    for compiled in (False, True):
        torch.manual_seed(0)
        net: Any = Forward(forward, lin=nn.Linear(8, 8), conv=nn.Conv2d(2, 2, 3)).requires_grad_(False)
        net.held, net.table = [torch.ones(2)], {"k": torch.ones(2)}
        handle = compile(net, CompileConfig(allow_cpu=True)) if compiled else None
        calls = []
        for step in range(4):
            x = torch.randn(2, 8, generator=torch.Generator().manual_seed(step))
            with torch.no_grad():
                calls.append(seen(net, x, (handle or net)(x)))
        found.append(calls)
    assert torch.utils._pytree.tree_map(rounded, found[0]) == torch.utils._pytree.tree_map(rounded, found[1])
    assert handle is not None
    return "fused" in handle.engine.report.calls


@pytest.mark.parametrize("name", CASES)
def test_a_result_is_what_it_is(name: str) -> None:
    forward, seen, fused = CASES[name]
    assert fused_as_uncompiled(forward, seen) is fused


def test_a_view_of_a_weight_that_lies_otherwise_is_traced_anew() -> None:
    net: Any = Forward(lambda net, x: (net.lin.weight[:, 0], net.lin(x)), lin=nn.Linear(8, 8)).requires_grad_(False)
    handle = compile(net, CompileConfig(allow_cpu=True))
    x = torch.randn(2, 8)
    with torch.no_grad():
        for change in (lambda: None, lambda: setattr(net.lin.weight, "data", net.lin.weight.data.t())):
            change()
            for _ in range(3):
                column, y = handle(x)
                torch.testing.assert_close(y, nn.functional.linear(x, net.lin.weight, net.lin.bias))
                assert torch.equal(column, net.lin.weight[:, 0]) and column.stride() == net.lin.weight[:, 0].stride()
    assert handle.engine.report.calls == {"traced": 2, "fused": 4}


#: The forward, what the caller finds of its list or dict, and whether calls are fused.
OF_THE_CALLER: dict[str, tuple[Callable[..., Any], Callable[[Any, Any, Any], bool], bool]] = {
    "returned": (lambda net, x, given: (net.lin(x), given), lambda net, y, given: y[1] is given, True),
    "a part returned": (
        lambda net, x, given: (net.lin(x), given["in"]),
        lambda net, y, given: y[1] is given["in"],
        True,
    ),
    "returned in a dict": (
        lambda net, x, given: {"y": net.lin(x), "z": [given["in"], 1]},
        lambda net, y, given: y["z"][0] is given["in"] and y["z"][1] == 1,
        True,
    ),
    "returned twice": (
        lambda net, x, given: [given, net.lin(x), given["in"], given],
        lambda net, y, given: y[0] is y[3] is given and y[2] is given["in"],
        True,
    ),
    "returned with what was computed of it": (
        lambda net, x, given: (given, net.lin(x) + given["in"][0]),
        lambda net, y, given: y[0] is given,
        True,
    ),
    "a tensor of it returned beside it": (
        lambda net, x, given: (net.lin(x), given["in"], given["in"][0]),
        lambda net, y, given: y[1] is given["in"] and y[2] is given["in"][0],
        True,
    ),
    "returned beside a tensor that is kept": (
        lambda net, x, given: (set_on(net, "last", net.lin(x)).last, given),
        lambda net, y, given: y[0] is net.last and y[1] is given,
        True,
    ),
    "written to and returned": (
        lambda net, x, given: (net.lin(x), given, given.update(out=1)),
        lambda net, y, given: y[1] is given and given["out"] == 1,
        False,
    ),
    "passed twice": (
        lambda net, x, given: (net.lin(x), given["again"]),
        lambda net, y, given: y[1] is given["in"],
        False,
    ),
    "kept": (
        lambda net, x, given: set_on(net, "last", given).lin(x),
        lambda net, y, given: net.last is given,
        False,
    ),
    "a part kept": (
        lambda net, x, given: net.kept.append(given["in"]) or net.lin(x),
        lambda net, y, given: net.kept[-1] is given["in"],
        False,
    ),
}


@pytest.mark.parametrize("name", OF_THE_CALLER)
def test_a_list_or_dict_among_the_arguments_is_the_callers_own(name: str) -> None:
    forward, seen, fused = OF_THE_CALLER[name]
    net: Any = Forward(forward, lin=nn.Linear(8, 8)).requires_grad_(False)
    net.kept = []
    handle, x = compile(net, CompileConfig(allow_cpu=True)), torch.randn(2, 8)
    with torch.no_grad():
        for step in range(4):
            given = {"in": [x[0] + step]}
            if name == "passed twice":
                given["again"] = given["in"]
            assert seen(net, handle(x, given), given)
    assert ("fused" in handle.engine.report.calls) is fused
