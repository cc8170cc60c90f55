"""Random modules that are given a cache and read, change and return what is in it: after each call the result, the
cache and what the module keeps are what an uncompiled copy's are, down to which of all these are one object or lie in
one memory; with changes in between, with CUDA graphs and without.

``--fuzz-models`` says how many (a tenth of that number), ``--fuzz-seed`` runs one alone and prints its source.
"""

from __future__ import annotations

import builtins
import linecache
import random
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, compile
from sfast_core.runtime.graphs import DeviceGraphs
from tests.fuzz.cached import cached_source, change

_CALLS, _STEADY = 12, 4  #: calls, and those at first without changes in between
_SERVED = 0.15  #: so many calls have to be served by a program, or none of this is tried


class _Object:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class _Cache(_Object):
    """Of a class that is taken apart, as transformers' are."""


_Cache.__module__ = "transformers.cache_utils"


def _look(where: Any, name: str) -> Any:
    return where[name] if isinstance(where, dict) else getattr(where, name)


def _put(where: Any, name: str, value: Any) -> None:
    if isinstance(where, dict):
        where[name] = value
    else:
        setattr(where, name, value)


def _has(where: Any, name: str) -> bool:
    return name in where if isinstance(where, dict) else hasattr(where, name)


_NAMES = {"torch": torch, "look": _look, "put": _put, "has": _has}


def _cache(kind: int) -> Any:
    """A cache; of some kinds two of its tensors are one, or lie in one memory."""
    inner = (dict, _Cache, _Cache)[kind % 3](t=torch.zeros(2, 8), n=0, l=[torch.ones(2, 8)])
    first = torch.zeros(2, 8)
    second = first if kind % 5 == 0 else first[:1] if kind % 7 == 0 else torch.ones(2, 8)
    content = {"t": first, "u": second, "l": [torch.ones(2, 8), None], "d": {}, "n": 0, "w": "a", "o": inner}
    return content if kind % 4 else _Cache(**content)


def _module(source: str, name: str) -> nn.Module:
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    names: dict[str, Any] = {"__name__": name, **_NAMES}
    exec(builtins.compile(source, name, "exec"), names)

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.linear, self.scale, self.kept = nn.Linear(8, 8), 1.0, None

        forward = names["forward"]

    return Module().requires_grad_(False)


def _described(value: Any) -> list[tuple[Any, ...]]:
    """All that can be reached, with the tensors' values apart: where it is, of what kind, and what it has in common
    with others.
    """
    found: list[tuple[Any, ...]] = []
    seen: dict[int, str] = {}
    storages: dict[int, str] = {}

    def visit(each: Any, path: str) -> None:
        inner: list[tuple[str, Any]] = []
        if isinstance(each, (torch.Tensor, list, dict, _Object)):
            if id(each) in seen:
                found.append((path, "is", seen[id(each)]))
                return
            seen[id(each)] = path
        if isinstance(each, torch.Tensor):
            memory = storages.setdefault(each.untyped_storage()._cdata, path)
            found.append((path, tuple(each.shape), each.dtype, memory, each.detach().clone()))
        elif isinstance(each, (dict, _Object)):
            items = each if isinstance(each, dict) else vars(each)
            found.append((path, type(each).__name__, list(items)))
            inner = [(f"{path}.{name}", item) for name, item in items.items()]
        elif isinstance(each, (list, tuple)):
            found.append((path, type(each).__name__, len(each)))
            inner = [(f"{path}[{index}]", item) for index, item in enumerate(each)]
        else:
            found.append((path, each))
        for below, item in inner:
            visit(item, below)

    visit(value, "")
    return found


def _difference(ours: list[tuple[Any, ...]], theirs: list[tuple[Any, ...]]) -> str | None:
    if len(ours) != len(theirs):
        return f"{[each[:2] for each in ours]} in the place of {[each[:2] for each in theirs]}"
    for one, other in zip(ours, theirs, strict=True):
        *one_rest, one_last = one
        *other_rest, other_last = other
        if isinstance(one_last, torch.Tensor) and one_rest == other_rest:
            if not torch.allclose(one_last, other_last, rtol=1e-3, atol=1e-3, equal_nan=True):
                return f"{one[0]}: other values"
        elif one != other:
            return f"{one[:4]} in the place of {other[:4]}"
    return None


def _outcome(module: nn.Module, cache: Any, x: torch.Tensor, between: str) -> Any:
    """The result, or the error in words."""
    try:
        exec(between, {"module": module, "cache": cache, **_NAMES})
        with torch.no_grad():
            return module(x, cache)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _wrong(seed: int, served: list[bool]) -> str | None:
    """What differs for this seed. Whether each call was served by a program is added to ``served``."""
    draw = random.Random(seed)
    source, kind = cached_source(draw), draw.randrange(100)
    plain, ours = (_module(source, f"/random_cache_{seed}_{which}.py") for which in ("plain", "ours"))
    handle = compile(ours, CompileConfig(allow_cpu=True))
    caches = _cache(kind), _cache(kind)
    for number in range(_CALLS):
        between = "pass" if number < _STEADY else change(draw)
        x = torch.randn(2, 8, generator=torch.Generator().manual_seed(number))
        expected, got = (_outcome(*each, x, between) for each in zip((plain, ours), caches, strict=True))
        difference = _difference(_described([got, caches[1], ours.kept]), _described([expected, caches[0], plain.kept]))
        if difference:
            return f"call {number}, behind {between!r}: {difference}\n{source}"
        if isinstance(expected, str):
            break
    calls = handle.engine.report.calls
    served += [True] * (calls["fused"] + calls["replayed"]) + [False] * (calls["eager"] + calls["traced"])
    return None


def test_a_call_leaves_its_cache_as_the_plain_one_does(
    captured: bool, seeds: range, request: pytest.FixtureRequest
) -> None:
    if captured:
        graphs: DeviceGraphs = request.getfixturevalue("graphs")
        assert graphs is not None
    served: list[bool] = []
    wrong = {seed: found for seed in seeds if (found := _wrong(seed, served))}
    assert not wrong, "\n\n".join(f"seed {seed}: {found}" for seed, found in wrong.items())
    assert len(seeds) == 1 or sum(served) >= _SERVED * len(served), f"{sum(served)} of {len(served)} calls were served"
