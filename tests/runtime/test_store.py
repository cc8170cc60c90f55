"""The module's own tensors, laid out as a program wants them: values, identity and freedom of the module stay what they
were.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sfast_core.runtime.store import WeightStore
from sfast_core.weights import CHANNELS_LAST, PACKED, Weight, WeightsChanged, WeightsElsewhere
from tests.runtime.stored import QKV, Net, channels_last, may_pack, packed, refs
from tests.tracing import CPU


def test_a_plain_weight_is_the_modules_own_object() -> None:
    net, store = Net(), WeightStore()
    tensors = store.tensors([packed(net, "q.weight"), packed(net, "one"), packed(net, "plain")], CPU)
    assert tensors[0] is net.q.weight and tensors[1] is net.one and tensors[2] is net.plain and store.adopted_bytes == 0


def test_packed_parameters_lie_behind_one_another() -> None:
    net, store = Net(), WeightStore()
    before = [getattr(net, name).weight.detach().clone() for name in "qkv"]
    net.q.weight.requires_grad_(False)
    net.k.weight.note = "kept"  # type: ignore[attr-defined]
    (joined,) = store.tensors([packed(net, *QKV)], CPU)
    assert torch.equal(joined, torch.cat(before)) and joined.is_contiguous() and not joined.requires_grad
    weights = [net.q.weight, net.k.weight, net.v.weight]
    assert all(
        type(weight) is nn.Parameter and torch.equal(weight, value)
        for weight, value in zip(weights, before, strict=True)
    )
    assert [weight.requires_grad for weight in weights] == [False, True, True] and net.k.weight.note == "kept"
    starts = [weight.data_ptr() - joined.data_ptr() for weight in weights]
    assert starts == [0, 128, 320] and dict(net.named_parameters())["q.weight"] is net.q.weight
    assert all(weight.untyped_storage().nbytes() == weight.nbytes for weight in weights)
    assert store.adopted_bytes == sum(weight.nbytes for weight in weights)


def test_who_writes_through_the_parameter_reaches_the_packed_tensor() -> None:
    net, store = Net(), WeightStore()
    (joined,) = store.tensors([packed(net, *QKV)], CPU)
    with torch.no_grad():
        net.k.weight.copy_(torch.full((6, 8), 3.0))
        net.v.weight.data.add_(1)
    (again,) = store.tensors([packed(net, *QKV)], CPU)
    assert again.data_ptr() == joined.data_ptr()
    assert torch.equal(joined, torch.cat([net.q.weight, net.k.weight, net.v.weight])) and bool(
        (joined[4:10] == 3).all()
    )


def test_a_replaced_parameter_is_laid_out_anew_with_the_others() -> None:
    net, store = Net(), WeightStore()
    (old,) = store.tensors([packed(net, *QKV)], CPU)
    net.k.weight = nn.Parameter(torch.randn(6, 8))
    (new,) = store.tensors([packed(net, *QKV)], CPU)
    assert torch.equal(new, torch.cat([net.q.weight, net.k.weight, net.v.weight])) and new.data_ptr() != old.data_ptr()
    assert net.q.weight.data_ptr() == new.data_ptr()


def test_a_convolution_weight_in_channels_last() -> None:
    net, store = Net(), WeightStore()
    before = net.conv.weight.detach().clone()
    (weight,) = store.tensors([channels_last(net, "conv.weight")], CPU)
    assert (
        weight is net.conv.weight
        and torch.equal(weight, before)
        and weight.is_contiguous(memory_format=torch.channels_last)
    )
    assert store.tensors([channels_last(net, "conv.weight")], CPU)[0] is weight
    net.conv.weight = nn.Parameter(torch.randn(4, 3, 3, 3))
    (weight,) = store.tensors([channels_last(net, "conv.weight")], CPU)
    assert weight is net.conv.weight and weight.is_contiguous(memory_format=torch.channels_last)


def test_buffers_and_plain_attributes_are_adopted_too() -> None:
    net, store = Net(), WeightStore()
    one, two, plain = net.one.clone(), net.two.clone(), net.plain.clone()
    (joined, image) = store.tensors([packed(net, "one", "two"), channels_last(net, "plain")], CPU)
    assert torch.equal(joined, torch.cat([one, two])) and torch.equal(image, plain) and image is net.plain
    assert (
        type(net.one) is torch.Tensor and set(dict(net.named_buffers())) == {"one", "two"} and torch.equal(net.two, two)
    )
    assert store.restore() == 3 and torch.equal(net.plain, plain) and net.plain.is_contiguous()


def test_restore_gives_each_its_own_storage_and_strides() -> None:
    net, store = Net(), WeightStore()
    net.k.weight = nn.Parameter(torch.randn(8, 6).t())
    before = {
        name: (value.detach().clone(), value.stride(), value.requires_grad)
        for name, value in net.state_dict(keep_vars=True).items()
    }
    untouched = net.q.bias
    store.tensors([packed(net, *QKV), channels_last(net, "conv.weight"), packed(net, "q.bias")], CPU)
    assert net.k.weight.stride() == (8, 1) and store.restore() == 4 and store.adopted_bytes == 0
    for name, (value, stride, grad) in before.items():
        now = net.state_dict(keep_vars=True)[name]
        assert torch.equal(now, value) and now.stride() == stride and now.requires_grad is grad
        assert now.untyped_storage().nbytes() == now.nbytes
    assert net.q.bias is untouched and store.restore() == 0


def test_restore_leaves_what_the_host_has_put_there_since() -> None:
    net, store = Net(), WeightStore()
    store.tensors([packed(net, *QKV)], CPU)
    mine = net.k.weight = nn.Parameter(torch.randn(6, 8))
    net.v.weight = None
    assert store.restore() == 1 and net.k.weight is mine


def test_a_layout_that_comes_back_after_a_restore_is_restored_again() -> None:
    net, store = Net(), WeightStore()
    store.tensors([packed(net, *QKV)], CPU)
    backup = nn.Parameter(net.q.weight.data)
    store.restore()
    net.q.weight = backup  # a host takes a LoRA off
    assert store.restore() == 1 and net.q.weight.untyped_storage().nbytes() == net.q.weight.nbytes


def test_weights_that_were_made_in_inference_mode() -> None:
    with torch.inference_mode():
        net = Net()
    store, x = WeightStore(), torch.randn(2, 8)
    with torch.inference_mode():
        expected = net.q(x)
        store.tensors([packed(net, *QKV)], CPU)
        net.q.weight.add_(1)
        net.q.weight.sub_(1)
    with torch.no_grad():
        torch.testing.assert_close(net.q(x), expected)
        (image,) = store.tensors([channels_last(net, "conv.weight")], CPU)
        assert image.stride() == (27, 1, 9, 3)
        assert store.restore() == 4 and net.q.weight.is_contiguous() and net.conv.weight.is_contiguous()
    assert all(parameter.is_inference() for parameter in net.parameters())


def test_which_weights_may_be_packed() -> None:
    net, store = Net(), WeightStore()
    q, k, v = refs(net, *QKV)
    assert may_pack(store, [q, k, v]) and may_pack(store, [q, k])
    assert not may_pack(store, [q, q])
    store.tensors([Weight((q, k), PACKED)], CPU)
    assert (
        may_pack(store, [q, k])
        and not may_pack(store, [q, k, v])
        and not may_pack(store, [k, q])
        and not may_pack(store, [q, v])
    )
    store.restore()
    assert may_pack(store, [q, k, v])
    net.k.half()
    assert not may_pack(store, [q, k, v])
    net.k.float().to("meta")
    assert not may_pack(store, [q, k, v])
    net.k.to_empty(device="cpu").weight.data = torch.zeros(6, 8)
    net.k.weight = type("Quantised", (nn.Parameter,), {})(torch.zeros(6, 8))
    assert not may_pack(store, [q, k, v])


def test_a_group_that_is_packed_may_be_packed_whoever_looks() -> None:
    net, store = Net().requires_grad_(False), WeightStore()
    group = refs(net, *QKV)
    store.tensors([Weight(group, PACKED)], CPU)
    held = net.k.weight.detach()
    assert may_pack(store, group)
    store.restore()
    assert may_pack(store, group) and held.untyped_storage().nbytes()
    held = net.k.weight.detach()
    assert not may_pack(store, group) and not may_pack(store, group[1:2]) and may_pack(store, group[:1])


def test_packed_weights_are_looked_up_where_the_pack_has_them() -> None:
    """One that moved within the pack's memory, one that shares its part, one in other strides: none is taken for the
    pack.
    """
    for change in (
        lambda net: setattr(net.q.weight, "data", net.k.weight.data[:4]),
        lambda net: setattr(net.k.weight, "data", net.k.weight.data.as_strided((6, 8), (1, 6))),
        lambda net: setattr(net.v.weight, "data", net.q.weight.data[2:]),
    ):
        net, store = Net().requires_grad_(False), WeightStore()
        source = packed(net, *QKV)
        store.tensors([source], CPU)
        change(net)
        expected = torch.cat([net.q.weight, net.k.weight, net.v.weight])
        try:
            (joined,) = store.tensors([source], CPU)
        except WeightsChanged as error:
            assert "others' too" in str(error)
        else:
            assert torch.equal(joined, expected)


def test_weights_that_differ_in_kind_are_packed_no_more() -> None:
    for change in (lambda net: net.k.half(), lambda net: setattr(net.k, "weight", nn.Parameter(torch.zeros(6, 7)))):
        net, store = Net(), WeightStore()
        source = packed(net, *QKV)
        store.tensors([source], CPU)
        change(net)
        with pytest.raises(WeightsChanged, match="q.weight and k.weight and v.weight are not of one kind any more"):
            store.tensors([source], CPU)


def test_a_weight_of_another_class_is_laid_out_no_more() -> None:
    net, store = Net(), WeightStore()
    source = channels_last(net, "conv.weight")
    store.tensors([source], CPU)
    net.conv.weight = type("Quantised", (nn.Parameter,), {"dtype": property(lambda self: torch.int8)})(
        torch.zeros(4, 3, 3, 3)
    )
    with pytest.raises(WeightsChanged, match="the weight conv.weight is a Quantised"):
        store.tensors([source], CPU)
    net.conv.register_parameter("weight", None)
    del net.conv._parameters["weight"]
    type(net.conv).weight = property(lambda self: torch.zeros(4, 3, 3, 3))  # type: ignore[assignment, method-assign]
    try:
        with pytest.raises(WeightsChanged, match="the weight conv.weight is computed anew each time"):
            store.tensors([source], CPU)
    finally:
        del type(net.conv).weight


def test_two_names_for_one_tensor_are_told() -> None:
    net, store = Net(), WeightStore()
    sources = [packed(net, "q.weight"), packed(net, "k.weight")]
    net.k.weight = net.q.weight
    with pytest.raises(WeightsChanged, match="the weights q.weight and k.weight are one tensor now"):
        store.tensors(sources, CPU)


def test_what_is_turned_lies_plain_between_calls() -> None:
    net, store = Net().requires_grad_(False), WeightStore()
    sources = [channels_last(net, "conv.weight"), packed(net, *QKV)]
    store.tensors(sources, CPU)
    address, plain, turned = net.conv.weight.data_ptr(), (27, 9, 3, 1), (27, 1, 9, 3)
    for _ in range(2):
        store.lay_plain()
        assert net.conv.weight.stride() == plain
        with store.pinned(CPU):
            assert net.conv.weight.stride() == turned
        with store.plain():
            assert net.conv.weight.stride() == plain
            with pytest.raises(WeightsElsewhere, match="at this very moment"), store.pinned(CPU):
                pass
        with store.pinned(CPU):
            assert net.conv.weight.stride() == turned and net.conv.weight.data_ptr() == address
    store.lay_plain()
    held = net.conv.weight.detach()
    with store.pinned(CPU):
        assert net.conv.weight.stride() == plain
    with pytest.raises(WeightsChanged, match="the memory of the weight conv.weight is others' too"):
        store.tensors(sources, CPU)
    del held
    store.tensors(sources, CPU)
    held = net.conv.weight.detach()
    store.lay_plain()
    assert net.conv.weight.stride() == turned and held.data_ptr() == address, "it was moved from under whoever holds it"


def test_nothing_is_laid_out_while_the_modules_own_forward_runs() -> None:
    for source in (channels_last, packed):
        net, store = Net(), WeightStore()
        sources = [source(net, "conv.weight") if source is channels_last else source(net, *QKV)]
        held = [net.conv.weight.detach(), net.q.weight.detach()]  # as an operator at work does: they are nobody's else
        with store.plain(), pytest.raises(WeightsElsewhere, match="at this very moment"):
            store.tensors(sources, CPU)
        held.clear()
        assert net.conv.weight.is_contiguous() and net.q.weight.untyped_storage().resizable()
        store.tensors(sources, CPU)
        with store.plain():
            store.renew()  # in a child of a process whose other thread was here
            store.tensors(sources, CPU)


def test_what_the_model_asks_how_it_lies_is_laid_out_no_more() -> None:
    net, store = Net(), WeightStore()
    wanted, plain = channels_last(net, "conv.weight"), net.conv.weight.stride()
    assert store.tensors([wanted], CPU)[0].stride() != plain
    store.leave(wanted.refs)
    assert net.conv.weight.stride() == plain and not store.may_pack(wanted)
    with pytest.raises(WeightsChanged, match="asks how the weight"):
        store.tensors([wanted], CPU)


def test_one_of_another_shape_lies_plain_as_its_own() -> None:
    net, store = Net(), WeightStore()
    net.conv.weight.data = torch.randn(3, 4, 3, 3).transpose(0, 1)
    own = net.conv.weight.stride()
    store.tensors([channels_last(net, "conv.weight")], CPU)
    store.lay_plain()
    assert net.conv.weight.stride() == own
    net.conv.weight = nn.Parameter(torch.randn(6, 3, 3, 3))
    store.tensors([channels_last(net, "conv.weight")], CPU)
    store.lay_plain()
    assert net.conv.weight.is_contiguous()
    for other in (nn.Parameter(torch.randn(4, 3)), type("Quantised", (nn.Parameter,), {})(torch.randn(4, 3, 3, 3))):
        net.conv.weight = other
        with store.pinned(CPU):
            assert net.conv.weight is other and other.is_contiguous()
        store.lay_plain()


def test_what_requires_gradients_is_given_back_where_they_are_recorded() -> None:
    net, store = Net().requires_grad_(False), WeightStore()
    net.k.weight.requires_grad_(True)
    sources = [packed(net, *QKV), channels_last(net, "conv.weight"), packed(net, "q.bias")]
    store.tensors(sources, CPU)
    store.leave_to_autograd()
    assert all(weight.untyped_storage().resizable() for weight in (net.q.weight, net.k.weight, net.v.weight))
    assert not net.conv.weight.is_contiguous(), "nobody wants its gradient"
    assert store.adopted_bytes == net.conv.weight.nbytes and may_pack(store, refs(net, "q.weight", "v.weight"))
    with pytest.raises(WeightsChanged, match="the weight k.weight is being trained"):
        store.tensors(sources, CPU)
    net.k.weight.requires_grad_(False)
    store.tensors(sources, CPU)
    net.conv.weight.requires_grad_(True)
    store.leave_to_autograd()
    with store.pinned(CPU):
        assert net.conv.weight.is_contiguous()


def test_the_hook_for_saving_follows_its_module_and_goes() -> None:
    net, store = Net().requires_grad_(False), WeightStore()
    convolution = Weight(refs(net, "conv.weight"), CHANNELS_LAST)
    store.tensors([convolution], CPU)
    assert len(net.conv._state_dict_pre_hooks) == 1 and net.conv.state_dict()["weight"].is_contiguous()
    store.tensors([convolution], CPU)
    assert len(net.conv._state_dict_pre_hooks) == 1
    before, net.conv = net.conv, nn.Conv2d(3, 4, 3).requires_grad_(False)
    store.tensors([channels_last(net, "conv.weight"), packed(net, *QKV)], CPU)
    assert net.conv.state_dict()["weight"].is_contiguous()
    with store.pinned(CPU):
        assert not net.conv.weight.is_contiguous()
    store.restore()
    assert not net.conv._state_dict_pre_hooks and net.conv.weight.is_contiguous() and before.weight.is_contiguous()
    net.q = nn.Linear(8, 4)
    store.tensors([packed(net, *QKV)], CPU)
    assert store.adopted_bytes == 4 * 8 * 12 and store.restore() == 3 and net.q.weight.untyped_storage().resizable()
