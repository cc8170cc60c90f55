"""Calls under autocast: their graphs hold the casts, and compute with autocast off what the module computes with it
on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core.capture import Signature, Trace, Untraceable, autocast_off
from sfast_core.capture.functional import cast_like
from tests.capture.autocast import DEVICES, check, function
from tests.models import Attention, Forward, ResBlock, TransformerBlock, UNet, diffusers_unet
from tests.tracing import count, evaluate, same, try_record

# -- modules --------------------------------------------------------------------------------------------------------


def mixed(net: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Most of what autocast does, once: casts down and up, promotion, in-place sums, writes into a piece."""
    h = net.norm(net.lin(x))
    h += x
    h = torch.cat([h, net.lin(y)], dim=1)
    h.mul_(0.5)
    h[:, :1] += net.lin(h[:, 1:2])
    h[:, -1] = net.lin(h)[:, 0]
    scores = torch.softmax(torch.einsum("bid,bjd->bij", h, net.lin(h)) * h.shape[-1] ** -0.5, dim=-1)
    h = torch.addcmul(h, scores @ h, h.exp())
    return h.pow(2).mean(-1, keepdim=True) + h


def nested(net: Any, x: torch.Tensor) -> torch.Tensor:
    """Regions with autocast off, and with another dtype, inside the one that the caller opened."""
    h = net.lin(x)
    with torch.autocast(x.device.type, enabled=False):
        h = net.lin(h.to(net.lin.weight.dtype)).float()
        h = torch.softmax(h @ h.mT, dim=-1) @ h
        # the cache holds weights in the caller's dtype
        with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):
            h = h + net.lin(h)
    return net.lin(h)


def written_out(net: Any, x: torch.Tensor) -> torch.Tensor:
    """Attention as diffusers writes it out: the scores' product begins from memory that nobody wrote."""
    empty = torch.empty(x.shape[0], x.shape[1], x.shape[1], dtype=x.dtype, device=x.device)
    scores = torch.baddbmm(empty, net.lin(x), x.mT, beta=0, alpha=0.3)
    return torch.bmm(scores.softmax(dim=-1).to(x.dtype), x)


def layers() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {"lin": nn.Linear(8, 8), "norm": nn.LayerNorm(8)}


MODULES: dict[str, tuple[Callable[[], nn.Module], list[tuple[int, ...]]]] = {
    "mixed": (lambda: Forward(mixed, **layers()), [(2, 3, 8), (2, 2, 8)]),
    "nested": (lambda: Forward(nested, **layers()), [(2, 3, 8)]),
    "written out": (lambda: Forward(written_out, **layers()), [(2, 3, 8)]),
    "Attention": (lambda: Attention(16), [(2, 5, 16)]),
    "TransformerBlock": (lambda: TransformerBlock(16, 12), [(2, 6, 16), (2, 5, 12)]),
    "ResBlock": (lambda: ResBlock(8, 16, 12), [(2, 8, 6, 6), (2, 12)]),
    "BatchNorm": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True)).eval(),
        [(2, 3, 6, 6)],
    ),
}


@pytest.mark.parametrize(("kind", "low"), DEVICES)
@pytest.mark.parametrize("given", ["float32", "low"])
@pytest.mark.parametrize("weights", ["float32", "low"])
@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str, weights: str, given: str, kind: str, low: torch.dtype) -> None:
    torch.manual_seed(0)
    make, shapes = MODULES[name]
    of = {"float32": torch.float32, "low": low}
    net = make().to(kind, of[weights]).eval()
    inputs = [torch.randn(shape, device=kind, dtype=of[given]) for shape in shapes]
    if kind == "cpu" and given != weights == "low" and name in ("TransformerBlock", "ResBlock"):
        pytest.skip("PyTorch's norms on a CPU, which autocast leaves alone, take no float32 with bfloat16 weights")
    check(net, *inputs, low=low)


@pytest.mark.parametrize(("kind", "low"), DEVICES)
@pytest.mark.parametrize("weights", ["float32", "low"])
def test_unets(weights: str, kind: str, low: torch.dtype) -> None:
    torch.manual_seed(0)
    dtype = torch.float32 if weights == "float32" else low
    check(UNet().to(kind, dtype), *(x.to(kind) for x in UNet.inputs(dtype=dtype)), low=low)
    net = diffusers_unet().to(kind, dtype)
    inputs = torch.randn(2, 4, 8, 8), torch.tensor([3.0, 700.0]), torch.randn(2, 5, 12)
    check(
        Forward(lambda net, *args: net.unet(*args, return_dict=False), unet=net), *(x.to(kind) for x in inputs), low=low
    )


def test_weights_that_are_in_the_lower_precision_are_not_cast() -> None:
    torch.manual_seed(0)
    graph = check(Forward(lambda net, x: net.lin(net.lin(x)), **layers()).bfloat16(), torch.randn(2, 8))
    assert count(graph, cast_like) == 1  # x
    graph = check(Forward(lambda net, x: net.lin(net.lin(x)), **layers()), torch.randn(2, 8))
    assert count(graph, cast_like) == 5  # x, and twice the weight and the bias: sharing them is a pass's business


