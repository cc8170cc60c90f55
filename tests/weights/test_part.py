"""A weight that is made of other tensors: its parts are found by address, and what becomes of them or of the whole is
noticed.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn

from sfast_core.runtime.store import WeightStore
from sfast_core.weights import PACKED, Weight, WeightRef, WeightsChanged, WeightTable
from sfast_core.weights.part import alike, parts_of
from tests.quantised import Params, Quantised, quantise
from tests.tracing import CPU


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return quantise(nn.Sequential(nn.Linear(8, 4), nn.Linear(8, 6)).requires_grad_(False))


def parts(net: nn.Module, layer: int = 0) -> list[WeightRef]:
    table, whole = WeightTable(net), net[layer].weight  # type: ignore[index]
    found = [table.find(tensor) for tensor in (whole._data, whole._params.scale)]
    return [ref for ref in found if ref is not None]


def test_parts_are_where_they_are_kept(net: nn.Module) -> None:
    whole = net[0].weight  # type: ignore[index]
    assert [where for where, _ in parts_of(whole)] == ["_data", "_params.scale"]
    data, scale = parts(net)
    assert (str(data), str(scale)) == ("0.weight._data", "0.weight.scale") and data != scale
    assert data.tensor() is whole._data and scale.tensor() is whole._params.scale
    assert WeightTable(net).find(whole) == WeightRef("0", "weight", data.owner)


def test_the_parts_of_a_whole_that_was_replaced_are_the_new_ones(net: nn.Module) -> None:
    (data, scale), store = parts(net), WeightStore()
    weights = [Weight((data,)), Weight((scale,))]
    bound = store.bind(weights, store.tensors(weights, CPU))
    assert bound.valid()
    net[0].weight = nn.Parameter(Quantised.of(torch.randn(4, 8)), requires_grad=False)  # type: ignore[index]
    assert not bound.current()
    new = store.tensors(weights, CPU)
    assert new[0] is net[0].weight._data and new[1] is net[0].weight._params.scale  # type: ignore[index]
    assert store.bind(weights, new).valid()


CHANGES: dict[str, Callable[[nn.Module], object]] = {
    "another part in the whole": lambda net: setattr(net[0].weight, "_data", net[0].weight._data.clone()),  # type: ignore[index]
    "another object around the parts": lambda net: setattr(
        net[0].weight, "_params", Params(torch.ones(4, 1), torch.float32)
    ),  # type: ignore[index]
    "a plain weight": lambda net: setattr(net[0], "weight", nn.Parameter(torch.zeros(4, 8))),  # type: ignore[index]
    "none": lambda net: setattr(net[0], "weight", None),  # type: ignore[index]
    "another part's memory": lambda net: setattr(net[0].weight._data, "data", torch.ones(4, 8, dtype=torch.int8)),  # type: ignore[index]
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_noticed(net: nn.Module, change: str) -> None:
    store, weights = WeightStore(), [Weight((ref,)) for ref in parts(net)]
    bound = store.bind(weights, store.tensors(weights, CPU))
    CHANGES[change](net)
    assert not bound.valid()


def test_values_that_are_written_in_place_are_no_change(net: nn.Module) -> None:
    store, weights = WeightStore(), [Weight((ref,)) for ref in parts(net)]
    tensors = store.tensors(weights, CPU)
    bound = store.bind(weights, tensors)
    other = Quantised.of(torch.randn(4, 8))
    with torch.no_grad():
        net[0].weight.copy_(other)  # type: ignore[index]
    assert bound.valid() and torch.equal(tensors[0], other._data) and torch.equal(tensors[1], other._params.scale)


@pytest.mark.parametrize(
    "new",
    [
        nn.Parameter(torch.zeros(4, 8)),
        Quantised.of(torch.ones(4, 8), halved=True),
        Quantised.of(torch.ones(4, 8).half()),
    ],
    ids=["plain", "halved", "half"],
)
def test_a_weight_that_is_made_in_another_way(net: nn.Module, new: torch.Tensor) -> None:
    store, weights = WeightStore(), [Weight((ref,)) for ref in parts(net)]
    store.tensors(weights, CPU)
    net[0].weight = nn.Parameter(new, requires_grad=False)  # type: ignore[index]
    with pytest.raises(WeightsChanged, match="0.weight"):
        store.tensors(weights, CPU)


def test_the_parts_of_several_weights_may_be_packed(net: nn.Module) -> None:
    store, wholes = WeightStore(), [layer.weight for layer in net]  # type: ignore[attr-defined]
    values = [whole.dequantised() for whole in wholes]
    for place in (0, 1):
        weight = Weight((parts(net, 0)[place], parts(net, 1)[place]), PACKED)
        assert store.may_pack(weight)
        (joined,) = store.tensors([weight], CPU)
        assert joined.shape[0] == 10
    assert all(torch.equal(whole.dequantised(), value) for whole, value in zip(wholes, values, strict=True))
    assert store.restore() == 4 and all(
        torch.equal(whole.dequantised(), value) for whole, value in zip(wholes, values, strict=True)
    )


def test_nothing_holds_them(net: nn.Module) -> None:
    store, weights = WeightStore(), [Weight((ref,)) for ref in parts(net)]
    bound = store.bind(weights, store.tensors(weights, CPU))
    gone = weakref.ref(net[0].weight._data)  # type: ignore[index]
    net[0].weight = nn.Parameter(Quantised.of(torch.randn(4, 8)), requires_grad=False)  # type: ignore[index]
    gc.collect()
    assert gone() is None and not bound.readable()


def test_what_can_be_written_over_what() -> None:
    whole, plain = Quantised.of(torch.randn(4, 8)), torch.zeros(4, 8)
    assert alike(Quantised.of(torch.randn(4, 8)), whole) and alike(plain.clone(), plain)
    others = [
        plain,
        Quantised.of(torch.randn(4, 8), halved=True),
        Quantised.of(torch.randn(4, 8).half()),
        Quantised.of(torch.randn(6, 8)),
        None,
    ]
    assert (
        not any(alike(other, whole) for other in others) and not alike(whole, plain) and not alike(plain.half(), plain)
    )
