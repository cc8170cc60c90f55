"""Weights between two calls: however one is changed, the next result is that of the weights that are there; and who
holds them notices nothing.
"""

from __future__ import annotations

import copy
import io
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, CompiledModule, compile
from tests.capturing import pretend_graphs
from tests.models import UNet
from tests.sampled import Net, check


@pytest.fixture(params=["fused", "captured"])
def handle(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[CompiledModule]:
    """A compiled :class:`Net` that nobody trains: run kernel by kernel, or on a device that captures."""
    if request.param == "captured":
        pretend_graphs(monkeypatch)
    with torch.no_grad():
        found = compile(Net().requires_grad_(False), CompileConfig(allow_cpu=True))
        check(found), check(found), check(found)
        calls = found.engine.report.calls
        assert (
            calls["traced"] == 1
            and calls["replayed" if request.param == "captured" else "fused"] == 2
            and found.engine.report.adopted_bytes
        )
        yield found


def _new(tensor: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(torch.randn_like(tensor, memory_format=torch.contiguous_format), requires_grad=False)


def _other(net: Net, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    return {name: torch.randn(value.shape).to(dtype) for name, value in net.state_dict().items()}


CHANGES: dict[str, Callable[[Net], object]] = {
    "a tied weight at its second address": lambda net: setattr(net.second, "weight", _new(net.second.weight)),
    "a tied weight at its first address": lambda net: setattr(net.first, "weight", _new(net.first.weight)),
    "a tied weight gone at its second address": lambda net: setattr(
        net.second, "weight", nn.Parameter(torch.zeros(8, 8), requires_grad=False)
    ),
    "a tied weight at both, alike": lambda net: [
        setattr(net.first, "weight", _new(net.first.weight)),
        setattr(net.second, "weight", net.first.weight),
    ],
    "two of a pack become one": lambda net: setattr(net.k, "weight", net.q.weight),
    "one of a pack and a plain one become one": lambda net: setattr(net.k, "weight", net.first.weight),
    "two plain ones become one": lambda net: setattr(net, "shift", net.scale),
    "two of a pack on the same memory": lambda net: setattr(
        net.k, "weight", nn.Parameter(net.v.weight.data, requires_grad=False)
    ),
    "load_state_dict": lambda net: net.load_state_dict(_other(net)),
    "load_state_dict(assign=True)": lambda net: net.load_state_dict(_other(net), assign=True),
    "load_state_dict(assign=True) of another dtype": lambda net: net.q.load_state_dict(
        {name: value.double() for name, value in net.q.state_dict().items()}, assign=True
    ),
    "data of a packed one": lambda net: setattr(net.q.weight, "data", torch.randn(8, 8)),
    "data of a convolution": lambda net: setattr(net.conv.weight, "data", torch.randn(4, 2, 3, 3)),
    "data in other strides": lambda net: setattr(net.first.weight, "data", net.first.weight.data.t()),
    "data of a packed one in other strides": lambda net: setattr(net.k.weight, "data", net.k.weight.data.t()),
    "a buffer reversed in its own memory": lambda net: setattr(
        net.scale, "data", net.scale.data.as_strided((8,), (0,))
    ),
    "half of one layer": lambda net: net.q.half(),
    "half of a convolution": lambda net: setattr(net.conv.weight, "data", net.conv.weight.data.half()),
    "double of all": lambda net: net.double().float(),
    "a bias gone": lambda net: setattr(net.q, "bias", None),
    "a bias of a convolution gone": lambda net: setattr(net.conv, "bias", None),
    "a buffer of another dtype": lambda net: setattr(net, "scale", torch.rand(8).half()),
    "a buffer of another shape": lambda net: setattr(net, "scale", torch.rand(1, 1, 8)),
    "a buffer of one": lambda net: setattr(net, "scale", torch.rand(1)),
    "an attribute of another shape": lambda net: setattr(net, "shift", torch.rand(6, 8)),
    "an attribute with the same bits": lambda net: setattr(net, "shift", net.shift.view(torch.int32)),
    "an attribute's dtype in its own memory": lambda net: setattr(net.shift, "data", net.shift.data.view(torch.int32)),
    "the dtype of a packed one in its own memory": lambda net: setattr(
        net.k.weight, "data", (net.k.weight.data * 1e-3).int().float().view(torch.int32)
    ),
    "the dtype of a packed one at the very address": lambda net: setattr(
        net.k.weight, "data", net.k.weight.data.zero_().view(torch.int32).fill_(2)
    ),
    "in place": lambda net: [parameter.mul_(1.5) for parameter in net.parameters()],
    "channels_last by the module": lambda net: net.to(memory_format=torch.channels_last),
    "vector_to_parameters": lambda net: nn.utils.vector_to_parameters(
        torch.randn(sum(p.numel() for p in net.parameters())), net.parameters()
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_next_result_is_that_of_the_weights_that_are_there(change: str, handle: CompiledModule) -> None:
    before = handle(x := Net.inputs())
    CHANGES[change](handle.module)
    torch.testing.assert_close(handle(x), Net.forward(handle.module, x), rtol=1e-4, atol=1e-4)
    assert (
        change == "channels_last by the module"
        or change.startswith("double")
        or not torch.equal(before, Net.forward(handle.module, x))
    )
    check(handle), check(handle)
    for parameter in handle.module.parameters():
        parameter.add_(1)
    check(handle)
    assert "the fused forward failed" not in str(dict(handle.engine.report.reasons))
    handle.uninstall()
    x = Net.inputs()
    torch.testing.assert_close(handle.module(x), Net.forward(handle.module, x), rtol=0, atol=0)


def test_a_bias_that_comes_again_is_used(handle: CompiledModule) -> None:
    bias, handle.module.q.bias = handle.module.q.bias, None
    check(handle), check(handle)
    handle.module.q.bias = nn.Parameter(bias + 1, requires_grad=False)
    check(handle), check(handle)


def test_a_weight_of_another_kind_is_named(handle: CompiledModule, caplog: pytest.LogCaptureFixture) -> None:
    handle.module.conv.weight.data = handle.module.conv.weight.data.half()
    with caplog.at_level("INFO", logger="fast_compile"):
        check(handle)
    assert (
        "the weight conv.weight channels_last is float16[4, 2, 3, 3]" in caplog.text
        or "dtype of a weight" in caplog.text
    )


@pytest.mark.parametrize("alias", ["detach", "data", "view", "state_dict", "numpy"])
@pytest.mark.parametrize("name", ["q.weight", "conv.weight", "first.weight", "scale"])
def test_who_holds_a_weights_memory_from_before_still_writes_to_it(name: str, alias: str) -> None:
    net = Net().requires_grad_(False)
    held: Any = {
        "detach": lambda: net.get_parameter(name).detach() if "." in name else net.get_buffer(name).detach(),
        "data": lambda: (net.state_dict(keep_vars=True)[name]).data,
        "view": lambda: net.state_dict(keep_vars=True)[name].view(-1),
        "state_dict": lambda: net.state_dict()[name],
        "numpy": lambda: net.state_dict(keep_vars=True)[name].numpy(),
    }[alias]()
    with torch.no_grad():
        handle = compile(net, CompileConfig(allow_cpu=True))
        check(handle), check(handle)
        before = handle(x := Net.inputs())
        held *= -3
        torch.testing.assert_close(handle(x), Net.forward(net, x), rtol=1e-4, atol=1e-4)
        assert not torch.equal(handle(x), before)


# -- saving --------------------------------------------------------------------------------------------------------


def _sampled(net: nn.Module) -> CompiledModule:
    handle = compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for _ in range(3):
            handle(*UNet.inputs())
    assert handle.engine.report.adopted_bytes and not net.conv_in.weight.is_contiguous()
    return handle


@pytest.mark.parametrize("part", ["", "res1", "res1.conv1", "blocks.0.attn1"])
def test_a_state_dict_is_plain_and_still_the_modules(part: str) -> None:
    handle = _sampled(UNet())
    module = handle.module.get_submodule(part)
    saved = module.state_dict()
    assert all(value.is_contiguous() for value in saved.values())
    tensors = dict(module.named_parameters())
    assert all(
        saved[name].data_ptr() == tensor.data_ptr() and torch.equal(saved[name], tensor)
        for name, tensor in tensors.items()
    )
    inputs = UNet.inputs()
    with torch.no_grad():
        handle(*inputs)  # while it is held
        for value in saved.values():
            value.mul_(1.25)
        torch.testing.assert_close(handle(*inputs), UNet.forward(handle.module, *inputs), rtol=1e-4, atol=1e-4)
    assert all(torch.equal(saved[name], tensor) for name, tensor in tensors.items())


def test_asking_for_a_state_dict_changes_no_address_and_traces_nothing() -> None:
    handle = _sampled(UNet())
    addresses = [parameter.data_ptr() for parameter in handle.module.parameters()]
    for _ in range(2):
        names = list(handle.module.state_dict())
        with torch.no_grad():
            handle(*UNet.inputs())
        assert names == list(UNet().state_dict()) and not handle.module.conv_in.weight.is_contiguous()
    assert [parameter.data_ptr() for parameter in handle.module.parameters()] == addresses
    assert handle.engine.report.calls == {"traced": 1, "fused": 4}


def test_safetensors_saves_a_compiled_module(tmp_path: Any) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    handle = _sampled(UNet())
    expected = UNet.forward(handle.module, *(inputs := UNet.inputs()))
    for save in (
        lambda path: safetensors.save_file(handle.module.state_dict(), path),
        lambda path: safetensors.save_model(handle.module, path),
    ):
        with torch.no_grad():
            handle(*UNet.inputs())
        save(tmp_path / "weights.safetensors")
        fresh = UNet()
        fresh.load_state_dict(safetensors.load_file(tmp_path / "weights.safetensors"))
        torch.testing.assert_close(fresh(*inputs), expected)


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_a_copys_state_dict_is_plain_too(way: str) -> None:
    handle = _sampled(UNet())
    net = copy.deepcopy(handle.module) if way == "deepcopy" else pickle.loads(pickle.dumps(handle.module))
    assert all(value.is_contiguous() for value in net.state_dict().values())
    assert not handle.module.conv_in.weight.is_contiguous(), "the copy's hook is the module's"
    inputs = UNet.inputs()
    torch.testing.assert_close(net(*inputs), UNet.forward(handle.module, *inputs))


def test_a_saved_file_is_as_large_as_the_weights() -> None:
    handle, plain = _sampled(UNet()), UNet()
    sizes = []
    for module in (handle.module, plain):
        file = io.BytesIO()
        torch.save(module.state_dict(), file)
        sizes.append(file.tell())
    assert sizes[0] <= sizes[1] * 1.01


# -- other people's code ------------------------------------------------------------------------------------------------


class Looks(UNet):
    """A forward that takes views of its convolutions' weights where it is told to."""

    looking = False

    def forward(self, x: torch.Tensor, t: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        result = super().forward(x, t, context)
        if self.looking:
            result = result + self.conv_in.weight.view(16, -1).sum() + self.res1.conv1.weight.view(32, -1).sum()
        return result


def test_the_modules_own_forward_finds_plain_weights() -> None:
    net, inputs = Looks(), UNet.inputs(batch=3)
    twin = copy.deepcopy(net)
    handle = _sampled(net)
    addresses = [parameter.data_ptr() for parameter in net.parameters()]
    net.looking = twin.looking = True
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(handle(*inputs), twin(*inputs), rtol=1e-4, atol=1e-4)
        assert torch.equal(handle.engine.run_eager("a reason", lambda: Looks.forward(net, *inputs)), twin(*inputs))
    assert [parameter.data_ptr() for parameter in net.parameters()] == addresses


def test_after_lay_plain_a_view_can_be_taken_and_graphs_stay(handle: CompiledModule) -> None:
    net, calls = handle.module, dict(handle.engine.report.calls)
    address = net.conv.weight.data_ptr()
    handle.engine.lay_plain()
    values = net.conv.weight.view(4, -1).clone()
    assert net.conv.weight.data_ptr() == address
    check(handle)
    assert net.conv.weight.stride() == (18, 1, 6, 2) and torch.equal(net.conv.weight.reshape(4, -1), values)
    way = "replayed" if calls.get("replayed") else "fused"
    assert dict(handle.engine.report.calls) == {**calls, way: calls[way] + 1}
    assert [signature.captures for signature in handle.engine.report.signatures] == [int(way == "replayed")]


def test_weights_are_not_turned_while_another_thread_reads_them(handle: CompiledModule) -> None:
    running, done = threading.Event(), threading.Event()
    seen: list[tuple[int, ...]] = []

    def eager() -> None:
        running.set()
        done.wait(10)
        seen.append(handle.module.conv.weight.stride())

    thread = threading.Thread(target=lambda: handle.engine.run_eager("a reason", eager))
    thread.start()
    running.wait(10)
    try:
        check(handle)
        assert handle.module.conv.weight.is_contiguous()
        assert any("at this very moment" in reason for reason in handle.engine.report.reasons)
    finally:
        done.set()
        thread.join()
    assert seen == [(18, 9, 3, 1)]
    traced = handle.engine.report.calls["traced"]
    check(handle), check(handle)
    assert handle.module.conv.weight.stride() == (18, 1, 6, 2) and handle.engine.report.calls["traced"] == traced


@pytest.mark.parametrize("at", range(0, 400, 7))
def test_an_interruption_while_weights_are_laid_out_loses_none(at: int) -> None:
    """Ctrl-C behind any line of ours."""
    net = UNet()
    expected = {name: value.clone() for name, value in net.state_dict().items()}
    handle = compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        handle(*UNet.inputs())
    left = at

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(
            ("weights/memory.py", "runtime/store.py", "weights/packed.py", "weights/channels_last.py")
        ):
            return trace if "sfast_core" in frame.f_code.co_filename else None
        left -= event == "line"
        if left < 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        with torch.no_grad():
            handle.engine.lay_plain()
            handle(*UNet.inputs())
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    assert all(torch.equal(value, expected[name]) for name, value in net.state_dict().items())
    inputs = UNet.inputs()
    with torch.no_grad():
        torch.testing.assert_close(handle(*inputs), UNet.forward(net, *inputs), rtol=1e-4, atol=1e-4)
    handle.uninstall()
    assert all(torch.equal(value, expected[name]) and value.is_contiguous() for name, value in net.state_dict().items())


def test_strides_that_do_not_matter_trace_nothing() -> None:
    handle = _sampled(UNet())
    weight = torch.randn(32, 16, 1, 1).as_strided((32, 16, 1, 1), (16, 1, 16, 16))
    handle.module.res1.skip.weight = nn.Parameter(weight)
    inputs = UNet.inputs()
    with torch.no_grad():
        torch.testing.assert_close(handle(*inputs), UNet.forward(handle.module, *inputs), rtol=1e-4, atol=1e-4)
    assert handle.engine.report.calls == {"traced": 1, "fused": 3}