def test_parameters_that_train_are_not_taken_from_autocasts_cache() -> None:
    """Autocast keeps the casts of such parameters until the region ends; a graph reads the parameter itself."""
    net = Forward(lambda net, x: net.lin(x), **layers()).requires_grad_()
    x = torch.randn(2, 8)
    with torch.autocast("cpu", torch.bfloat16), torch.enable_grad():
        net(x)
        _, found = try_record(net, x)
    assert isinstance(found, Trace)
    with torch.no_grad():
        net.lin.weight.mul_(2)
        with torch.autocast("cpu", torch.bfloat16):
            expected = net(x)
    same(evaluate(found.graph, [x])[0], expected)


def test_a_function_whose_inside_is_cast_is_taken_apart() -> None:
    """The inverse is float32 and its square is not: no cast of the argument gives both."""
    graph = check(function(lambda x: torch.linalg.matrix_power(x, -2) + 1), torch.randn(4, 4) + 4 * torch.eye(4))
    assert count(graph, torch.linalg.matrix_power) == 0


def test_an_operator_made_of_others_is_taken_apart() -> None:
    library = torch.library.Library("fast_compile_autocast_test", "DEF")
    library.define("mix(Tensor x) -> (Tensor, Tensor)")

    def mix(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        variance, mean = torch.var_mean(x, -1, keepdim=True)
        return (x - mean) @ x + variance, x.softmax(-1)

    library.impl("mix", mix, "CompositeImplicitAutograd")
    graph = check(function(lambda x: torch.ops.fast_compile_autocast_test.mix(x)), torch.randn(4, 4))
    assert count(graph, torch.ops.aten.var_mean.correction) == 1


@pytest.mark.parametrize(("kind", "low"), DEVICES)
def test_functions_of_many_operators(kind: str, low: torch.dtype) -> None:
    torch.manual_seed(0)

    def attend(net: Any, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return net.attend(x, x, x, attn_mask=mask, need_weights=True)

    for dtype in (torch.float32, low):
        net = Forward(attend, attend=nn.MultiheadAttention(8, 2)).to(kind, dtype)
        check(net, torch.randn(5, 2, 8, device=kind, dtype=dtype), torch.randn(5, 5, device=kind), low=low)


# -- what isn't touched, and what is refused -----------------------------------------------------------------------


def test_float64_and_integers_are_left_alone() -> None:
    graph = check(
        function(lambda x, i: (torch.mm(x, x), i * 2, x.long() + i)), torch.randn(3, 3).double(), torch.arange(3)
    )
    assert count(graph, cast_like) == 0


def test_autocast_of_another_device_is_none() -> None:
    net, x = function(torch.mm), torch.randn(3, 3)
    torch.set_autocast_enabled("cuda", True)
    try:
        result, found = try_record(net, x, x.clone())
        assert isinstance(found, Trace) and result.dtype == torch.float32 and count(found.graph, cast_like) == 0
        assert found.computed_in == frozenset()
    finally:
        torch.set_autocast_enabled("cuda", False)


def refused(call: Callable[..., Any], *inputs: torch.Tensor) -> str:
    """Why a call under autocast leaves no trace; without autocast it does."""
    net = function(call)
    assert isinstance(try_record(net, *inputs)[1], Trace)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = net(*inputs)
        result, found = try_record(net, *inputs)
    same(result, expected)
    assert isinstance(found, Untraceable)
    return found.reason


def test_casts_inside_an_operator_are_refused() -> None:
    x = torch.randn(3, 4)
    assert "autocast does more to bilinear than can be observed" in refused(
        F.bilinear, x, x.clone(), torch.randn(2, 4, 4)
    )


def test_casts_inside_a_function_that_writes_to_its_tensors_are_refused() -> None:
    assert refused(torch.cov, torch.randn(3, 4)) == "autocast casts inside cov"


@pytest.mark.parametrize(
    "call", [F.linear, torch.bmm, lambda a, b: torch.linalg.multi_dot([a[0], b[0]]), lambda a, b: F.softmax(a @ b, -1)]
)
def test_asking_changes_nothing_around_it(call: Callable[..., Any]) -> None:
    x, y = torch.randn(2, 4, 4), torch.randn(4, 4) if call is F.linear else torch.randn(2, 4, 4)
    for mode in (nullcontext(), torch.inference_mode()):
        with mode, torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            before = _state()
            try_record(function(call), x, y)
            assert _state() == before


def _state() -> tuple[Any, ...]:
    """What of the thread's state a run on stand-ins might change."""
    dispatch = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    modes = (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
    )
    return *map(str, dispatch), *modes, torch.get_rng_state().tolist()


def test_autocast_off_is_off_and_comes_back() -> None:
    x = torch.randn(3, 3)
    with autocast_off():
        assert (x @ x).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(KeyError), autocast_off():
            assert (x @ x).dtype == torch.float32
            raise KeyError
        assert (x @ x).dtype == torch.bfloat16


def test_autocast_is_part_of_the_signature() -> None:
    x = torch.randn(2)
    plain = Signature((x,), {})
    with torch.autocast("cpu", torch.bfloat16):
        bfloat = Signature((x,), {})
        with torch.autocast("cpu", enabled=False):
            assert Signature((x,), {}).key == plain.key
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            assert Signature((x,), {}).key == bfloat.key
    with torch.autocast("cpu", torch.float16):
        half = Signature((x,), {})
    assert len({plain.key, bfloat.key, half.key}) == 3
    assert (plain.autocast, bfloat.autocast) == ((), (("cpu", torch.bfloat16),))
