"""Forwards that keep a state in their arguments, as causal models and decoders of videos do: it is left as the forward
itself leaves it.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, compile
from tests.fakes import FakeBackend

CACHES = "transformers.cache_utils"  # the stand-ins' file, as they say


class Layer:
    """One layer's keys, in memory of one size that is written to in place."""

    __module__ = CACHES

    def __init__(self, size: int) -> None:
        self.size = size
        self.keys: torch.Tensor | None = None
        self.length = torch.tensor(0)

    def update(self, keys: torch.Tensor) -> torch.Tensor:
        if self.keys is None:
            self.keys, self.device = keys.new_zeros(keys.shape[0], self.size, keys.shape[2]), keys.device
        at = torch.arange(keys.shape[1]) + self.length
        self.length.add_(keys.shape[1])
        self.keys.index_copy_(1, at, keys)
        return self.keys


class Growing(Layer):
    """The same, but longer with each call."""

    __module__ = CACHES

    def update(self, keys: torch.Tensor) -> torch.Tensor:
        self.length = self.length + keys.shape[1]
        self.keys = keys if self.keys is None else torch.cat([self.keys, keys], dim=1)
        return self.keys


class Cache:
    """A list of layers."""

    __module__ = CACHES

    def __init__(self, kind: type[Layer] = Layer) -> None:
        self.layers: list[Layer] = [kind(16) for _ in range(2)]
        self.seen = {"updated": False}


class Model(nn.Module):
    """Attends to what came before."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.ModuleList(nn.Linear(8, 24) for _ in range(2))

    def forward(self, x: torch.Tensor, cache: Cache | None = None, use_cache: bool = True) -> dict[str, Any]:
        if cache is None and use_cache:
            cache = Cache()
        for index, project in enumerate(self.project):
            q, k, v = project(x).chunk(3, dim=-1)
            if cache is not None:
                k = v = cache.layers[index].update(k)
                cache.seen["updated"] = True
            x = x + nn.functional.scaled_dot_product_attention(q, k, v)
        return {"x": x, "cache": cache}


class Twins:
    """A compiled model and one that isn't, with caches of their own."""

    def __init__(self, model: type[nn.Module] = Model) -> None:
        torch.manual_seed(0)
        self.slow = model().eval()
        self.model = copy.deepcopy(self.slow)
        self.handle = compile(self.model, CompileConfig(allow_cpu=True))

    def __call__(self, x: torch.Tensor, mine: Any, theirs: Any, **more: Any) -> tuple[Any, Any]:
        """What both return; it and both caches are the same afterwards."""
        with torch.inference_mode():
            results = self.model(x, mine, **more), self.slow(x, theirs, **more)
        assert_alike(*results)
        assert_alike(mine, theirs)
        return results

    @property
    def calls(self) -> dict[str, int]:
        return dict(self.handle.engine.report.calls)


def assert_alike(one: Any, other: Any) -> None:
    """Built alike, with the same values."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        return torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_alike(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_alike(*pair)
    elif type(one).__module__ == CACHES:
        assert_alike(vars(one), vars(other))
    else:
        assert one == other


def test_a_step_with_a_cache_of_one_size_has_one_trace(path: str) -> None:
    twins, mine, theirs = Twins(), Cache(), Cache()
    twins(torch.randn(2, 5, 8), mine, theirs)
    layers, keys = mine.layers, [layer.keys for layer in mine.layers]
    for _ in range(6):
        results = twins(torch.randn(2, 1, 8), mine, theirs)
        assert results[0]["cache"] is mine
    assert mine.layers is layers and all(layer.keys is kept for layer, kept in zip(layers, keys, strict=True))
    assert twins.calls == {"traced": 2, path: 5}


def test_another_cache_has_the_same_trace(path: str) -> None:
    twins = Twins()
    for _ in range(3):
        mine, theirs = Cache(), Cache()
        twins(torch.randn(2, 5, 8), mine, theirs)
        twins(torch.randn(2, 1, 8), mine, theirs)
    assert twins.calls == {"traced": 2, path: 4}


def test_a_long_cache_is_not_copied(path: str) -> None:
    """A step writes its rows where the cache lies: a graph holds nothing of its size, and one is captured for each
    cache.
    """
    twins = Twins()
    for number in range(3):
        mine, theirs = Cache(), Cache()
        twins(torch.randn(2, 5, 8), mine, theirs)
        lie = [layer.keys.data_ptr() for layer in mine.layers]
        for _ in range(9):
            twins(torch.randn(2, 1, 8), mine, theirs)
        step = twins.handle.engine.report.signatures[1]
        assert [layer.keys.data_ptr() for layer in mine.layers] == lie
        if path == "replayed":
            # one may lie where another lay
            assert step.graph_bytes - FakeBackend().cost < mine.layers[0].keys.nbytes and step.captures <= 1 + number
    assert twins.calls == {"traced": 2, path: 28}


def test_caches_that_take_turns_share_a_graph(path: str) -> None:
    """Two sequences, a token each in turn: to capture at each call would take longer than to copy."""
    twins, mine, theirs = Twins(), [Cache(), Cache()], [Cache(), Cache()]
    for _ in range(8):
        for one, other in zip(mine, theirs, strict=True):
            twins(torch.randn(2, 1, 8), one, other)
    assert twins.calls == {"traced": 2, path: 14}
    assert twins.handle.engine.report.signatures[1].captures == (3 if path == "replayed" else 0)


class OneMemory(Cache):
    """Whose layers' keys are parts of one tensor."""

    __module__ = CACHES

    def __init__(self) -> None:
        super().__init__()
        for layer, keys in zip(self.layers, torch.zeros(2, 2, 16, 8), strict=True):
            layer.keys, layer.device = keys, keys.device


