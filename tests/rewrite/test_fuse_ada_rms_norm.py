"""An RMSNorm with the gated sum in front of it and the modulation behind it, and what only looks like that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core.ops.ada_rms_norm import ada_rms_norm
from tests.models import Forward
from tests.tracing import count, rewritten

B, L, C = 2, 5, 16
Way = Callable[..., Any]
_OPTIONAL = ("weight", "scale", "shift", "residual", "gate", "x_weight")


def _rms(x: torch.Tensor, weight: torch.Tensor | None = None, eps: float | None = 1e-5) -> torch.Tensor:
    return F.rms_norm(x, (C,), weight, eps)


def _island(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """As Krea 2 and the Gemmas do."""
    return F.rms_norm(x.float(), (C,), weight.float() + 1.0, 1e-5).to(x.dtype)


def _inputs(dtype: torch.dtype, by_token: bool = False) -> list[torch.Tensor]:
    """Tokens, a residual, and rows for scale, shift and gate."""
    return [*torch.randn(2, B, L, C, dtype=dtype), *torch.randn(3, B, L if by_token else 1, C, dtype=dtype)]


def _net(way: Way) -> nn.Module:
    torch.manual_seed(0)
    net = Forward(way)
    for name in ("weight", "x_weight"):
        net.register_parameter(name, nn.Parameter(torch.randn(C) * 0.2 + 1))
    return net


def _fused(
    way: Way, dtype: torch.dtype = torch.float32, by_token: bool = False, has_impl: bool = True
) -> tuple[int, torch.fx.Graph, list[Any]]:
    module = _net(way).to(dtype)
    found, graph = rewritten(
        "fuse_ada_rms_norm", module, *_inputs(dtype, by_token), has_impl=lambda op, *_: has_impl and op is ada_rms_norm
    )
    return found, graph, [node for node in graph.nodes if node.target is ada_rms_norm]


def _kept(total: torch.Tensor, normed: torch.Tensor) -> Any:
    return normed, total * 2


#: the way, and which of the op's optional tensors the call has
WAYS: dict[str, tuple[Way, str]] = {
    "scaled": (lambda net, x, r, scale, shift, gate: _rms(x, net.weight) * (1 + scale), "weight scale"),
    "scaled and shifted": (lambda net, x, r, scale, shift, gate: shift + (scale + 1) * _rms(x), "scale shift"),
    "addcmul": (
        lambda net, x, r, scale, shift, gate: torch.addcmul(shift, _rms(x, net.weight), 1 + scale),
        "weight scale shift",
    ),
    "itself times the scale added": (
        lambda net, x, r, scale, shift, gate: _added_to(_rms(x), scale, shift),
        "scale shift",
    ),
    "itself times the scale added, no shift": (
        lambda net, x, r, scale, shift, gate: (lambda n: torch.addcmul(n, scale, n))(_rms(x)),
        "scale",
    ),
    "behind a sum": (
        lambda net, x, r, scale, shift, gate: (lambda s: _kept(s, _rms(s, net.weight)))(x + r),
        "weight residual",
    ),
    "behind a gated sum": (
        lambda net, x, r, scale, shift, gate: (lambda s: _kept(s, _rms(s) * (1 + scale) + shift))(
            torch.addcmul(r, x, gate)
        ),
        "scale shift residual gate",
    ),
    "behind the gated sum of another": (
        lambda net, x, r, scale, shift, gate: (lambda s: _kept(s, _rms(s, net.weight) * (1 + scale)))(
            r + gate.tanh() * _rms(x, net.x_weight)
        ),
        "weight scale residual gate x_weight",
    ),
    "behind the sum of another": (
        lambda net, x, r, scale, shift, gate: (lambda s: _kept(s, _rms(s, net.weight)))(r + _rms(x, net.x_weight)),
        "weight residual x_weight",
    ),
    "behind the sum of another with another eps": (
        lambda net, x, r, scale, shift, gate: (lambda s: _kept(s, _rms(s, net.weight)))(
            r + _rms(x, net.x_weight, 1e-2)
        ),
        "weight residual",
    ),
    "behind a sum that is read before": (
        lambda net, x, r, scale, shift, gate: (lambda s: _rms(s) * (1 + s[:, :1]))(x + r),
        "scale",
    ),
}


def _added_to(normed: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """As ComfyUI's LTX and PixelDiT do."""
    return normed.addcmul_(normed, scale).add_(shift)


