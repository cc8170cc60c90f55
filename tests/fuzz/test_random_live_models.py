"""Random modules with code that no graph can hold: whatever that reads, keeps and leaves behind, each call is what an
uncompiled copy's is, and so is what it leaves; with changes in between, with CUDA graphs and without.

``--fuzz-models`` says how many (a tenth of that number), ``--fuzz-seed`` runs one alone and prints its source.
"""

from __future__ import annotations

import builtins
import collections
import linecache
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from sfast_core import CompileConfig, compile
from sfast_core.runtime.graphs import DeviceGraphs
from tests.fuzz.compared import compare_results, seed_all
from tests.fuzz.live import live_source

_CALLS = 4  #: at first, and behind each change
_SERVED = 0.15  #: so many calls have to be served by a program, or none of this is tried


class World:
    """A file of its own with one module, and what its calls give and leave behind."""

    def __init__(self, text: str, seed: int, compiled: bool) -> None:
        name = f"fuzz_live_{seed}_{compiled}"
        self.file = types.ModuleType(name)
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)  # for tracebacks
        exec(builtins.compile(text, name, "exec"), self.file.__dict__)
        seed_all(seed)
        # in float64 no rounding decides which way a value sends the code
        self.net: Any = self.file.Model().eval().requires_grad_(False).double()
        self.rows = 2
        self.handle = compile(self.net, CompileConfig(allow_cpu=True)) if compiled else None

    def call(self, number: int) -> tuple[Any, Any, Any]:
        """The result, the input as it is then, and what is left."""
        seed_all(number)
        np.random.seed(number)
        x = torch.randn(self.rows, 8, dtype=torch.float64)
        result = self.net(x)
        blocks = [vars(block) for block in self.net.blocks]
        kept = [{name: own[name] for name in own if name not in ("forward", "_fast_compile_engine")} for own in blocks]
        return result, x, plain([kept, self.file.HISTORY, vars(self.file.BOX), dict(self.net.named_buffers())])


def plain(value: Any) -> Any:
    """What can be compared of what is kept: a dict by tensors as its items, and iterators and layers by their names."""
    if isinstance(value, dict):
        if any(isinstance(key, torch.Tensor) for key in value):
            return [plain(item) for pair in value.items() for item in pair]
        return {str(key): plain(item) for key, item in value.items() if not str(key).startswith("_")}
    if isinstance(value, (list, tuple)):
        return list(map(plain, value))
    if isinstance(value, (bool, int, float)):
        return torch.tensor(float(value))
    return value.clone() if isinstance(value, torch.Tensor) else {type(value).__name__: []}


def _other_scales(world: World) -> None:
    for module in world.net.modules():
        if "scale" in vars(module):
            module.scale *= 0.7


def _forget(world: World) -> None:
    for module in world.net.modules():
        own = vars(module)
        own.update({name: None for name in ("before", "kept", "last", "seen") if name in own})
        for name in own.keys() & {"known", "table", "maps"}:
            own[name].clear()
    world.file.BOX.value = None


def _other_weights(world: World) -> None:
    for module in world.net.modules():
        for number, (name, parameter) in enumerate(module._parameters.items()):
            if parameter is not None and number % 2:
                module._parameters[name] = torch.nn.Parameter(parameter * 1.1, requires_grad=False)
            elif parameter is not None:
                parameter.mul_(1.1)


def _swap(world: World) -> None:
    blocks = world.net.blocks
    first, second = blocks[0], blocks[1]
    blocks[0], blocks[1] = second, first


def _more_rows(world: World) -> None:
    _forget(world)
    world.rows = 3


CHANGES: tuple[Callable[[World], None], ...] = (_other_scales, _forget, _other_weights, _swap, _more_rows)


def compared(text: str, seed: int) -> collections.Counter[str]:
    """Compare a compiled module with an uncompiled one. Returns how its calls were served."""
    mine, theirs = World(text, seed, True), World(text, seed, False)
    assert mine.handle is not None
    for number in range(_CALLS * (1 + len(CHANGES))):
        change = CHANGES[number // _CALLS - 1] if number and number % _CALLS == 0 else None
        if change is not None:
            change(mine)
            change(theirs)
        got, expected = mine.call(number), theirs.call(number)
        where = f"call {number}" + (f", behind {change.__name__}" if change else "")
        for what, a, b in zip(("result", "input", "what is left"), got, expected, strict=True):
            compare_results(plain(a), plain(b), torch.float64, f"{where}: {what}")
    return collections.Counter(mine.handle.engine.report.calls)


def test_what_a_random_live_model_computes(
    seeds: range, captured: bool, request: pytest.FixtureRequest, graphs: DeviceGraphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not captured:
        monkeypatch.setattr("sfast_core.engine.device_graphs", lambda device: None)
    served: collections.Counter[str] = collections.Counter()
    for seed in seeds:
        text = live_source(seed)
        if request.config.getoption("--fuzz-seed") is not None:
            print(text)
        try:
            served += compared(text, seed)
        except Exception:
            text, error = shortest(seed)
            pytest.fail(f"--fuzz-seed {seed}: {type(error).__name__}: {error}\n\n{text}", pytrace=False)
    if len(seeds) > 1:
        assert served["replayed" if captured else "fused"] >= _SERVED * served.total(), served


def shortest(seed: int) -> tuple[str, Exception]:
    """The source of the fewest acts of this seed that fails, and how."""
    for acts in range(1, 99):
        text = live_source(seed, acts)
        try:
            compared(text, seed)
        except Exception as error:
            return text, error
    raise AssertionError(f"seed {seed} fails only sometimes")
