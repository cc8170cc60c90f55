"""What a call leaves behind is there as if nothing were compiled: eight calls beside an uncompiled twin, results and
all that others see compared.
"""

from __future__ import annotations

import random
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _pytree

from sfast_core import CompileConfig, compile
from tests.capture.effects.kinds import EFFECTS, Effect
from tests.capture.steering.worlds import PRELUDE, World, two_worlds

CALLS = 8


def source(effect: Effect) -> str:
    """The file of one kind."""
    indented = lambda text, by: textwrap.indent(text, " " * by)  # noqa: E731
    return (
        f"{PRELUDE}\n{effect.top}\nclass Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.linear = nn.Linear(8, 8)\n{indented(effect.init, 8)}\n"
        f"    def forward(self, x{', l, d' if effect.arguments else ''}):\n{indented(effect.forward, 8)}\n"
        "class Outer(nn.Module):\n    def __init__(self, child):\n        super().__init__()\n        self.child = child\n    def forward(self, *args): return self.child(*args)\n"
        f"def build(): return Outer(Model()).train({effect.train}).requires_grad_(False)\ndef side(m): return {effect.side}\n"
    )


def arguments(effect: Effect, step: int) -> list[Any]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(2, 8, generator=generator) * (step + 1)
    return [x, [torch.randn(2, 8, generator=generator)], {"scale": 2.0}] if effect.arguments else [x]


def seeded(step: int) -> None:
    torch.manual_seed(step), random.seed(step), np.random.seed(step)


def called(world: World, call: Any, effect: Effect, step: int, kept: list[Any]) -> tuple[Any, Any, Any]:
    """The result, what others see then, and what became of the arguments: each as it stands, and its values of this
    moment.
    """
    given = arguments(effect, step)
    if effect.kept:
        given[1:] = kept
    if effect.draws:
        seeded(step)
    result = call(*given)
    # its lists and dicts as they are now, and its tensors themselves
    side = _pytree.tree_map(lambda leaf: leaf, world.file.side(world.steered))
    return result, (side, _values(side)), (given, _values(given))


def _values(tree: Any) -> Any:
    return _pytree.tree_map_only(torch.Tensor, torch.clone, tree)


def same(ours: Any, theirs: Any, where: str) -> None:
    """Both are built alike, of equal values."""
    (ours, tree), (theirs, other) = _pytree.tree_flatten(ours), _pytree.tree_flatten(theirs)
    assert tree == other, f"{where}: {tree} in the place of {other}"
    for a, b in zip(ours, theirs, strict=True):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, msg=lambda text: f"{where}: {text}")
        else:
            assert type(a) is type(b), f"{where}: a {type(a).__name__} in the place of a {type(b).__name__}"
            assert a == b or (a != a and b != b) or (isinstance(b, float) and a == pytest.approx(b, rel=1e-4)), (
                f"{where}: {a} in the place of {b}"
            )


@pytest.mark.parametrize("name", EFFECTS)
def test_a_call_leaves_behind_what_it_does(name: str, tmp_path: Path) -> None:
    effect = EFFECTS[name]
    text = source(effect)
    with two_worlds(text, tmp_path) as (ours, twin):
        modes: list[bool] = []
        seen: list[list[Any]] = []
        for world in (twin, ours):
            handle = compile(ours.module, CompileConfig(allow_cpu=True)) if world is ours else None
            kept: list[Any] = [[], {}]
            with torch.no_grad():
                seen.append([called(world, handle or twin.module, effect, step, kept) for step in range(CALLS)])
                modes.append(torch.is_grad_enabled())
        assert modes[0] == modes[1]
        # Compared behind all calls: what an early call has handed out is what it was.
        for step, (theirs, mine) in enumerate(zip(*seen, strict=True)):
            for what, a, b in zip(("the result", "what others see", "the arguments"), mine, theirs, strict=True):
                same(a, b, f"{what} of call {step}, {dict(handle.engine.report.calls)}\n{text}\n")
        same({**ours.module.state_dict()}, {**twin.module.state_dict()}, "the state behind all")
        if effect.fused:
            assert handle.engine.report.calls["fused"] >= CALLS - 2, (
                f"EAGER: {dict(handle.engine.report.reasons)}\n{text}"
            )
        if effect.at_once:
            assert not handle.engine.report.calls["eager"], dict(handle.engine.report.reasons)
