"""What a compiled module does at each call: the fused program where it is known to be right, else its own forward, with
the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompiledModule
from tests.callers import calls, check, compiled, own
from tests.models import Forward, TransformerBlock, UNet, diffusers_unet
from tests.tracing import same

pytestmark = pytest.mark.usefixtures("no_gradients")


def reasons(handle: CompiledModule) -> dict[str, int]:
    return dict(handle.engine.report.reasons)


# -- the fused path ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
def test_the_fused_program_gives_what_eager_gives(dtype: torch.dtype, tolerance: float) -> None:
    handle = compiled(UNet().to(dtype))
    for _ in range(3):
        check(handle, *UNet.inputs(dtype=dtype), tolerance=tolerance)
    assert calls(handle) == {"traced": 1, "fused": 2} and reasons(handle) == {}
    inputs = UNet.inputs(dtype=dtype)
    assert torch.equal(handle(*inputs), handle(*inputs))


def test_the_same_inputs_give_the_same_bits_from_the_first_call_on() -> None:
    handle, inputs = compiled(), UNet.inputs()
    first = handle(*inputs)
    assert calls(handle) == {"traced": 1}
    assert torch.equal(handle(*inputs), first) and torch.equal(handle(*inputs), first)


@pytest.mark.parametrize("sdxl", [False, True], ids=["SD1.5", "SDXL"])
def test_diffusers_unets(sdxl: bool) -> None:
    handle = compiled(diffusers_unet(sdxl))
    for _ in range(3):
        more = {"added_cond_kwargs": {"text_embeds": torch.randn(2, 32), "time_ids": torch.rand(2, 6)}} if sdxl else {}
        arguments = (torch.randn(2, 4, 8, 8), torch.tensor(500.0), torch.randn(2, 5, 12))
        result = handle(*arguments, **more)
        torch.testing.assert_close(result.sample, own(handle, *arguments, **more).sample, rtol=1e-4, atol=1e-5)
    report = handle.engine.report.signatures[0]
    assert (
        calls(handle) == {"traced": 1, "fused": 2}
        and report.passes["fuse_linear"] >= 3
        and report.passes["pack_qkv"] >= 9
    )


class ByMode(nn.Module):
    """Branches on PyTorch's settings."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * (2 if torch.is_grad_enabled() else 3)
        y = y + (5 if torch.is_inference_mode_enabled() else 7)
        return y * (11 if torch.are_deterministic_algorithms_enabled() else 13)


def test_a_call_under_other_settings_has_a_program_of_its_own() -> None:
    handle, x = compiled(ByMode()), torch.randn(2, 3)
    try:
        for _ in range(2):
            for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
                for deterministic in (False, True):
                    torch.use_deterministic_algorithms(deterministic)
                    with mode():
                        check(handle, x)
    finally:
        torch.use_deterministic_algorithms(False)
    assert calls(handle) == {"traced": 6, "fused": 6} and reasons(handle) == {}
    assert len({signature.inputs for signature in handle.engine.report.signatures}) == 6


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad], ids=["inference_mode", "no_grad"])
def test_results_look_as_eagers_do(mode: Any) -> None:
    twin = UNet()
    handle = compiled(UNet())
    handle.load_state_dict(twin.state_dict())
    with mode():
        for x, t, context in (UNet.inputs(), UNet.inputs(), UNet.inputs()):
            result, expected = handle(x, t, context), twin(x, t, context)
            assert result.stride() == expected.stride() and result.is_inference() == expected.is_inference()
            torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


def test_structured_results_and_arguments() -> None:
    def function(net: Any, x: torch.Tensor, options: Any = None, *, scale: float = 1.0) -> Any:
        y = net.lin(x) * scale
        return {"y": [y, None], "more": (y + options["add"][0] if options else y, "word", x)}

    handle = compiled(Forward(function, lin=nn.Linear(4, 4)))
    for _ in range(2):
        for arguments in ({}, {"scale": 2.0}, {"options": {"add": [torch.randn(2, 4)]}}, {"options": {}}):
            x = torch.randn(2, 4)
            same(handle(x, **arguments), own(handle, x, **arguments))
    assert calls(handle) == {"traced": 4, "fused": 4}


