"""Training beside sampling: gradients, optimizers and averages of weights are as they would be without us."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, compile
from tests.models import UNet
from tests.sampled import Net, check


def _facts(net: nn.Module) -> dict[str, Any]:
    tensors = {**dict(net.named_parameters(remove_duplicate=False)), **dict(net.named_buffers())}
    return {
        n: (id(t), t.stride(), t.requires_grad, t.is_leaf, t.untyped_storage().nbytes(), t._version, t.is_inference())
        for n, t in tensors.items()
    }


@pytest.mark.parametrize("inference", [False, True])
def test_after_uninstall_everything_is_as_it_was(inference: bool) -> None:
    with torch.inference_mode(inference):
        net = UNet()
    net.res1.conv1.weight.note = "kept"  # type: ignore[attr-defined]
    facts, expected = (
        _facts(net) if not inference else None,
        {name: value.clone() for name, value in net.state_dict().items()},
    )
    ids = [id(parameter) for parameter in net.parameters()]
    handle = compile(net, CompileConfig(allow_cpu=True))
    with torch.inference_mode(inference), torch.no_grad():
        for _ in range(3):
            handle(*UNet.inputs())
    assert handle.engine.report.adopted_bytes and handle.engine.report.calls["fused"] == 2
    assert [id(parameter) for parameter in net.parameters()] == ids
    handle.uninstall()
    assert facts is None or _facts(net) == facts
    assert [id(parameter) for parameter in net.parameters()] == ids and net.res1.conv1.weight.note == "kept"
    assert all(
        parameter.is_contiguous() and parameter.untyped_storage().nbytes() == parameter.nbytes
        for parameter in net.parameters()
    )
    assert all(torch.equal(value, expected[name]) for name, value in net.state_dict().items())
    assert not any(module._state_dict_pre_hooks for module in net.modules())


def _train(
    net: nn.Module, call: Callable[..., Any], optimizer: torch.optim.Optimizer, steps: int, sample: bool, seed: int = 1
) -> list[float]:
    torch.manual_seed(seed)
    losses = []
    for _ in range(steps):
        inputs = UNet.inputs()
        if sample:
            with torch.no_grad():
                call(*inputs)
        loss = call(*inputs).pow(2).mean()
        optimizer.zero_grad()
        if sample:
            with torch.no_grad():  # between a forward and its backward
                call(*inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("when", ["before", "after"])
def test_training_goes_on_as_without_us(when: str, fused: bool) -> None:
    torch.manual_seed(0)
    net = UNet()
    twin = copy.deepcopy(net)
    make = lambda net: torch.optim.AdamW(net.parameters(), lr=1e-2, fused=fused, foreach=False if fused else None)  # noqa: E731
    expected = _train(twin, twin, make(twin), 4, sample=False)
    handle = compile(net, CompileConfig(allow_cpu=True))
    optimizer = make(net) if when == "before" else None
    with torch.no_grad():
        for _ in range(3):
            handle(*UNet.inputs())
    assert (handle.engine.report.adopted_bytes > 0) is (when == "after")
    optimizer = optimizer or make(net)
    losses = _train(net, handle, optimizer, 4, sample=True)
    assert losses == pytest.approx(expected, rel=1e-4)
    assert {id(p) for group in optimizer.param_groups for p in group["params"]} == {id(p) for p in net.parameters()}
    assert not handle.engine.report.adopted_bytes and handle.engine.report.calls["fused"] > 2
    for mine, theirs in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
        assert mine.stride() == theirs.stride() == optimizer.state[mine]["exp_avg"].stride()
    with torch.no_grad():
        inputs = UNet.inputs()
        torch.testing.assert_close(handle(*inputs), UNet.forward(net, *inputs), rtol=1e-4, atol=1e-4)
    handle.uninstall()
    _train(net, net, optimizer, 1, sample=False)


def test_weights_that_nobody_trains_any_more_are_laid_out_again() -> None:
    net = UNet()
    handle = compile(net, CompileConfig(allow_cpu=True))
    handle(*UNet.inputs())
    with torch.no_grad():
        handle(*UNet.inputs())
    assert not handle.engine.report.adopted_bytes
    net.requires_grad_(False)
    handle.engine.reset()
    with torch.no_grad():
        handle(*UNet.inputs())
    assert handle.engine.report.adopted_bytes


def test_a_lora_is_trained_on_weights_that_stay_laid_out() -> None:
    net = UNet().requires_grad_(False)
    net.res1.emb.weight.requires_grad_(True)
    handle = compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        handle(*UNet.inputs())
    inputs = UNet.inputs()
    loss = handle(*inputs).sum()
    with torch.no_grad():
        handle(*UNet.inputs())
    loss.backward()
    mine, net.res1.emb.weight.grad = net.res1.emb.weight.grad, None
    UNet.forward(net, *inputs).sum().backward()
    torch.testing.assert_close(mine, net.res1.emb.weight.grad)
    assert handle.engine.report.adopted_bytes and not net.res1.conv1.weight.is_contiguous()


def test_a_backward_that_was_pending_when_weights_were_laid_out() -> None:
    net = UNet()
    inputs = UNet.inputs()
    twin = copy.deepcopy(net)
    twin(*inputs).sum().backward()
    loss = net(*inputs).sum()  # before it is compiled
    handle = compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for _ in range(3):
            handle(*UNet.inputs())
    loss.backward()
    for mine, theirs in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_an_average_of_weights_follows_and_is_sampled_from() -> None:
    net = UNet()
    average = torch.optim.swa_utils.AveragedModel(
        net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)
    ).eval()
    handles = [compile(net, CompileConfig(allow_cpu=True)), compile(average.module, CompileConfig(allow_cpu=True))]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        _train(net, handles[0], optimizer, 1, sample=True)
        average.update_parameters(net)
        with torch.no_grad():
            for handle in handles:
                inputs = UNet.inputs()
                torch.testing.assert_close(handle(*inputs), UNet.forward(handle.module, *inputs), rtol=1e-4, atol=1e-4)
    assert handles[1].engine.report.adopted_bytes and not handles[0].engine.report.adopted_bytes


def test_parameters_that_are_views_of_a_flat_buffer_stay_in_it() -> None:
    net = UNet().requires_grad_(False)
    flat = nn.utils.parameters_to_vector(net.parameters()).clone()
    nn.utils.vector_to_parameters(flat, net.parameters())
    handle = compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for factor in (1.0, 0.5, 1.5):
            flat.mul_(factor)
            inputs = UNet.inputs()
            torch.testing.assert_close(handle(*inputs), UNet.forward(net, *inputs), rtol=1e-4, atol=1e-4)
    assert {p.untyped_storage().data_ptr() for p in net.parameters()} == {flat.untyped_storage().data_ptr()}
    assert torch.equal(nn.utils.parameters_to_vector(net.parameters()), flat) and not handle.engine.report.adopted_bytes
    handle.uninstall()
    assert {p.untyped_storage().data_ptr() for p in net.parameters()} == {flat.untyped_storage().data_ptr()}


# -- gradients of what is no parameter -----------------------------------------------------------------------------


def _net_with(tensor: torch.Tensor, where: str) -> nn.Module:
    net = Net().requires_grad_(False)
    if where == "a buffer":
        net.scale = tensor
    else:
        net.shift = tensor
    return net


@pytest.mark.parametrize("where", ["an attribute", "a buffer"])
@pytest.mark.parametrize("first", ["no_grad", "grad"])
def test_a_tensor_that_requires_grad_gets_its_gradient(where: str, first: str) -> None:
    tensor = torch.ones(8, requires_grad=True)
    handle = compile(_net_with(tensor, where), CompileConfig(allow_cpu=True))
    if first == "no_grad":
        with torch.no_grad():
            check(handle), check(handle)
    for _ in range(3):
        result = handle(Net.inputs())
        assert result.requires_grad
        result.sum().backward()
        assert tensor.grad is not None
    with torch.no_grad():
        for _ in range(4):
            check(handle)
    assert handle.engine.report.calls["fused"]


def test_a_tensor_that_requires_grad_from_some_call_on_gets_its_gradient() -> None:
    handle = compile(Net().requires_grad_(False), CompileConfig(allow_cpu=True))
    x = Net.inputs()
    for _ in range(3):
        assert not handle(x).requires_grad
    handle.module.shift.requires_grad_(True)
    assert handle(x).requires_grad and handle.engine.report.reasons
    handle.module.shift = handle.module.shift.detach()
    assert not handle(x).requires_grad


def test_a_forward_that_turns_gradients_on_itself_returns_what_it_returns() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                return self.layer(x)

    handle = compile(Inner(), CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for _ in range(4):
            assert handle(torch.randn(2, 8)).requires_grad