@pytest.mark.parametrize("by_token", [False, True], ids=["by image", "by token"])
@pytest.mark.parametrize("name", WAYS)
def test_a_norm_and_what_is_around_it_are_one_op(name: str, by_token: bool) -> None:
    way, names = WAYS[name]
    if by_token and "read before" in name:
        pytest.skip("has no rows")
    found, graph, (node,) = _fused(way, by_token=by_token)
    assert (
        found == 1
        and [key for key, arg in zip(_OPTIONAL, node.args[2:8], strict=True) if arg is not None] == names.split()
    )
    assert count(graph, F.rms_norm, torch.rms_norm) == ("another eps" in name)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_norm_in_float32_of_tokens_in_half(dtype: torch.dtype) -> None:
    def way(
        net: Any, x: torch.Tensor, r: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, gate: torch.Tensor
    ) -> Any:
        return _island(x, net.weight) * (1 + scale) + shift, _island(r, net.x_weight)

    found, graph, nodes = _fused(way, dtype)
    assert (
        found == 2
        and [node.args[8] for node in nodes] == [1.0, 1.0]
        and all(node.args[2].op == "placeholder" for node in nodes)
    )
    assert (
        count(graph, F.rms_norm, torch.rms_norm) == 0
        and len([node for node in graph.nodes if node.op == "call_function"]) == 4
    )


def test_blocks_in_a_row_hand_on_what_they_sum_up() -> None:
    """As Z-Image and Lumina 2 have them."""

    def way(
        net: Any, x: torch.Tensor, r: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, gate: torch.Tensor
    ) -> Any:
        for _ in range(3):
            r = r + gate.tanh() * _rms(x, net.x_weight)
            x = torch.sin(_rms(r, net.weight) * (1 + scale))
        return r + x

    found, graph, nodes = _fused(way)
    assert (
        found == 3 and count(graph, F.rms_norm, torch.rms_norm) == 0 and all(node.args[7] is not None for node in nodes)
    )


def test_an_operator_of_a_norm_and_its_modulation_takes_the_sum_along() -> None:
    """As ComfyUI's LTX calls comfy-kitchen's."""
    if not hasattr(torch.ops.comfy_kitchen, "rms_adaln"):
        op = torch.library.custom_op("comfy_kitchen::rms_adaln", _rms_adaln, mutates_args=())
        op.register_fake(lambda x, scale, shift, eps: torch.empty_like(x))

    def way(
        net: Any, x: torch.Tensor, r: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, gate: torch.Tensor
    ) -> Any:
        total = torch.addcmul(r, x, gate)
        alone = torch.ops.comfy_kitchen.rms_adaln(x, scale, shift, 1e-6)
        return alone, *_kept(total, torch.ops.comfy_kitchen.rms_adaln(total, scale, shift, 1e-6))

    found, graph, (node,) = _fused(way)
    assert (
        found == 1
        and node.args[5] is not None
        and node.args[6] is not None
        and count(graph, torch.ops.comfy_kitchen.rms_adaln) == 1
    )


def _rms_adaln(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, eps: float) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], None, eps) * (1 + scale) + shift


STAY: dict[str, Way] = {
    "alone": lambda net, x, r, scale, shift, gate: _rms(x, net.weight),
    "others read the norm": lambda net, x, r, scale, shift, gate: (lambda n: (n, n * (1 + scale)))(_rms(x)),
    "nothing is added to the scale": lambda net, x, r, scale, shift, gate: _rms(x) * scale,
    "the scale is itself": lambda net, x, r, scale, shift, gate: (lambda n: torch.addcmul(n, n, n))(_rms(x)),
    "over more than the last dimension": lambda net, x, r, scale, shift, gate: (
        F.rms_norm(x, (L, C), None, 1e-5) * (1 + scale)
    ),
    "a shift of one number": lambda net, x, r, scale, shift, gate: _rms(x) + 1,
}


@pytest.mark.parametrize("name", STAY)
def test_what_only_looks_like_it_stays(name: str) -> None:
    found, graph, nodes = _fused(STAY[name])
    assert found == 0 and not nodes and count(graph, F.rms_norm, torch.rms_norm) == 1


def test_without_an_impl_all_stays() -> None:
    found, graph, nodes = _fused(WAYS["behind a gated sum"][0], has_impl=False)
    assert found == 0 and not nodes and count(graph, F.rms_norm, torch.rms_norm) == 1