def test_a_result_shares_no_memory_with_the_module_or_another_result() -> None:
    handle = compiled(
        Forward(lambda net, x: (x * 1, net.lin.weight.t() * 1, net.lin(x), *net.lin(x).chunk(2)), lin=nn.Linear(4, 4))
    )
    x = torch.randn(2, 4)
    first, second, third = (handle(x) for _ in range(3))
    expected = [result.clone() for result in second]
    for result in (*first, *third):
        result.fill_(7)
    assert not (x == 7).any() and not (handle.module.lin.weight == 7).any()
    assert all(map(torch.equal, second, expected)) and all(map(torch.equal, handle(x), expected))


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.transpose(2, 3),
        lambda x: x.to(memory_format=torch.channels_last),
        lambda x: x[:1].expand_as(x),
        lambda x: x.flip(0)[:, :, ::1],
    ],
    ids=["transposed", "channels_last", "expanded", "flipped"],
)
def test_inputs_of_any_layout(change: Any) -> None:
    handle = compiled()
    for _ in range(2):
        for turn in (lambda x: x, change):
            x, t, context = UNet.inputs()
            check(handle, turn(x), t, context)
    assert calls(handle) == (
        {"traced": 1, "fused": 3} if change(x).stride() == x.stride() else {"traced": 2, "fused": 2}
    )


def test_a_new_shape_or_another_number_of_inputs_is_traced() -> None:
    net = Forward(lambda net, x, *more: sum(more, net.lin(x)), lin=nn.Linear(4, 4))
    handle = compiled(net)
    x = torch.randn(2, 4)
    for _ in range(2):
        for arguments in (
            (x,),
            (x, x),
            (x, x.clone()),
            (torch.randn(3, 4),),
            (x, torch.randn(4)),
            (x, 1.5),
            (x, 1),
            (x, 2),
        ):
            check(handle, *arguments)
    assert calls(handle) == {"traced": 8, "fused": 8}


def test_the_signatures_used_last_are_kept() -> None:
    handle = compiled(max_signatures=2)
    for size in (8, 16, 8, 24, 8, 16):
        check(handle, *UNet.inputs(size=size))
    assert calls(handle) == {"traced": 4, "fused": 2} and len(handle.engine.report.signatures) == 2


def test_signatures_that_run_eager_are_kept_as_long() -> None:
    """Else one that is called all the time would be traced, in vain, whenever others have come between."""
    handle = compiled(
        Forward(lambda net, x: net.lin(x) * (x.sum().item() if x.shape[0] == 2 else 1.0), lin=nn.Linear(4, 4)),
        max_signatures=2,
    )
    for rows in (2, 3, 2, 4, 2):
        check(handle, torch.randn(rows, 4))
    assert calls(handle) == {"traced": 3, "eager": 2}


# -- weights and structure -----------------------------------------------------------------------------------------


def test_weights_are_followed_without_a_trace() -> None:
    handle = compiled()
    check(handle, *UNet.inputs())
    attention = handle.module.blocks[0].attn1
    attention.to_q.weight.mul_(2)
    check(handle, *UNet.inputs())
    before, attention.to_k.weight = attention.to_k.weight, nn.Parameter(torch.randn(32, 32))
    check(handle, *UNet.inputs())
    attention.to_k.weight = before
    check(handle, *UNet.inputs())
    handle.load_state_dict(UNet().state_dict())
    check(handle, *UNet.inputs())
    assert calls(handle) == {"traced": 1, "fused": 4}


