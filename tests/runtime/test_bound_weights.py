"""Weights that a graph reads: when they are valid no more, what is told where they are gone, and that nothing is kept
alive by them.
"""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from sfast_core.runtime.store import WeightStore
from sfast_core.weights import WeightsElsewhere
from tests.runtime.stored import QKV, Net, channels_last, may_pack, packed, refs
from tests.tracing import CPU


def test_a_weight_on_another_device_is_told_before_anything_is_laid_out() -> None:
    net, store = Net(), WeightStore()
    net.conv.to("meta")
    with pytest.raises(WeightsElsewhere, match="the weight conv.weight is on meta, not on cpu"):
        store.tensors([packed(net, *QKV), packed(net, "conv.weight")], CPU)
    assert store.adopted_bytes == 0 and net.q.weight.untyped_storage().nbytes() == net.q.weight.nbytes


def test_a_weight_that_is_gone_is_told() -> None:
    net, store = Net(), WeightStore()
    source = packed(net, "q.bias")
    net.q.bias = None
    with pytest.raises(ReferenceError, match="the weight q.bias is no tensor any more"):
        store.tensors([source], CPU)
    del net
    with pytest.raises(ReferenceError, match="the module that held the weight q.bias is gone"):
        store.tensors([source], CPU)


def test_what_makes_bound_weights_invalid() -> None:
    net, store = Net(), WeightStore()
    sources = [packed(net, *QKV), channels_last(net, "conv.weight"), packed(net, "one"), packed(net, "plain")]

    def bind() -> object:
        return store.bind(sources, store.tensors(sources, CPU))

    bound = bind()
    assert bound.valid() and len(bound.pointers) == 4
    with torch.no_grad():
        net.q.weight.mul_(2)
        net.plain.zero_()
    assert bound.valid() and bind().pointers == bound.pointers
    changes = {
        "a parameter replaced": lambda: setattr(net.q, "weight", nn.Parameter(net.q.weight.detach().clone())),
        "other data": lambda: setattr(net.k.weight, "data", net.k.weight.detach().clone()),
        "other strides": lambda: setattr(
            net.conv, "weight", nn.Parameter(net.conv.weight.detach().as_strided((4, 3, 3, 3), (27, 9, 3, 1)))
        ),
        "a buffer": lambda: setattr(net, "one", net.one.clone()),
        "a plain attribute": lambda: setattr(net, "plain", net.plain.clone()),
        "another dtype": lambda: setattr(net, "plain", net.plain.view(torch.int32)),
        "nothing there": lambda: setattr(net.conv, "weight", None),
    }
    for name, change in changes.items():
        bound = bind()
        change()
        assert not bound.valid(), name


def test_a_weight_that_is_put_back_is_the_one_that_was_bound() -> None:
    """A host keeps what a LoRA has replaced, and nothing but what the module computes with is read."""
    net, store = Net(), WeightStore()
    sources = [packed(net, *QKV)]
    bound = store.bind(sources, store.tensors(sources, CPU))
    kept = net.q.weight
    net.q.weight = nn.Parameter(kept.detach().clone())
    assert not bound.readable()
    net.q.weight = kept
    assert bound.valid()
    net.q.weight = nn.Parameter(kept.detach().clone())
    del kept
    assert not bound.readable()


def test_neither_a_store_nor_what_it_bound_keeps_a_module_alive() -> None:
    net, store = Net(), WeightStore()
    sources = [packed(net, *QKV), packed(net, "one"), packed(net, "plain")]
    bound = store.bind(sources, store.tensors(sources, CPU))
    net.__dict__["_compiled_state"] = (store, bound, sources)  # as the engine lives
    alive = [weakref.ref(net), weakref.ref(net.q), weakref.ref(net.q.weight), weakref.ref(net.plain)]
    gc.collect()
    gc.disable()
    try:
        del net, sources, bound
        assert [ref() for ref in alive] == [None] * 4 and store.adopted_bytes == 0 and store.restore() == 0
    finally:
        gc.enable()


def test_after_a_restore_nothing_is_known_of_modules_that_are_gone() -> None:
    net, store = Net(), WeightStore()
    store.tensors([packed(net, *QKV)], CPU)
    net.k = nn.Linear(8, 6)
    assert not may_pack(store, refs(net, "k.weight", "v.weight"))
    store.restore()
    assert may_pack(store, refs(net, "k.weight", "v.weight")) and store.adopted_bytes == 0


def test_inference_tensors_stay_laid_out_where_gradients_are_recorded() -> None:
    with torch.inference_mode():
        net = Net()
    store = WeightStore()
    sources = [packed(net, *QKV), channels_last(net, "conv.weight")]
    store.tensors(sources, CPU)
    adopted = store.adopted_bytes
    store.leave_to_autograd()
    assert net.q.weight.requires_grad and store.adopted_bytes == adopted
    net.k.weight = nn.Parameter(torch.randn(6, 8), requires_grad=False)
    store.tensors(sources, CPU)
