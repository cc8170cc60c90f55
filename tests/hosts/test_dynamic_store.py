"""The weight store under dynamic VRAM, with stand-ins for the host's virtual range and for the function that fills
it.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from sfast_core.hosts.comfy.dynamic import DynamicStore
from sfast_core.several.replica import ReplicaStore
from sfast_core.weights import PACKED, Arrival, Bound, Weight, WeightsChanged, WeightsElsewhere, WeightTable
from sfast_core.weights.part import parts_of
from tests.quantised import Quantised

DEVICE = torch.device("cpu")


class Range:
    """A virtual range whose pages a test moves: its signature counts the moves."""

    base_addr, offset = 4096, 100

    def __init__(self) -> None:
        self.moves = 0
        self.pins = 0
        self.fits = True

    def fault(self, address: int, size: int) -> Any:
        if not self.fits:
            return None
        self.pins += 1
        return (ctypes.c_uint32 * 2)(self.moves)

    def get_residency(self) -> list[int]:
        return [int(self.fits)]

    def get_watermark(self) -> int:
        return int(self.fits)

    def set_watermark(self, size: int) -> None: ...

    def unpin(self, address: int, size: int) -> None:
        self.pins -= 1


class Model(torch.nn.Module):
    """A layer in the range, and a norm of ordinary parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = torch.nn.Linear(4, 4), torch.nn.LayerNorm(4)
        self.range = Range()
        self.dynamic_vbars = {DEVICE: self.range}
        self.current_weight_patches_uuid = "plain"
        self.layer._v = ("range", 4096, 80)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Model:
    model = Model()
    model.filled = []  # type: ignore[assignment]
    weight, bias = torch.zeros(4, 4), torch.zeros(4)  # where the range keeps them: the same place at every filling

    def cast(module: Any, _: Any, dtype: Any, device: Any, bias_dtype: Any, offloadable: bool) -> Any:
        model.filled.append(model.current_weight_patches_uuid)  # type: ignore[operator]
        weight.fill_(len(model.filled))  # type: ignore[arg-type]
        module._v_weight, module._v_bias = weight, bias
        module._v_signature = model.range.fault(*module._v[1:])
        return weight, bias, None

    ops = types.SimpleNamespace(
        cast_bias_weight=cast, uncast_bias_weight=lambda module, *_: model.range.unpin(*module._v[1:])
    )
    monkeypatch.setitem(sys.modules, "comfy", types.SimpleNamespace(ops=ops))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "comfy.ops", ops)  # type: ignore[arg-type]
    return model