@pytest.mark.parametrize("name", ["child", "attribute", "forward", "dtype"])
def test_a_change_below_the_module_is_traced_anew(name: str) -> None:
    handle = compiled(TransformerBlock(8, 12).eval())
    net, inputs = handle.module, (torch.randn(2, 5, 8), torch.randn(2, 3, 12))
    check(handle, *inputs)
    if name == "child":
        net.norm1 = nn.Identity()
    elif name == "attribute":
        net.attn1.heads = 4
    elif name == "forward":
        net.attn2.forward = lambda x, context: x * 2
    else:
        net.double()
        inputs = tuple(x.double() for x in inputs)
    for _ in range(2):
        check(handle, *inputs)
    assert calls(handle) == {"traced": 2, "fused": 1}


def test_a_change_is_looked_for_by_each_signature_when_it_is_called() -> None:
    handle = compiled(TransformerBlock(8, 12).eval())
    two, three = ((torch.randn(rows, 5, 8), torch.randn(rows, 3, 12)) for rows in (2, 3))
    for inputs in (two, three, two):
        check(handle, *inputs)
    handle.module.attn1.heads = 4
    check(handle, *two)
    assert calls(handle) == {"traced": 3, "fused": 1}
    handle.module.attn1.heads = 2  # as it was when the other one was traced
    check(handle, *three)
    assert calls(handle) == {"traced": 3, "fused": 2}
    check(handle, *two)
    assert calls(handle) == {"traced": 3, "fused": 3} and len(handle.engine.report.signatures) == 3


def _step_in_a_block(net: nn.Module, step: int) -> dict[str, Any]:
    net.step = step
    return {}


#: name: what changes before a call, and the options of that
CHANGES_AT_EACH_CALL: dict[str, tuple[Callable[[nn.Module, int], dict[str, Any]], str]] = {
    "an attribute": (_step_in_a_block, "step changed"),
    "an option": (lambda net, step: {"options": {"step": step}}, "kwargs['options']['step'] keeps changing"),
}


@pytest.mark.parametrize("name", CHANGES_AT_EACH_CALL)
def test_what_is_different_at_each_call_is_not_traced_for_ever(name: str) -> None:
    change, reason = CHANGES_AT_EACH_CALL[name]
    handle = compiled(Forward(lambda net, x, options=None: net.lin(x) * getattr(net, "step", 1), lin=nn.Linear(4, 4)))
    for step in range(40):
        check(handle, torch.randn(2, 4), **change(handle.module, step))
    assert calls(handle) == {"traced": 13, "eager": 27}
    assert set(reasons(handle)) == {f"it would be traced at nearly every call: {reason}"}
    for _ in range(40):  # it has an end
        check(handle, torch.randn(2, 4))
    assert calls(handle)["traced"] == 14 and calls(handle)["fused"] > 0


def test_a_call_that_changes_its_module_and_an_option_is_not_recorded_for_ever() -> None:
    def counted(net: Any, x: torch.Tensor, options: Any = None) -> torch.Tensor:
        net.calls = getattr(net, "calls", 0) + 1
        result: torch.Tensor = net.lin(x)
        return result

    handle = compiled(Forward(counted, lin=nn.Linear(4, 4)))
    for step in range(40):
        check(handle, torch.randn(2, 4), {"step": step})
    assert any("at nearly every call" in reason for reason in reasons(handle)), reasons(handle)


def test_signatures_that_push_each_other_out_are_named() -> None:
    handle = compiled(Forward(lambda net, x: net.lin(x), lin=nn.Linear(4, 4)), max_signatures=2)
    for call in range(60):
        check(handle, torch.randn(1 + call % 3, 4))
    assert set(reasons(handle)) == {"it would be traced at nearly every call: more than 2 signatures take turns"}


def test_a_few_options_that_come_again_are_all_traced_at_once() -> None:
    """As many prompts, each for a region of the picture."""
    handle = compiled(Forward(lambda net, x, options=None: net.lin(x) * options, lin=nn.Linear(4, 4)))
    for step in range(8 * 3):
        check(handle, torch.randn(2, 4), step % 8)
    assert calls(handle) == {"traced": 8, "fused": 16}


