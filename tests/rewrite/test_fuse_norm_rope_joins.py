"""Streams that attention reads, normed or joined or both: their norms go along, whether or not anything is rotated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.rewrite.normed_ropes import L2, B, D, H, L, fused
from tests.tracing import count


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def _packed(length: int) -> torch.Tensor:
    return torch.randn(B, length, 3 * H * D)


def _heads(qkv: torch.Tensor) -> list[torch.Tensor]:
    """Queries, keys and values [B, H, L, D]: views of one tensor."""
    return list(qkv.unflatten(-1, (3, H, D)).permute(2, 0, 3, 1, 4).unbind(0))


def test_streams_that_attention_reads_are_joined() -> None:
    def way(net: Any, text: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        return _attention(*(torch.cat(both, dim=2) for both in zip(_heads(text * 2), _heads(image * 2), strict=True)))

    found, graph, nodes = fused(way, _packed(L), _packed(L2))
    assert found == 3 and count(graph, torch.cat) == 0
    assert all(node.args[1:4] == (None, None, None) and len(node.args) == 6 for node in nodes)


def test_norms_go_along_where_nothing_is_rotated() -> None:
    def way(net: Any, text: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        (q, k, v), (q2, k2, v2) = _heads(text * 2), _heads(image * 2)
        joined = (
            torch.cat([net.norm(q), net.other(q2)], 2),
            torch.cat([net.other(k), net.norm(k2)], 2),
            torch.cat([v, v2], 2),
        )
        return _attention(*joined)

    found, graph, nodes = fused(way, _packed(L), _packed(L2))
    assert (
        found == 3
        and [node.args[3] for node in nodes] == [1e-6, 1e-6, None]
        and count(graph, F.rms_norm, torch.rms_norm) == 0
    )


def test_channels_that_nobody_has_seen_in_heads_yet() -> None:
    """As ComfyUI's SD3 joins queries and keys."""

    def way(net: Any, text: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        both = [torch.cat([text.chunk(3, -1)[i], image.chunk(3, -1)[i]], dim=1) for i in range(3)]
        return _attention(*(x.unflatten(-1, (2, 64)).transpose(1, 2) for x in both))

    found, graph, _ = fused(way, torch.randn(B, L, 3 * 128), torch.randn(B, L2, 3 * 128))
    assert found == 3 and count(graph, torch.cat) == 0


def test_normed_heads_that_are_joined_as_channels() -> None:
    """As ComfyUI's SD3.5 does."""

    def way(net: Any, text: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        def rows(x: torch.Tensor, i: int, norm: Any) -> torch.Tensor:
            return norm(x.unflatten(-1, (3, H, D))[:, :, i]).flatten(2)

        q, k = (torch.cat([rows(text, i, net.norm), rows(image, i, net.other)], dim=1) for i in (0, 1))
        return _attention(*(x.unflatten(-1, (H, D)).transpose(1, 2) for x in (q, k, k)))

    found, graph, nodes = fused(way, _packed(L), _packed(L2))
    assert (
        found == 2
        and count(graph, torch.cat, F.rms_norm, torch.rms_norm) == 0
        and all(node.args[3] == 1e-6 for node in nodes)
    )


JOINS_THAT_STAY: dict[str, Callable[..., Any]] = {
    "others read it": lambda net, a, b: (lambda q: (q, _attention(q, q, q)))(
        torch.cat([_heads(a)[0], _heads(b)[0]], 2)
    ),
    "both lie dense": lambda net, a, b: (lambda q: _attention(q, q, q))(
        torch.cat([_heads(x)[0].contiguous() * 2 for x in (a, b)], 2)
    ),
    "within the heads": lambda net, a, b: (lambda q: _attention(q, q, q))(torch.cat([_heads(a)[0], _heads(a)[1]], 3)),
}


@pytest.mark.parametrize("name", JOINS_THAT_STAY)
def test_other_joins_stay(name: str) -> None:
    found, _, nodes = fused(JOINS_THAT_STAY[name], _packed(L), _packed(L2))
    assert found == 0 and not nodes


def _by_head(net: Any, x: torch.Tensor) -> torch.Tensor:
    q, k, v = x.unflatten(-1, (3, H, D)).unbind(2)
    return _attention(net.norm(q).transpose(1, 2), net.other(k).transpose(1, 2), v.transpose(1, 2))


def _heads_first(net: Any, x: torch.Tensor) -> torch.Tensor:
    q, k, v = _heads(x * 2)
    return _attention(net.norm(q), net.other(k), v)


def _in_float32(net: Any, x: torch.Tensor) -> torch.Tensor:
    q, k, v = _heads(x * 2)
    return _attention(net.norm(q.float()).type_as(q), net.other(k.float()).type_as(k), v)


def _over_all_heads(net: Any, x: torch.Tensor) -> torch.Tensor:
    q, k, v = x.chunk(3, -1)
    return _attention(*(y.unflatten(-1, (H, D)).transpose(1, 2) for y in (net.norm(q), net.other(k), v)))


@pytest.mark.parametrize(
    ("way", "width"), [(_by_head, D), (_heads_first, D), (_in_float32, D), (_over_all_heads, H * D)]
)
def test_norms_that_attention_reads(way: Callable[..., Any], width: int) -> None:
    layers = {name: torch.nn.RMSNorm(width, eps=1e-6) for name in ("norm", "other")}
    found, graph, nodes = fused(way, _packed(L), **layers)
    assert found == 2 and count(graph, F.rms_norm, torch.rms_norm) == 0
    assert [tuple(node.args[2:4]) for node in nodes] == [(None, 1e-6)] * 2
    assert fused(way, _packed(L), has_impl=False, **layers)[0] == 0


NORMS_THAT_STAY: dict[str, Callable[..., Any]] = {
    "of values that others read": lambda net, x: (lambda q: _attention(q, q, q) + q)(net.norm(_heads(x * 2)[0])),
    "of no queries": lambda net, x: net.norm(_heads(x * 2)[0]) * 2,
    "of heads that are seen otherwise": lambda net, x: (
        _attention(*[net.norm(x[..., :D]).reshape(B, 1, L, D)] * 3) + net.norm(x[..., :D]).sum()
    ),
}


@pytest.mark.parametrize("name", NORMS_THAT_STAY)
def test_other_norms_stay(name: str) -> None:
    found, graph, _ = fused(NORMS_THAT_STAY[name], _packed(L))
    assert found == 0 and count(graph, F.rms_norm, torch.rms_norm) >= 1


def _rotated(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    one, other = x.chunk(2, -1)
    return x * cosines + torch.cat([-other, one], -1) * sines


def _tables(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    angles = torch.arange(length)[:, None] * torch.rand(D // 2)
    return angles.cos().repeat(1, 2)[None, None], angles.sin().repeat(1, 2)[None, None]


def test_a_norm_in_front_of_the_turn_to_heads() -> None:
    """As in Qwen3 and ACE-Step 1.5."""

    def way(net: Any, x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
        q, k, v = x.unflatten(-1, (3, H, D)).unbind(2)
        q, k = (_rotated(norm(y).transpose(1, 2), cosines, sines) for norm, y in ((net.norm, q), (net.other, k)))
        return _attention(q, k, v.transpose(1, 2))

    found, graph, nodes = fused(way, _packed(L), *_tables(L))
    assert found == 2 and count(graph, F.rms_norm, torch.rms_norm) == 0
    assert all(node.args[1] is not None and node.args[2] is not None and node.args[3] == 1e-6 for node in nodes)


@pytest.mark.parametrize("wide", [False, True])
def test_joined_norms_in_front_of_the_turn_to_heads(wide: bool) -> None:
    """As in Lens; with norms over all heads as in HiDream."""

    def way(net: Any, x: torch.Tensor, y: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
        def stream(both: torch.Tensor, which: int, norm: Any) -> torch.Tensor:
            part = both.chunk(3, -1)[which]
            return norm(part).unflatten(-1, (H, D)) if wide else norm(part.unflatten(-1, (H, D)))

        q, k = (
            _rotated(torch.cat([stream(x, i, net.norm), stream(y, i, net.other)], 1).transpose(1, 2), cosines, sines)
            for i in range(2)
        )
        v = torch.cat([both.chunk(3, -1)[2] for both in (x, y)], 1).unflatten(-1, (H, D)).transpose(1, 2)
        return _attention(q, k, v)

    layers = {name: torch.nn.RMSNorm(H * D if wide else D, eps=1e-6) for name in ("norm", "other")}
    found, graph, nodes = fused(way, _packed(L), _packed(L2), *_tables(L + L2), **layers)
    assert count(graph, F.rms_norm, torch.rms_norm) == 0
    assert sum(len(node.args) > 5 and node.args[5] is not None for node in nodes) == 2