def sources(model: Model, *names: str) -> list[Weight]:
    table = WeightTable(model)
    found = [table.ref(model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in names]
    return [Weight((ref,)) for ref in found if ref is not None]


def test_the_range_is_filled_when_it_moved_or_the_lora_changed(model: Model) -> None:
    store = DynamicStore(model)
    wanted = sources(model, "layer.weight", "layer.bias")
    pointers = set()
    for change in (
        lambda: None,
        lambda: None,
        lambda: setattr(model, "current_weight_patches_uuid", "lora"),
        lambda: setattr(model.range, "moves", 1),
    ):
        change()
        with store.pinned(DEVICE):
            pointers.add(tuple(tensor.data_ptr() for tensor in store.tensors(wanted, DEVICE)))
            assert model.range.pins > 0
    assert model.filled == ["plain", "lora", "lora"]  # not at the second call: nothing had changed
    assert len(pointers) == 1


def again(parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    return torch.nn.Parameter(parameter.detach(), requires_grad=False)


def test_what_a_graph_may_read(model: Model) -> None:
    """Everything as it was made, and nothing in another place or made from another weight."""
    store = DynamicStore(model)
    wanted = sources(model, "layer.weight", "layer.bias", "norm.weight", "norm.bias")

    def bind() -> Bound:
        with store.pinned(DEVICE):
            return store.bind(wanted, store.tensors(wanted, DEVICE))

    bound = bind()
    assert bound.readable() and bound.valid() and bind().pointers == bound.pointers
    model.norm.weight.data.fill_(2.0)
    assert bound.valid()
    changes: dict[str, Callable[[], None]] = {
        "a weight in other pages": lambda: setattr(model.layer, "_v_weight", torch.zeros(4, 4)),
        "another range": lambda: setattr(model.layer, "_v", ("range", 8192, 80)),
        "a small weight replaced": lambda: setattr(model.norm, "bias", torch.nn.Parameter(torch.ones(4))),
        "another small weight at its address": lambda: setattr(model.norm, "weight", again(model.norm.weight)),
        "a small weight that came into the range": lambda: setattr(model.norm, "_v", ("range", 4176, 16)),
    }
    for name, change in changes.items():
        before, bound = [module.__dict__.copy() for module in (model.layer, model.norm)], bind()
        parameters = dict(model.norm._parameters)
        change()
        assert not bound.readable() and not bound.valid(), name
        for module, own in zip((model.layer, model.norm), before, strict=True):
            module.__dict__.clear()
            module.__dict__.update(own)
        model.norm._parameters.update(parameters)
        assert bound.valid(), name


def test_small_weights_are_read_at_an_address_of_our_own(model: Model) -> None:
    store = DynamicStore(model)
    wanted = sources(model, "norm.weight", "norm.bias")
    first = store.tensors(wanted, DEVICE)
    bound = store.bind(wanted, first)
    model.norm.weight = torch.nn.Parameter(torch.full((4,), 3.0))
    assert not bound.valid()
    second = store.tensors(wanted, DEVICE)
    assert store.bind(wanted, second).pointers == bound.pointers
    assert torch.equal(second[0], torch.full((4,), 3.0))


def test_another_kind_of_dynamic_vram_is_left_alone(model: Model) -> None:
    model.dynamic_vbars = {DEVICE: object()}  # type: ignore[dict-item]
    with pytest.raises(WeightsElsewhere, match="not understood"), DynamicStore(model).pinned(DEVICE):
        pytest.fail("must not be entered")


def test_a_weight_that_is_not_in_the_range_yet(model: Model) -> None:
    with pytest.raises(WeightsElsewhere, match=r"layer\.weight"):
        DynamicStore(model).tensors(sources(model, "layer.weight"), DEVICE)


def test_the_parts_of_a_quantised_weight_lie_in_pages_too(model: Model) -> None:
    store = DynamicStore(model)
    model.layer.weight = torch.nn.Parameter(Quantised.of(torch.randn(4, 4)), requires_grad=False)
    model.layer._v_weight = resident = Quantised.of(torch.randn(4, 4))
    table = WeightTable(model)
    refs = [table.find(tensor) for _, tensor in parts_of(model.layer.weight)]
    wanted = [Weight((ref,)) for ref in refs if ref is not None]
    bound = store.bind(wanted, store.tensors(wanted, DEVICE))
    assert [tensor.data_ptr() for tensor in store.tensors(wanted, DEVICE)] == [
        resident._data.data_ptr(),
        resident._params.scale.data_ptr(),
    ]
    assert bound.valid()
    # as the host makes it anew around the same pages
    model.layer._v_weight = Quantised(resident._data, resident._params)
    assert not bound.current() and store.bind(wanted, store.tensors(wanted, DEVICE)).pointers == bound.pointers
    model.layer._v_weight = Quantised.of(torch.randn(4, 4), halved=True)
    with pytest.raises(WeightsChanged, match="other parts"):
        store.tensors(wanted, DEVICE)


def test_nothing_is_packed_or_adopted(model: Model) -> None:
    store = DynamicStore(model)
    assert not store.may_pack(
        Weight(tuple(source.refs[0] for source in sources(model, "layer.weight", "norm.weight")), PACKED)
    )
    assert store.adopted_bytes == 0 and store.restore() == 0


def test_what_is_made_of_pages_is_made_anew_with_them(model: Model) -> None:
    """In 8 bits, beside the host's range, for as long as all of the model is in that."""
    store, (plain,) = DynamicStore(model), sources(model, "layer.weight")
    numbers, scales = (Weight(plain.refs, name) for name in ("int8", "int8_scales"))
    addresses, seen = set(), []
    for change in (
        lambda: None,
        lambda: None,
        lambda: setattr(model, "current_weight_patches_uuid", "lora"),
        lambda: setattr(model.range, "moves", 1),
    ):
        change()
        with store.pinned(DEVICE):
            assert store.may_pack(numbers, DEVICE)
            q, s, weight = store.tensors([numbers, scales, plain], DEVICE)
            assert torch.allclose(q * s, weight)
            bound = store.bind([numbers, plain], [q, weight])
            addresses.add((q.data_ptr(), s.data_ptr()))
            seen.append(weight.mean().item())
    assert seen == [1.0, 1.0, 2.0, 3.0] and len(addresses) == 1 and bound.valid()
    q = s = weight = None
    store.copies.drop()
    assert not bound.readable()
    store._partly = types.SimpleNamespace(away=lambda module: False, token=1)  # type: ignore[assignment]
    assert not store.may_pack(numbers, DEVICE)
    with pytest.raises(WeightsChanged, match="not all of the model is there"):
        store.resolve([numbers], DEVICE, [Arrival()])


def test_copies_for_another_device_follow_the_range(model: Model) -> None:
    store = DynamicStore(model)
    replica = ReplicaStore(store, DEVICE, DEVICE, contextlib.nullcontext(), lambda size: None)
    wanted, bound = sources(model, "layer.weight", "norm.weight"), None
    for change, valid in (
        (lambda: None, False),
        (lambda: None, True),
        (lambda: setattr(model, "current_weight_patches_uuid", "lora"), False),
        (lambda: None, True),
        (lambda: setattr(model.range, "moves", 1), False),
        (lambda: setattr(model.norm, "weight", torch.nn.Parameter(torch.full((4,), 3.0))), False),
    ):
        change()
        with store.pinned(DEVICE):
            assert (bound is not None and bound.valid()) is valid
            copies = replica.tensors(wanted, DEVICE)
            bound = replica.bind(wanted, copies)
            assert bound.valid() and all(map(torch.equal, copies, store.tensors(wanted, DEVICE)))
            assert not any(
                copy.data_ptr() == own.data_ptr()
                for copy, own in zip(copies, store.tensors(wanted, DEVICE), strict=True)
            )
    replica.release_all()
    assert not bound.readable() and replica.bytes == 0  # type: ignore[union-attr]
