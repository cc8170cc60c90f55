"""A signature runs as it was for as long as there is a reason, and is traced once that is gone, without anything being
reset.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, CompiledModule, compile
from sfast_core.capture import recording
from tests.models import TransformerBlock

pytestmark = pytest.mark.usefixtures("no_gradients")


Undo = Callable[[], None]


def keeps_on_a_module(net: nn.Module) -> Undo:
    """As SAG: a forward in a layer's place that leaves its maps on the module."""
    own = net.attn1.forward

    def forward(x: torch.Tensor, context: torch.Tensor | None = None) -> torch.Tensor:
        net.attn1.maps = own(x, context)
        net.attn1.calls = getattr(net.attn1, "calls", 0) + 1
        return net.attn1.maps

    net.attn1.forward = forward
    return lambda: net.attn1.__dict__.pop("forward")


def reads_a_value(net: nn.Module) -> Undo:
    own = net.attn1.forward
    net.attn1.forward = lambda x, context=None: own(x, context) * (2.0 if x.sum().item() else 1.0)
    return lambda: net.attn1.__dict__.pop("forward")


def draws_random_numbers(net: nn.Module) -> Undo:
    own = net.out.forward
    net.out.forward = lambda x: own(x) + 0 * torch.randn(1)
    return lambda: net.out.__dict__.pop("forward")


def fails_while_recorded(net: nn.Module) -> Undo:
    own = net.out.forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        if recording():
            torch.mm(x, x)
        return own(x)

    net.out.forward = forward
    return lambda: net.out.__dict__.pop("forward")


def hooked(net: nn.Module) -> Undo:
    return net.norm1.register_forward_hook(lambda *args: args[-1] * 2).remove


def another_child(net: nn.Module) -> Undo:
    class Noted(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.notes = [*getattr(self, "notes", []), x.shape]
            return super().forward(x)

    own = net.norm2
    net.norm2 = Noted(nn.LayerNorm(8))
    return lambda: setattr(net, "norm2", own)


@pytest.mark.parametrize(
    "extension", [keeps_on_a_module, reads_a_value, draws_random_numbers, fails_while_recorded, hooked, another_child]
)
def test_what_an_extension_has_made_eager_is_traced_when_it_is_gone(extension: Callable[[nn.Module], Undo]) -> None:
    handle = compile(TransformerBlock(8, 12).eval(), CompileConfig(allow_cpu=True))
    inputs = torch.randn(2, 5, 8), torch.randn(2, 3, 12)

    def check(times: int) -> dict[str, int]:
        before = handle.engine.report.calls.copy()
        for _ in range(times):
            torch.testing.assert_close(
                handle(*inputs), TransformerBlock.forward(handle.module, *inputs), rtol=1e-4, atol=1e-5
            )
        return dict(handle.engine.report.calls - before)

    assert check(2) == {"traced": 1, "fused": 1}
    undo = extension(handle.module)
    check(8)
    live = [signature for signature in handle.engine.report.signatures if signature.live]
    assert extension is fails_while_recorded or live, handle.engine.report.text()
    undo()
    check(10)  # what runs live is looked at once in a while
    used = {id(signature): signature.calls for signature in handle.engine.report.signatures}
    assert set(check(3)) == {"fused"}
    assert not any(
        signature.live for signature in handle.engine.report.signatures if signature.calls != used[id(signature)]
    )


def test_what_an_extension_only_keeps_for_others_is_kept_at_each_call() -> None:
    handle = compile(TransformerBlock(8, 12).eval(), CompileConfig(allow_cpu=True))
    net = handle.module
    own = net.attn2.forward

    def forward(x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        net.last = own(x, context)
        return net.last

    def check(times: int) -> dict[str, int]:
        before = handle.engine.report.calls.copy()
        for _ in range(times):
            inputs = torch.randn(2, 5, 8), torch.randn(2, 3, 12)
            result, kept = handle(*inputs), getattr(net, "last", None)
            torch.testing.assert_close(result, TransformerBlock.forward(net, *inputs), rtol=1e-4, atol=1e-4)
            if kept is not None:
                torch.testing.assert_close(kept, net.last, rtol=1e-4, atol=1e-4)
        return dict(handle.engine.report.calls - before)

    assert check(2) == {"traced": 1, "fused": 1}
    net.attn2.forward = forward
    assert check(6) == {"eager": 1, "traced": 1, "fused": 4}  # the first call might have read what wasn't there yet
    del net.attn2.forward, net.last
    assert check(5) == {"fused": 5} and not hasattr(net, "last")


def test_a_call_that_goes_on_changing_its_module_is_not_recorded_again() -> None:
    handle = _keeping()
    x = torch.randn(2, 5, 8), torch.randn(2, 3, 12)
    for _ in range(30):
        handle(*x)
    assert handle.engine.report.calls == {"eager": 2, "traced": 1, "fused": 27}  # that layer runs live


def _keeping() -> CompiledModule:
    net = TransformerBlock(8, 12).eval()
    keeps_on_a_module(net)
    return compile(net, CompileConfig(allow_cpu=True))
