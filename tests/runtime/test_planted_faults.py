"""Every check of weights matters: where one is left out, a change of weights that is listed here gives a wrong result.

On a CPU, by a backend whose graphs run again; they read weights at the addresses that they had at capture, as a GPU's
do.
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core import CompileConfig, CompiledModule, compile
from sfast_core.graphed import GraphedProgram
from sfast_core.weights import Bound, Packed
from tests.capturing import pretend_graphs
from tests.planting import planted

Change = Callable[[Any], Any]


class Net(nn.Module):
    """Packed queries, keys and values, a convolution, a layer that is tied to another, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8, bias=False) for _ in "qkv")
        self.conv = nn.Conv2d(2, 2, 3, padding=1)
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)
        self.two.weight = self.one.weight
        self.register_buffer("table", torch.rand(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (layer(x).reshape(1, 2, 2, 4).transpose(1, 2) for layer in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(1, 2, 2, 4)
        y = self.conv(y).reshape(2, 8)
        return self.two(torch.tanh(self.one(y))) * self.table


def fresh(tensor: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(torch.flip(tensor.detach(), (0,)) * 1.5, requires_grad=False)


def put(path: str, make: Callable[[torch.Tensor], Any]) -> Change:
    """Another parameter in a layer's place."""

    def change(net: Any) -> None:
        layer, _, name = path.rpartition(".")
        setattr(net.get_submodule(layer), name, make(net.get_submodule(layer)._parameters[name]))

    return change


def put_data(path: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """Other memory under a parameter that stays the object that it is."""

    def change(net: Any) -> None:
        parameter = net.get_parameter(path)
        net.__dict__.setdefault("_kept", []).append(parameter.data)  # who has read it there could read it still
        parameter.data = make(parameter.data)

    return change


def exchange(net: Any) -> None:
    net.q.weight, net.k.weight = net.k.weight, net.q.weight


def exchange_data(net: Any) -> None:
    net.q.weight.data, net.k.weight.data = net.k.weight.data, net.q.weight.data


def tie(net: Any) -> None:
    net.k.weight = net.q.weight


#: What hosts do to weights. Each is done to a compiled module and to a copy that isn't, in front of their fourth call.
CHANGES: dict[str, Change] = {
    "nothing": lambda net: None,
    "a weight is written to": lambda net: net.q.weight.mul_(2),
    "a packed weight is another": put("q.weight", fresh),
    "a packed weight has other memory": put_data("k.weight", lambda data: data * 2),
    "a packed weight is turned": put_data("q.weight", lambda data: data.t()),
    "two packed weights trade places": exchange,
    "two packed weights trade their memory": exchange_data,
    "a packed weight is two now": tie,
    "all packed weights are others": lambda net: [put(f"{name}.weight", fresh)(net) for name in "qkv"],
    "a convolution's weight is another": put("conv.weight", fresh),
    "a convolution's weight has other memory": put_data("conv.weight", lambda data: data * 2),
    "a convolution's weight is turned": put_data("conv.weight", lambda data: data.transpose(2, 3)),
    "a tied weight is another at both places": lambda net: [
        setattr(layer, "weight", new) for new in [fresh(net.one.weight)] for layer in (net.one, net.two)
    ],
    "a tied weight is another at the one": put("one.weight", fresh),
    "a tied weight is another at the other": put("two.weight", fresh),
    "a bias is another": put("one.bias", fresh),
    "a bias has other memory": put_data("one.bias", lambda data: data * 2),
    "a buffer is another": lambda net: setattr(net, "table", net.table * 2),
    "a buffer is written to": lambda net: net.table.mul_(2),
    "a buffer is of another size": lambda net: setattr(net, "table", torch.full((1,), 2.0)),
    "a buffer has less of the very memory": lambda net: setattr(net.table, "data", net.table.data[:1]),
    "others are swapped for weights": lambda net: [
        torch.utils.swap_tensors(each, fresh(each)) for each in (net.q.weight, net.conv.weight, net.one.weight)
    ],
    "a plain weight is turned": put_data("one.weight", lambda data: data.t()),
    "a weight is of another dtype in the very memory": lambda net: setattr(
        net.table, "data", net.table.data.view(torch.int32)
    ),
    "load_state_dict": lambda net: net.load_state_dict({name: value * 1.5 for name, value in net.state_dict().items()}),
    "load_state_dict(assign=True)": lambda net: net.load_state_dict(
        {name: value * 1.5 for name, value in net.state_dict().items()}, assign=True
    ),
}

#: What may be left out, or be wrong, in a check: whose function, its name, and what its source has in the place of
#: what.
FAULTS: dict[str, tuple[Any, str, str, str]] = {
    "strides aren't asked": (Bound, "current", "list(map(_strides, now)) == self._strides", "True"),
    "sizes aren't asked": (Bound, "current", "list(map(_size, now)) == self._sizes", "True"),
    "dtypes aren't asked": (Bound, "current", "list(map(_dtype, now)) == self._dtypes", "True"),
    "addresses aren't asked": (
        Bound,
        "readable",
        "return list(map(_address, self._current())) == self._addresses",
        "return True",
    ),
    "a replay ahead is used whatever changed": (
        GraphedProgram,
        "run",
        "or not self._reads_as_now() or not self._copies_are_current()",
        "",
    ),
    "a graph is kept whatever changed": (
        GraphedProgram,
        "_still_good",
        "if self._bound.valid() and self._streams.readable() and self._streams.same():",
        "if True:",
    ),
    "new addresses are taken for the old ones": (
        GraphedProgram,
        "_still_good",
        "same = bound.pointers == self._bound.pointers",
        "same = True",
    ),
    "packed weights may lie anywhere": (Packed, "laid", "tensor.data_ptr() != place or ", ""),
    "packed weights may be turned": (Packed, "laid", "not tensor.is_contiguous() or ", ""),
}


def at_its_address(tensor: torch.Tensor) -> torch.Tensor:
    """What lies where ``tensor`` lies now, whatever becomes of the object."""
    size = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    memory = (ctypes.c_char * (size * tensor.element_size())).from_address(tensor.data_ptr())
    return torch.frombuffer(memory, dtype=tensor.dtype).as_strided(tensor.shape, tensor.stride())


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU as a device whose graphs read weights by their addresses."""
    pretend_graphs(monkeypatch)
    weights = GraphedProgram._weights
    monkeypatch.setattr(GraphedProgram, "_weights", lambda self: [at_its_address(weight) for weight in weights(self)])


def check(change: Change) -> None:
    """Three calls, the change, four calls: each beside the copy's, the last two without another capture."""
    torch.manual_seed(0)
    net = Net().eval().requires_grad_(False)
    twin = copy.deepcopy(net)
    handle = compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for step in range(7):
            if step == 3:
                assert handle.engine.report.calls["replayed"] == 2, handle.report().text()
                change(net), change(twin)
            if step == 5:
                settled = _captures(handle)
            x = torch.randn(2, 8)
            torch.testing.assert_close(handle(x), twin(x))
    assert _captures(handle) == settled, "it is captured again at each call"


def _captures(handle: CompiledModule) -> int:
    return sum(signature.captures for signature in handle.engine.report.signatures)


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_weights_is_noticed(replays: None, name: str) -> None:
    check(CHANGES[name])


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_noticed(replays: None, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    owner, name, old, new = FAULTS[fault]
    monkeypatch.setattr(owner, name, planted(owner, name, old, new))
    noticed = []
    for change_name, change in CHANGES.items():
        try:
            check(change)
        except Exception:
            noticed.append(change_name)
    assert noticed and "nothing" not in noticed, "no test fails without this check"
