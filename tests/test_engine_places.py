"""Tensors that other people's functions keep and a model's call reads: found by their places, so that the next sampling's need
no new trace.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.taken_in import Host

Options = dict[str, Any]
Make = Callable[[int], Options]


def _table(seed: int, tokens: int = 8) -> torch.Tensor:
    return torch.randn(tokens, generator=torch.Generator().manual_seed(seed))


def closure(seed: int) -> Options:
    """As GLIGEN: a function made anew for each sampling, which closes over what it has computed before."""
    objects = _table(seed)

    def patch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: Options) -> Any:
        return q, k + objects, v

    return {"patches": {"attn": [patch]}}


class Kept:
    """An object with tensors in an attribute, a list and a dict of tuples."""

    def __init__(self, seed: int) -> None:
        self.scale, self.parts = _table(seed), [_table(seed + 1), _table(seed + 2)]
        self.by_name = {"a": (_table(seed + 3), _table(seed + 4)), "b": (_table(seed + 5), _table(seed + 6))}

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: Options) -> Any:
        for one, other in self.by_name.values():
            q = q * one + other
        return q, k * self.scale, v + self.parts[0] - self.parts[1]


def kept(seed: int) -> Options:
    return {"patches": {"attn": [Kept(seed)]}}


def of_a_method(seed: int) -> Options:
    return {"patches": {"attn": [Kept(seed).__call__]}}


def default(seed: int) -> Options:
    def patch(q: Any, k: Any, v: Any, options: Options, objects: torch.Tensor = _table(seed)) -> Any:  # noqa: B008
        return q, k + objects, v

    return {"patches": {"attn": [patch]}}


def _samplings(host: Host, make: Make, seeds: range, steps: int = 3) -> dict[str, int]:
    """Calls in samplings, each with functions of its own, as the model itself. Returns the calls by path."""
    before = host.engine.report.calls.copy()
    for seed in seeds:
        host.engine.taken_in.begin_sampling()
        mine, theirs = make(seed), make(seed)
        for _ in range(steps):
            x = torch.randn(2, 4, 8)
            common = {"cond_or_uncond": [0, 1], "sigmas": torch.full((2,), 5.0)}
            result = host(x.clone(), {**common, **mine})
            with torch.inference_mode():
                expected = host._forward(x, {**common, **theirs})
            torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    return dict(host.engine.report.calls - before)


@pytest.mark.parametrize("make", [closure, kept, of_a_method, default])
def test_the_next_samplings_tensors_need_no_new_trace(make: Make) -> None:
    host = Host()
    _samplings(host, make, range(0, 200, 100))
    assert _samplings(host, make, range(200, 600, 100)) == {"fused": 12}
    assert host.last == (1, 0)


class Cache:
    """As ComfyUI's cache of keys and values: filled by a sampling's first step, read by the others, let go behind it."""

    def __init__(self) -> None:
        self.tokens: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: Options) -> Any:
        name = f"block {options['block']}"
        if name in self.tokens:
            kept_k, kept_v = self.tokens[name]
            self.filled = False
            return q, torch.cat([k, kept_k], dim=1), torch.cat([v, kept_v], dim=1)
        self.tokens[name] = k[:, -2:].clone(), v[:, -2:].clone()
        self.filled = True
        return q, k, v


def _cached(anew: bool) -> Make:
    """The cache that a node keeps, ours and the original's in turns, or one that is made anew for each sampling; beside
    a function that counts what is in it.
    """
    nodes = [Cache(), Cache()]

    def make(seed: int) -> Options:
        nodes.append(Cache() if anew else nodes[0])
        cache = nodes.pop(0)
        cache.tokens = {}
        empty = lambda q, k, v, options: (q * (1 if len(cache.tokens) else 2), k, v)  # noqa: E731
        return {"patches": {"attn": [empty, cache]}}

    return make


@pytest.mark.parametrize("anew", [False, True])
def test_a_cache_that_each_sampling_fills_needs_no_new_trace(anew: bool) -> None:
    host, make = Host(), _cached(anew)
    first = _samplings(host, make, range(3))
    assert first.get("eager", 0) <= 1, host.engine.report.reasons  # whether the state comes back isn't known yet
    assert _samplings(host, make, range(4)) == {"fused": 12}, host.engine.report.reasons
    assert host.last[1] == 0


def test_what_a_node_lets_go_is_gone() -> None:
    host, made = Host(), list[weakref.ref[torch.Tensor]]()
    for _ in range(5):
        caches = [Cache(), Cache()]
        waiting = iter(caches)
        _samplings(host, lambda seed, waiting=waiting: {"patches": {"attn": [next(waiting)]}}, range(1))
        made = [weakref.ref(tensor) for cache in caches for pair in cache.tokens.values() for tensor in pair]
        for cache in caches:
            cache.tokens = {}
    assert len(made) == 8
    assert host.engine.report.calls["fused"] > 8
    gc.collect()
    assert not [ref for ref in made if ref() is not None]


def _patched(*functions: Callable[..., Any]) -> Options:
    return {"patches": {"attn": list(functions)}}


def shared_or_not(seed: int) -> Options:
    """Two functions over one table, or each over one of its own, that begins with the same."""
    tables = [{"scale": _table(seed)}]
    tables.append(tables[0] if seed % 2 else dict(tables[0]))

    def writes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: Options) -> Any:
        tables[0]["scale"] = tables[0]["scale"] * 1.5
        return q, k, v

    return _patched(writes, lambda q, k, v, options: (q * tables[1]["scale"], k, v))


def one_cache_or_two(seed: int) -> Options:
    first = Cache()
    return _patched(first, first if seed % 2 else Cache())


def written_in_place(seed: int) -> Options:
    table = _table(seed)
    return _patched(lambda q, k, v, options: (q, k * table.mul_(1.1), v))


def a_view_of_what_is_written(seed: int) -> Options:
    whole = torch.stack([_table(seed), _table(seed + 1)])
    part = whole[1] if seed % 2 else whole[1].clone()
    return _patched(lambda q, k, v, options: (q * whole.mul_(1.1)[0], k * part, v))


def that_grows(seed: int) -> Options:
    held = [_table(seed)]

    def patch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: Options) -> Any:
        held.append(held[-1] * 1.1)
        return q * held[-1], k, v * len(held)

    return _patched(patch)


def a_parameter(seed: int) -> Options:
    weight = torch.nn.Parameter(_table(seed))
    return _patched(lambda q, k, v, options: (q * weight, k, v))


def other_shapes(seed: int) -> Options:
    table = [_table(seed), _table(seed).view(1, 1, 8), _table(seed).double(), _table(seed, 16)[::2]][seed % 4]
    return _patched(lambda q, k, v, options: ((q * table).to(v.dtype), k, v))


def nothing_at_times(seed: int) -> Options:
    table = None if seed % 2 else _table(seed)
    return _patched(lambda q, k, v, options: (q if table is None else q * table, k, v))


class Recurrent:
    """What it gives depends on what it gave before."""

    def __init__(self, seed: int) -> None:
        self.last, self.count = _table(seed), 0

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: Options) -> Any:
        self.last = self.last * 0.9 + q.mean((0, 1)) * 0.1
        return q * self.last, k, v


class Counting(Recurrent):
    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: Options) -> Any:
        self.count += 1
        return q * self.count, k + self.last, v


def of_a_file_too(seed: int) -> Options:
    """A table that a file has, too: the same one, or another."""
    table = _SHARED.setdefault(f"table {seed}", _table(seed))  # for the original, too
    _SHARED["table"] = table if seed % 2 else _table(seed + 1)
    return _patched(lambda q, k, v, options: (q * table, k * _SHARED["table"], v))


_SHARED: dict[str, torch.Tensor] = {}
MAKES: list[Make] = [
    shared_or_not,
    one_cache_or_two,
    written_in_place,
    a_view_of_what_is_written,
    that_grows,
    a_parameter,
    other_shapes,
    nothing_at_times,
    of_a_file_too,
    lambda seed: _patched(Recurrent(seed)),
    lambda seed: _patched(Counting(seed)),
    lambda seed: _patched(Cache(), Kept(seed), Counting(seed)),
]


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 0, 1), (0, 2, 4, 1, 3, 5), (1, 3, 0, 2, 1, 1)])
@pytest.mark.parametrize("make", MAKES)
def test_each_call_computes_with_what_is_there(make: Make, order: tuple[int, ...]) -> None:
    host = Host()
    for seed in order:
        _samplings(host, make, range(seed, seed + 1))


def test_an_argument_may_be_what_is_kept() -> None:
    """The very tensor that the call is given, at times."""
    host, kept = Host(), Kept(0)
    for step, own in enumerate([False, False, True, True, False, True]):
        x = torch.randn(2, 4, 8)
        kept.scale = x if own else torch.randn(2, 4, 8)
        options = {"cond_or_uncond": [0, 1], "sigmas": torch.full((2,), 5.0), **_patched(kept)}
        with torch.inference_mode():
            expected = host._forward(x, options)
        torch.testing.assert_close(host(x, options), expected, rtol=1e-4, atol=1e-5, msg=f"step {step}")
