"""Rotary embeddings in their spellings, with the RMSNorm in front of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.ops.cases.norm_rope import rotations
from tests.rewrite.normed_ropes import L2, B, D, H, L, fused
from tests.tracing import count

Rope = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def by_columns(x: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """As ComfyUI's Flux did until 0.3.64: heads before tokens, matrices [1, 1, L, D / 2, 2, 2]."""
    pairs = x.to(matrices.dtype).reshape(*x.shape[:-1], -1, 1, 2)
    out = matrices[..., 0] * pairs[..., 0]
    out.addcmul_(matrices[..., 1], pairs[..., 1])
    return out.reshape(*x.shape).type_as(x)


def by_columns_in_a_sum(x: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """The same without ``addcmul_``."""
    pairs = x.to(matrices.dtype).reshape(*x.shape[:-1], -1, 1, 2)
    return (matrices[..., 0] * pairs[..., 0] + matrices[..., 1] * pairs[..., 1]).reshape(*x.shape).type_as(x)


def by_cosines(x: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """As diffusers' Flux does, with heads before tokens."""
    cosines, sines = (matrices[..., j, 0].repeat_interleave(2, -1) for j in (0, 1))
    first, second = x.reshape(*x.shape[:-1], -1, 2).unbind(-1)
    turned = torch.stack([-second, first], dim=-1).flatten(3)
    return (x.float() * cosines + turned.float() * sines).to(x.dtype)


def by_operator(x: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    return torch.ops.comfy_kitchen.apply_rope1(x, matrices)


def by_operator_of_two(x: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """Queries and keys in one call, of which one is looked at."""
    return torch.ops.comfy_kitchen.apply_rope(x, x * 2, matrices)[0]


def by_halves(x: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """As transformers' models do: pairs of an element of the first half and one of the second."""
    cosines, sines = (matrices[..., j, 0].repeat(1, 1, 1, 2) for j in (0, 1))
    first, second = x.chunk(2, -1)
    return (x.float() * cosines + torch.cat([-second, first], -1).float() * sines).to(x.dtype)


def by_slices(x: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    cosines, sines = (matrices[..., j, 0].repeat(1, 1, 1, 2) for j in (0, 1))
    turned = torch.cat((-x[..., D // 2 :], x[..., : D // 2]), dim=-1)
    return ((x * cosines) + (turned * sines)).to(x.dtype)


def by_halves_in_place(x: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """As ComfyUI's language models do."""
    cosines, sines = matrices[..., 0, 0].repeat(1, 1, 1, 2), matrices[..., 1, 0]
    turned, middle = x * cosines, D // 2
    turned[..., :middle].addcmul_(x[..., middle:], -sines)
    turned[..., middle:].addcmul_(x[..., :middle], sines)
    return turned.to(x.dtype)


def by_complex(x: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """As diffusers' Qwen-Image and Lumina do."""
    factors = torch.complex(matrices[..., 0, 0], matrices[..., 1, 0])
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * factors).flatten(3).type_as(x)


def _pair(x: torch.Tensor, matrices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
    cosines, sines = matrices[..., 0, 0], matrices[..., 1, 0]
    return first * cosines - second * sines, first * sines + second * cosines


def by_assignment(x: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """As diffusers' Wan does."""
    out = torch.empty_like(x)
    out[..., 0::2], out[..., 1::2] = _pair(x, matrices)
    return out.type_as(x)


def by_stacked_pairs(x: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """As ComfyUI's Mochi does."""
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    cosines, sines = matrices[..., 0, 0], matrices[..., 1, 0]
    return (
        torch.stack([even * cosines - odd * sines, even * sines + odd * cosines], dim=-1)
        .to(x.dtype)
        .flatten(start_dim=-2)
    )


def by_operator_of_halves(x: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    return torch.ops.comfy_kitchen.apply_rope_split_half1(x, matrices)


def _of_halves(x: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    pairs = x.reshape(*x.shape[:-1], 2, -1).movedim(-2, -1).unsqueeze(-2).to(matrices.dtype)
    out = matrices[..., 0] * pairs[..., 0] + matrices[..., 1] * pairs[..., 1]
    return out.movedim(-1, -2).reshape(*x.shape).type_as(x)


@pytest.fixture(autouse=True)
def comfy_kitchen() -> None:
    """As ComfyUI does by comfy-kitchen; its operators are made here where that isn't installed."""
    if not hasattr(torch.ops.comfy_kitchen, "apply_rope1"):
        torch.library.custom_op("comfy_kitchen::apply_rope1", by_columns, mutates_args=()).register_fake(
            lambda x, _: torch.empty_like(x)
        )
    if not hasattr(torch.ops.comfy_kitchen, "apply_rope_split_half1"):
        halves = torch.library.custom_op("comfy_kitchen::apply_rope_split_half1", _of_halves, mutates_args=())
        halves.register_fake(lambda x, _: torch.empty_like(x))
    if not hasattr(torch.ops.comfy_kitchen, "apply_rope"):
        fake = lambda q, k, _: (torch.empty_like(q), torch.empty_like(k))  # noqa: E731
        torch.library.custom_op("comfy_kitchen::apply_rope", _of_two, mutates_args=()).register_fake(fake)

    if not hasattr(torch.ops.comfy_kitchen, "rms_rope"):
        fake = lambda q, k, *_: (torch.empty_like(q), torch.empty_like(k))  # noqa: E731
        torch.library.custom_op("comfy_kitchen::rms_rope", _normed_of_two, mutates_args=()).register_fake(fake)
    if not hasattr(torch.ops.comfy_kitchen, "rms_rope_split_half1"):
        torch.library.custom_op("comfy_kitchen::rms_rope_split_half1", _normed_halves, mutates_args=()).register_fake(
            lambda x, *_: torch.empty_like(x)
        )


def _normed_of_two(
    q: torch.Tensor,
    k: torch.Tensor,
    freqs_cis: torch.Tensor,
    q_scale: torch.Tensor,
    k_scale: torch.Tensor | None = None,
    epsilon: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor]:
    weights = q_scale, q_scale if k_scale is None else k_scale
    first, second = (
        by_columns(F.rms_norm(x, (D,), weight, epsilon), freqs_cis) for x, weight in zip((q, k), weights, strict=True)
    )
    return first, second


def _normed_halves(
    x: torch.Tensor, freqs_cis: torch.Tensor, scale: torch.Tensor, epsilon: float = 1e-6
) -> torch.Tensor:
    return _of_halves(F.rms_norm(x, (D,), scale, epsilon), freqs_cis)


def _of_two(q: torch.Tensor, k: torch.Tensor, matrices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return by_columns(q, matrices), by_columns(k, matrices)


ROPES: dict[str, Rope] = {
    "columns": by_columns,
    "columns in a sum": by_columns_in_a_sum,
    "cosines": by_cosines,
    "operator": by_operator,
    "halves": by_halves,
    "slices": by_slices,
    "halves in place": by_halves_in_place,
    "complex": by_complex,
    "operator of halves": by_operator_of_halves,
    "assignment": by_assignment,
    "stacked pairs": by_stacked_pairs,
}


def _matrices(length: int = L, heads_first: bool = True) -> torch.Tensor:
    matrices = rotations(length, D, torch.device("cpu"))
    return matrices[:, None] if heads_first else matrices[:, :, None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ROPES)
def test_a_norm_and_a_rope_are_one_op(name: str, dtype: torch.dtype) -> None:
    found, graph, nodes = fused(
        lambda net, q, m: ROPES[name](net.norm(q), m), torch.randn(B, H, L, D), _matrices(), dtype=dtype
    )
    assert found == 1 and nodes[0].args[3] == 1e-6 and nodes[0].args[1] is not None
    assert count(graph, F.rms_norm, torch.rms_norm) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_norm_without_an_eps_has_pytorchs(dtype: torch.dtype) -> None:
    """Of small values, which an eps of another size would make others."""
    small = nn.RMSNorm(D), nn.RMSNorm(D)
    way = lambda net, q, m: by_columns(net.norm(q * 0.01), m)  # noqa: E731
    found, _, (node,) = fused(way, torch.randn(B, H, L, D), _matrices(), dtype=dtype, norm=small[0], other=small[1])
    assert found == 1 and node.args[3] in (torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)


@pytest.mark.parametrize("name", ROPES)
def test_two_streams_are_joined_by_it(name: str) -> None:
    def way(net: Any, text: torch.Tensor, image: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return ROPES[name](torch.cat([net.norm(text), net.other(image)], dim=2), m)

    found, graph, (node,) = fused(way, torch.randn(B, H, L, D), torch.randn(B, H, L2, D), _matrices(L + L2))
    assert found == 1 and len(node.args) >= 6 and count(graph, torch.cat) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_matrices_in_the_tokens_dtype(dtype: torch.dtype) -> None:
    """As ComfyUI's Qwen-Image has them."""
    found, _, (node,) = fused(
        lambda net, q, m: by_operator(net.norm(q), m), torch.randn(B, H, L, D), _matrices().to(dtype), dtype=dtype
    )
    assert found == 1 and node.args[2].meta["val"].dtype == dtype


def test_a_norm_in_float32_with_weights_less_one() -> None:
    """As Krea 2 has it."""

    def island(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x.float(), (D,), weight.float() + 1.0, 1e-5).to(x.dtype)

    def way(net: Any, text: torch.Tensor, image: torch.Tensor, m: torch.Tensor) -> Any:
        joined = torch.cat([island(text, net.norm.weight), island(image, net.other.weight)], dim=2)
        return by_columns(joined, m), by_columns(island(text * 2, net.norm.weight), m[:, :, :L])

    inputs = torch.randn(B, H, L, D), torch.randn(B, H, L2, D), _matrices(L + L2)
    found, graph, nodes = fused(way, *inputs, dtype=torch.bfloat16)
    assert found == 2 and {node.args[7] for node in nodes} == {1.0} and count(graph, F.rms_norm, torch.rms_norm) == 0


@pytest.mark.parametrize("has_impl", [True, False])
def test_operators_that_norm_first(has_impl: bool) -> None:
    """As ComfyUI's Z-Image, Anima and Ernie have them. Without a kernel they stay."""

    def way(net: Any, q: torch.Tensor, k: torch.Tensor, m: torch.Tensor) -> Any:
        first, second = torch.ops.comfy_kitchen.rms_rope(q, k, m, net.norm.weight, None, 1e-4)
        both = torch.ops.comfy_kitchen.rms_rope(q, k, m, net.norm.weight, net.other.weight, 1e-5)
        return first, second, *both, torch.ops.comfy_kitchen.rms_rope_split_half1(q, m, net.other.weight, 1e-3)

    found, _, nodes = fused(way, *torch.randn(2, B, L, H, D), _matrices(heads_first=False), has_impl=has_impl)
    assert found == len(nodes) == (5 if has_impl else 0)
    assert [node.args[3] for node in nodes] == [1e-4, 1e-4, 1e-5, 1e-5, 1e-3][: len(nodes)]


@pytest.mark.parametrize("heads_first", [False, True])
def test_a_norm_over_all_heads(heads_first: bool) -> None:
    """As Wan and LTX have it: in front of the heads."""

    def way(net: Any, x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        heads = net.norm(x).view(B, L, H, D)
        return by_operator(heads.transpose(1, 2) if heads_first else heads, m)

    norms = {"norm": nn.RMSNorm(H * D, eps=1e-6), "other": nn.RMSNorm(H * D, eps=1e-6)}
    found, graph, (node,) = fused(way, torch.randn(B, L, H * D), _matrices(heads_first=heads_first), **norms)
    assert found == 1 and node.args[3] == 1e-6 and tuple(node.args[1].meta["val"].shape) == (H * D,)
    assert count(graph, F.rms_norm, torch.rms_norm) == 0


def test_a_norm_over_all_heads_that_others_read_stays() -> None:
    def way(net: Any, x: torch.Tensor, m: torch.Tensor) -> Any:
        normed = net.norm(x)
        return normed, by_operator(normed.view(B, L, H, D), m)

    norms = {"norm": nn.RMSNorm(H * D, eps=1e-6), "other": nn.RMSNorm(H * D, eps=1e-6)}
    found, graph, nodes = fused(way, torch.randn(B, L, H * D), _matrices(heads_first=False), **norms)
    assert found == 0 and not nodes and count(graph, F.rms_norm, torch.rms_norm) == 1


def test_each_head_has_its_own_matrices() -> None:
    """As ComfyUI's LTX has them."""
    matrices = rotations(L * H, D, torch.device("cpu"), images=B).unflatten(1, (L, H))
    found, graph, (node,) = fused(lambda net, q, m: by_columns(net.norm(q), m), torch.randn(B, L, H, D), matrices)
    assert found == 1 and node.args[2].meta["val"].dim() == 6 and count(graph, torch.permute) == 0


def test_tokens_before_heads() -> None:
    found, graph, _ = fused(
        lambda net, q, m: by_columns(net.norm(q), m), torch.randn(B, L, H, D), _matrices(heads_first=False)
    )
    assert found == 1 and count(graph, torch.permute) == 0


def test_a_rope_without_a_norm() -> None:
    found, _, (node,) = fused(lambda net, q, m: by_columns(q, m), torch.randn(B, H, L, D), _matrices())
    assert found == 1 and node.args[1:4:2] == (None, None)


def test_queries_and_keys_share_the_matrices() -> None:
    found, _, nodes = fused(
        lambda net, q, k, m: (by_cosines(q, m), by_cosines(k, m)), *torch.randn(2, B, H, L, D), _matrices()
    )
    assert found == 2 and nodes[0].args[2] is nodes[1].args[2]


def test_one_of_an_operators_two_results() -> None:
    def way(net: Any, q: torch.Tensor, k: torch.Tensor, m: torch.Tensor) -> Any:
        by_operator_of_two(q, m)
        return torch.ops.comfy_kitchen.apply_rope(net.norm(q), k, m)

    found, graph, (node,) = fused(way, *torch.randn(2, B, H, L, D), _matrices())
    assert found == 1 and node.args[3] == 1e-6 and count(graph, torch.ops.comfy_kitchen.apply_rope) == 1


def test_an_operator_without_a_norm_stays() -> None:
    found, _, nodes = fused(lambda net, q, m: by_operator(q, m), torch.randn(B, H, L, D), _matrices())
    assert found == 0 and not nodes


def test_a_norm_that_others_read_stays() -> None:
    def way(net: Any, q: torch.Tensor, m: torch.Tensor) -> Any:
        normed = net.norm(q)
        return normed, by_columns(normed, m)

    found, graph, (node,) = fused(way, torch.randn(B, H, L, D), _matrices())
    assert found == 1 and node.args[3] is None and count(graph, F.rms_norm, torch.rms_norm) == 1


def _third(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    """Halves exchanged, the other one of which is negated."""
    cosines, sines = (m[..., j, 0].repeat(1, 1, 1, 2) for j in (0, 1))
    first, second = x.chunk(2, -1)
    return x * cosines + torch.cat([second, -first], -1) * sines


def _thirds(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    cosines, sines = (m[..., j, 0].repeat(1, 1, 1, 2) for j in (0, 1))
    return x * cosines + torch.cat([-x[..., 3:], x[..., :3]], -1) * sines


def _sum_of_both(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
    cosines, sines = m[..., 0, 0], m[..., 1, 0]
    return torch.stack([first * cosines - second * sines, first * cosines + second * sines], dim=-1).flatten(3)


def _kept(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    """No element is negated."""
    cosines, sines = (m[..., j, 0].repeat_interleave(2, -1) for j in (0, 1))
    first, second = x.reshape(*x.shape[:-1], -1, 2).unbind(-1)
    return x * cosines + torch.stack([second, first], -1).flatten(3) * sines


def _same_column(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    pairs = x.reshape(*x.shape[:-1], -1, 1, 2)
    return (m[..., 0] * pairs[..., 0] + m[..., 1] * pairs[..., 0]).reshape(*x.shape)


@pytest.mark.parametrize("rope", [_third, _thirds, _kept, _same_column, _sum_of_both])
def test_what_only_looks_like_it_stays(rope: Rope) -> None:
    found, _, nodes = fused(lambda net, q, m: rope(q, m), torch.randn(B, H, L, D), _matrices())
    assert found == 0 and not nodes


def test_without_an_impl_all_stays() -> None:
    found, graph, nodes = fused(
        lambda net, q, m: by_columns(net.norm(q), m), torch.randn(B, H, L, D), _matrices(), has_impl=False
    )
    assert found == 0 and not nodes and count(graph, torch.stack) == 0
