"""A compiled module that is called under autocast: a signature of its own, right results, nothing eager."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, CompiledModule, compile
from sfast_core.capture import CaptureError
from sfast_core.programs.proof import distance_to_eager
from tests.models import Forward, UNet, diffusers_unet

DEVICES = [
    pytest.param("cpu", torch.bfloat16, id="cpu"),
    pytest.param("cuda", torch.float16, id="cuda", marks=pytest.mark.gpu),
]
#: Several times what two orders of operations differ by.
NEAR = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


@pytest.fixture(autouse=True)
def exact_and_without_gradients(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch.manual_seed(0)
    # it is on by default, and rounds each algorithm's way
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    with torch.no_grad():
        yield


def compiled(net: nn.Module, **config: Any) -> CompiledModule:
    return compile(net, CompileConfig(**{"allow_cpu": True, **config}))


def check(handle: CompiledModule, *inputs: Any, near: float, **kwargs: Any) -> torch.Tensor:
    """A call gives what the module's class gives, in dtype too."""
    (result,) = _parts(handle(*inputs, **kwargs))
    (expected,) = _parts(type(handle.module).forward(handle.module, *inputs, **kwargs))
    assert result.dtype == expected.dtype and result.shape == expected.shape
    assert (result.float() - expected.float()).norm() <= near * expected.float().norm()
    return result


def _parts(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize(("kind", "low"), DEVICES)
@pytest.mark.parametrize("weights", ["float32", "low"])
def test_with_and_without_in_turn(weights: str, kind: str, low: torch.dtype) -> None:
    dtype = torch.float32 if weights == "float32" else low
    handle = compiled(UNet().to(kind, dtype))
    for _ in range(4):
        inputs = [x.to(kind) for x in UNet.inputs(dtype=dtype)]
        with torch.autocast(kind, low):
            assert check(handle, *inputs, near=NEAR[low]).dtype == low
            with torch.autocast(kind, enabled=False):
                assert check(handle, *inputs, near=NEAR[dtype]).dtype == dtype
            assert torch.is_autocast_enabled(kind)
        check(handle, *inputs, near=NEAR[dtype])
    report = handle.engine.report
    assert report.calls["traced"] == 2 and report.calls["eager"] == 0 and not report.reasons
    assert sorted("autocast" in signature.inputs for signature in report.signatures) == [False, True]
    assert f"autocast to {str(low)[6:]} on {kind}" in report.signatures[0].inputs


@pytest.mark.parametrize("trainable", [True, False])
def test_weights_have_one_layout_with_and_without(trainable: bool) -> None:
    """Else what one program lays out is a change to the other; that autocast keeps what it casts is no training."""
    handle = compiled(UNet().requires_grad_(trainable))
    inputs = UNet.inputs()
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            check(handle, *inputs, near=NEAR[torch.bfloat16])
            with torch.autocast("cpu", enabled=False):
                check(handle, *inputs, near=NEAR[torch.float32])
    net = handle.module
    assert net.conv_in.weight.is_contiguous(memory_format=torch.channels_last)
    assert handle.engine.report.calls == {"traced": 2, "fused": 4}


@pytest.mark.parametrize(("kind", "low"), DEVICES)
@pytest.mark.parametrize("sdxl", [False, True], ids=["SD1.5", "SDXL"])
@pytest.mark.parametrize("weights", ["float32", "low"])
def test_diffusers_unets(weights: str, sdxl: bool, kind: str, low: torch.dtype) -> None:
    dtype = torch.float32 if weights == "float32" else low
    handle = compiled(diffusers_unet(sdxl).to(kind, dtype))
    for _ in range(3):
        given: dict[str, Any] = {"return_dict": False}
        if sdxl:
            given["added_cond_kwargs"] = {
                "text_embeds": torch.randn(2, 32, device=kind),
                "time_ids": torch.ones(2, 6, device=kind),
            }
        inputs = (
            torch.randn(2, 4, 8, 8, device=kind),
            torch.tensor(7.0, device=kind),
            torch.randn(2, 5, 12, device=kind),
        )
        with torch.autocast(kind, low):
            check(handle, *inputs, near=NEAR[low], **given)
    report = handle.engine.report
    assert report.calls["traced"] == 1 and report.calls["eager"] == 0, report.text()
    wanted = "fuse_group_norm_act fuse_conv_act fuse_add_layer_norm fuse_linear fuse_attention".split()
    assert all(report.signatures[0].passes[name] for name in wanted), report.text()


def test_what_depends_on_nothing_is_computed_as_it_was_recorded() -> None:
    """In a region without autocast a product is float32, though the program is made while the caller's autocast is
    on.
    """

    def function(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            table = torch.arange(9.0).reshape(3, 3) / 7
            table = table @ table
        return x * table

    handle, x = compiled(Forward(function)), torch.randn(3, 3)
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(3):
            check(handle, x, near=1e-6)
    assert handle.engine.report.calls == {"traced": 1, "fused": 2}


def test_a_forward_that_turns_autocast_on_by_itself() -> None:
    def function(net: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            h = net.lin(x)
        return net.lin(h.float())

    handle = compiled(Forward(function, lin=nn.Linear(8, 8)))
    for _ in range(3):
        assert check(handle, torch.randn(2, 8), near=1e-3).dtype == torch.float32
    assert handle.engine.report.calls == {"traced": 1, "fused": 2}


def test_a_layer_that_cannot_be_recorded_under_autocast_runs_live_as_it_was() -> None:
    net = Forward(lambda net, x: net.mix(x, x), mix=nn.Bilinear(4, 4, 4))
    handle = compiled(net)
    for region in (
        torch.autocast("cpu", torch.bfloat16),
        nullcontext(),
        torch.autocast("cpu", torch.bfloat16),
        nullcontext(),
    ):
        with region:
            check(handle, torch.randn(2, 4), near=1e-6)
    report = handle.engine.report
    assert report.calls == {"traced": 2, "eager": 1, "fused": 1}
    assert (
        list(report.reasons) == ["autocast does more to bilinear than can be observed"] and report.signatures[-1].live
    )


@pytest.mark.parametrize(
    ("dtypes", "allowed"), [((), False), ((torch.float16,), True), ((torch.float16, torch.bfloat16), True)]
)
def test_a_result_is_as_near_as_what_it_was_computed_in_allows(dtypes: tuple[torch.dtype, ...], allowed: bool) -> None:
    expected = torch.randn(100)
    if allowed:
        assert 5e-3 < distance_to_eager([expected * 1.01], [expected], None, dtypes) < 2e-2
    else:
        with pytest.raises(CaptureError, match="at most 1e-03 is allowed"):
            distance_to_eager([expected * 1.01], [expected], None, dtypes)
    with pytest.raises(CaptureError, match="from eager's"):
        distance_to_eager([expected * 1.2], [expected], None, dtypes)


class InBfloat16(nn.Module):
    """Computes in bfloat16, as its weights are, and gives back float32, as models do whose last layer is finer."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(64, 64, dtype=torch.bfloat16)
        self.last = nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.project(x)
        return self.last(((q @ q.transpose(-1, -2) * 0.125).softmax(-1) @ q).float())


def test_a_result_in_float32_that_was_computed_in_16_bits() -> None:
    """It is as near as those allow: fused attention rounds once where its three calls round each."""
    handle = compiled(InBfloat16())
    x = torch.randn(2, 16, 64).bfloat16()
    for _ in range(2):
        check(handle, x, near=NEAR[torch.bfloat16])
    report = handle.engine.report
    assert report.calls == {"traced": 1, "fused": 1} and report.signatures[-1].distance > 1e-3
