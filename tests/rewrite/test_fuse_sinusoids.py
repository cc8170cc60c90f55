"""The ways in which models write down the sinusoids of a timestep."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core.ops.sinusoids import sinusoids
from tests.models import Forward
from tests.tracing import count, rewritten

HALF = 8


def frequencies(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.exp(-math.log(10000) * torch.arange(0, HALF, dtype=torch.float32) / HALF).to(dtype)


def angles(t: torch.Tensor) -> torch.Tensor:
    """As A1111 and ComfyUI have them."""
    return t[:, None].float() * frequencies()[None]


def joined(a: torch.Tensor, b: torch.Tensor, dim: int = -1) -> torch.Tensor:
    return torch.cat([a, b], dim=dim)


def exchanged(whole: torch.Tensor, at: int = HALF) -> torch.Tensor:
    """As diffusers does where cosines are to come first."""
    return joined(whole[:, at:], whole[:, :at])


def both(a: torch.Tensor, dim: int = -1) -> torch.Tensor:
    return joined(torch.cos(a), torch.sin(a), dim)


# name: (vector of timesteps, whether sines come first; None: not fused)
WAYS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], bool | None]] = {
    "cosines first": (lambda t: both(angles(t)), False),
    "sines first": (lambda t: joined(torch.sin(angles(t)), torch.cos(angles(t))), True),
    "halves exchanged": (lambda t: exchanged(joined(torch.sin(angles(t)), torch.cos(angles(t)))), False),
    "the frequencies first": (lambda t: both(frequencies() * t[:, None].float()), False),
    "along dimension 1": (lambda t: both(angles(t), 1), False),
    "below one another": (lambda t: both(angles(t), 0).reshape(-1, 2 * HALF), None),
    "cosines twice": (lambda t: joined(torch.cos(angles(t)), torch.cos(angles(t))), None),
    "of two vectors": (lambda t: joined(torch.cos(angles(t)), torch.sin(angles(t + 1))), None),
    "of sums": (lambda t: both(t[:, None].float() + frequencies()[None]), None),
    "of one another": (lambda t: both(t[:, None].float() * t.float()[None]).repeat(1, 2 * HALF // 4), None),
    "exchanged unevenly": (lambda t: exchanged(joined(torch.sin(angles(t)), torch.cos(angles(t))), 3), True),
    "halves of three": (
        lambda t: exchanged(torch.cat([torch.sin(angles(t)), torch.cos(angles(t)), t[:, None].float()], -1))[:, 1:],
        None,
    ),
    "of one multiple": (lambda t: both(t[:, None].float() * torch.tensor(2.5)).repeat(1, HALF), None),
    "of a table in front": (lambda t: both(t[:, None].float() * frequencies()[None, None])[0], None),
    "in double precision": (lambda t: both(t[:, None].double() * frequencies(torch.float64)[None]), None),
}


def model(way: Callable[[torch.Tensor], torch.Tensor]) -> Forward:
    torch.manual_seed(0)
    return Forward(lambda net, t: net.lin(way(t).to(net.lin.weight.dtype)), lin=nn.Linear(2 * HALF, 4))


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.float16], ids=str)
def test_sines_and_cosines_are_one_op(name: str, dtype: torch.dtype) -> None:
    way, sines_first = WAYS[name]
    found, graph = rewritten("fuse_sinusoids", model(way), torch.tensor([999, 1]).to(dtype), has_impl=lambda *_: True)
    nodes: list[Any] = [node for node in graph.nodes if node.target is sinusoids]
    assert (found, [node.args[2:] for node in nodes]) == (
        (0, []) if sines_first is None else (1, [(sines_first, torch.float32)])
    )
    assert all(node.args[0].meta["val"].dtype == dtype for node in nodes)
    assert count(graph, torch.sin, torch.cos) == 0 or not nodes
    assert count(graph, torch.cat) == (name == "exchanged unevenly") or not nodes


def test_a_cast_behind_them_is_theirs() -> None:
    half = Forward(lambda net, t: net.lin(both(angles(t)).half()), lin=nn.Linear(2 * HALF, 4).half())
    _, graph = rewritten("fuse_sinusoids", half, torch.tensor([999, 1]), has_impl=lambda *_: True)
    assert [node.args[3] for node in graph.nodes if node.target is sinusoids] == [torch.float16]
    twice = Forward(lambda net, t: (lambda e: e.half().float() + e)(both(angles(t))))
    _, graph = rewritten("fuse_sinusoids", twice, torch.tensor([999, 1]), has_impl=lambda *_: True)
    assert [node.args[3] for node in graph.nodes if node.target is sinusoids] == [torch.float32]


def test_a_cast_that_rounds_the_timestep_stays() -> None:
    """What is cast to float32 is read as it is; a timestep that was rounded to float16 first is that one."""
    rounded = model(lambda t: both(t[:, None].half() * frequencies()[None]))
    found, graph = rewritten("fuse_sinusoids", rounded, torch.tensor([999.4, 3.3]), has_impl=lambda *_: True)
    (node,) = [node for node in graph.nodes if node.target is sinusoids]
    assert found == 1 and node.args[0].meta["val"].dtype == torch.float16


def test_without_an_impl_all_stays() -> None:
    found, graph = rewritten("fuse_sinusoids", model(WAYS["cosines first"][0]), torch.tensor([999, 1]))
    assert found == 0 and count(graph, torch.sin) == count(graph, torch.cos) == 1