def test_caches_in_one_memory_are_left_as_they_would_be(path: str) -> None:
    twins, mine, theirs = Twins(), OneMemory(), OneMemory()
    for _ in range(4):
        twins(torch.randn(2, 1, 8), mine, theirs)
    assert twins.calls == {"traced": 2, path: 2}


def test_a_cache_that_the_forward_makes_is_a_new_one_each_time(path: str) -> None:
    twins = Twins()
    made = []
    for _ in range(3):
        results = twins(torch.randn(2, 5, 8), None, None)
        made.append(results[0]["cache"])
        twins(torch.randn(2, 1, 8), results[0]["cache"], results[1]["cache"])
    assert (
        len(set(map(id, made))) == 3 and len({layer.keys.data_ptr() for cache in made for layer in cache.layers}) == 6
    )
    assert twins.calls == {"traced": 2, path: 4}


def test_a_cache_that_grows_runs_as_it_was_and_says_so(path: str) -> None:
    twins = Twins()
    for _ in range(2):
        mine, theirs = Cache(Growing), Cache(Growing)
        twins(torch.randn(2, 5, 8), mine, theirs)
        for _ in range(5):
            twins(torch.randn(2, 1, 8), mine, theirs)
    assert twins.calls == {"traced": 2, path: 1, "eager": 9}
    assert list(twins.handle.engine.report.reasons) == ["the keys of a Growing grow with each call"]


def test_without_a_cache(path: str) -> None:
    twins = Twins()
    for _ in range(3):
        twins(torch.randn(2, 5, 8), None, None, use_cache=False)
    assert twins.calls == {"traced": 1, path: 2}


def test_a_cache_that_two_layers_share(path: str) -> None:
    twins, mine, theirs = Twins(), Cache(), Cache()
    for cache in (mine, theirs):
        cache.layers[1] = cache.layers[0]
    for _ in range(4):
        twins(torch.randn(2, 1, 8), mine, theirs)
    assert mine.layers[0] is mine.layers[1]
    assert twins.calls["traced"] == 2 and twins.calls[path] == 2


def test_what_a_cache_holds_that_nobody_understands_is_named() -> None:
    twins, mine, theirs = Twins(), Cache(), Cache()
    mine.stream = theirs.stream = iter(())  # type: ignore[attr-defined]
    twins(torch.randn(2, 1, 8), mine, theirs)
    assert list(twins.handle.engine.report.reasons) == [
        "args[1] holds a tuple_iterator in its stream, which can't be part of a signature"
    ]


class Broken(Model):
    """Fails when it has changed the cache's first layer."""

    def forward(self, x: torch.Tensor, cache: Cache | None = None, use_cache: bool = True) -> dict[str, Any]:
        assert cache is not None
        cache.layers[0].update(self.project[0](x)[..., :8])
        if x.shape[1] == 3:
            raise ValueError("no")
        return {"x": x, "cache": cache}


def test_a_call_that_fails_leaves_the_cache_as_it_does_without_us(path: str) -> None:
    twins, mine, theirs = Twins(Broken), Cache(), Cache()
    twins(torch.randn(2, 1, 8), mine, theirs)
    x = torch.randn(2, 3, 8)
    for model, cache in ((twins.model, mine), (twins.slow, theirs)):
        with pytest.raises(ValueError, match="no"), torch.inference_mode():
            model(x, cache)
    assert_alike(mine, theirs)
    twins(torch.randn(2, 1, 8), mine, theirs)