def test_a_layer_with_hooks_runs_live_until_they_are_gone() -> None:
    handle = compiled()
    hook = handle.module.down.register_forward_hook(lambda *args: args[-1] * 2)
    for _ in range(4):
        check(handle, *UNet.inputs())
    assert calls(handle) == {"eager": 1, "traced": 1, "fused": 2} and "down has forward hooks" in next(
        iter(reasons(handle))
    )
    hook.remove()
    for _ in range(12):
        check(handle, *UNet.inputs())
    assert calls(handle)["traced"] == 2 and not handle.engine.report.signatures[-1].live


def test_a_parameter_that_is_taken_away() -> None:
    handle = compiled(
        Forward(lambda net, x: net.lin(x) if net.lin.bias is None else net.lin(x) + 1, lin=nn.Linear(4, 4))
    )
    check(handle, torch.randn(2, 4))
    handle.module.lin.bias = None
    for _ in range(2):
        check(handle, torch.randn(2, 4))


def test_a_call_that_changes_its_own_module_stays_eager() -> None:
    def function(net: Any, x: torch.Tensor) -> torch.Tensor:
        net.steps = getattr(net, "steps", 0) + 1
        return x * net.steps

    handle = compiled(Forward(function))
    assert [handle(torch.ones(1)).item() for _ in range(5)] == [1, 2, 3, 4, 5]
    assert any("the call itself changes the module: steps" in reason for reason in reasons(handle))


@pytest.mark.parametrize("name", ["kept", "_kept", "buffer"])
def test_a_tensor_that_a_call_leaves_for_the_next_is_no_weight(name: str) -> None:
    """As blocks keep their last result by which they tell whether to compute the next.

    What was there at the trace may be none.
    """

    def function(net: Any, x: torch.Tensor) -> torch.Tensor:
        last = getattr(net, name)
        setattr(net, name, x * 0.01)
        return net.lin(x) if last is None else net.lin(x) + last

    def module() -> Forward:
        torch.manual_seed(0)
        net = Forward(function, lin=nn.Linear(4, 4))
        net.register_buffer("buffer", None)
        net.kept = net._kept = None
        return net

    handle, twin = compiled(module()), module()
    for step in range(5):
        x = torch.full((2, 4), float(step))
        torch.testing.assert_close(handle(x), twin(x))
    assert calls(handle) == {"eager": 4, "traced": 1}
    assert any(f"the call itself changes the module: {name}" in reason for reason in reasons(handle))


def test_a_setting_that_each_call_puts_on_a_module_is_traced_again_when_it_is_another() -> None:
    """As KJNodes' replaced forwards do: they set their strength on the module, and what they call reads it there."""

    class Patch:
        def __init__(self, strength: float) -> None:
            self.strength = strength

        def bound_to(self, module: Any) -> Any:
            def forward(x: torch.Tensor) -> torch.Tensor:
                module.strength = self.strength
                return read(module, x)

            return forward

    def read(module: Any, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, module.weight) * module.strength

    handle = compiled(Forward(lambda net, x: net.inner(x), inner=nn.Linear(4, 4)))
    for strength in (2.0, 3.0, 4.0, 5.0):
        handle.module.inner.forward = Patch(strength).bound_to(handle.module.inner)
        before = Counter(calls(handle))
        for _ in range(12):
            x = torch.randn(2, 4)
            torch.testing.assert_close(handle(x), nn.functional.linear(x, handle.module.inner.weight) * strength)
        assert Counter(calls(handle)) - before == {"eager": 1, "traced": 1, "fused": 10}
        assert not handle.engine.report.signatures[-1].live


def test_what_a_first_call_caches_is_traced_at_the_second() -> None:
    def function(net: Any, x: torch.Tensor) -> torch.Tensor:
        net.scale = getattr(net, "scale", None) or 2.0
        return x * net.scale

    handle = compiled(Forward(function))
    assert [handle(torch.ones(1)).item() for _ in range(3)] == [2, 2, 2]
    assert calls(handle) == {"eager": 1, "traced": 1, "fused": 1}
