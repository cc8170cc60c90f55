"""A model whose forward can't be fused as a whole: its blocks are, one by one."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig
from sfast_core.engine import Engine
from sfast_core.hosts.comfy.by_blocks import ByBlocks
from sfast_core.hosts.hook import HookedCall
from sfast_core.hosts.live import LiveCalls
from sfast_core.hosts.options import Steering
from sfast_core.runtime.store import WeightStore

CONFIG = CompileConfig(allow_cpu=True)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, transformer_options: dict[str, Any]) -> torch.Tensor:
        x = torch.nn.functional.silu(self.layer(x)) + x
        for patch in transformer_options.get("patches", {}).get("block", ()):
            x = patch(x)
        return x


class Model(nn.Module):
    """Three blocks, which are left out where the input has hardly changed since the last call that ran them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.blocks = nn.Linear(8, 8), nn.ModuleList(Block() for _ in range(3))
        self.before: torch.Tensor | None = None
        self.added: torch.Tensor | None = None
        self.eval()

    def forward(self, x: torch.Tensor, transformer_options: dict[str, Any] | None = None) -> torch.Tensor:
        x = self.first(x)
        changed = self.before is None or float((x - self.before).abs().mean()) > 0.1
        if changed or self.added is None:
            self.before, y = x, x
            for block in self.blocks:
                y = block(y, transformer_options=transformer_options or {})
            self.added = y - x
        return x + self.added


def _pair() -> tuple[Model, Model]:
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        made.append(Model())
    return made[0], made[1]


def _through(model: Model) -> tuple[Engine, ByBlocks, Callable[..., torch.Tensor]]:
    engine = Engine("Model", CONFIG)
    parts = ByBlocks(engine.reporter, engine.store, lambda name: Engine(name, CONFIG))
    engine.in_parts = parts.call
    forward, live = model.forward, LiveCalls(engine)

    def call(x: torch.Tensor, **options: Any) -> Any:
        def compute(traced: Callable[..., Any], steering: Steering) -> Any:
            return engine.call(
                model, traced, steering.args, steering.kwargs, lambda: forward(x, **options), steering.around
            )

        return live(HookedCall(model, forward, None, (x,), options), compute)

    return engine, parts, call


def test_blocks_are_fused_where_the_forward_reads_values() -> None:
    ours, twin = _pair()
    engine, parts, call = _through(ours)
    with torch.no_grad():
        for seed in (1, 2, 3, 3, 3, 4, 5):
            x = torch.randn(2, 8, generator=torch.Generator().manual_seed(seed))
            torch.testing.assert_close(call(x), twin(x))
    # a layer in front of the blocks is called at each, and where it alone is, nothing of weight ran by us
    assert engine.report.calls == {"eager": 1, "traced": 2, "fused": 2}
    (answered,) = engine.report.answered.items()
    assert answered[1] == 2 and answered[0].startswith("code that runs none of its blocks (")
    (blocks,) = parts.reports()
    assert blocks.name == "Model, its blocks" and blocks.calls["traced"] == 4 and not blocks.calls["eager"]


def test_a_weight_that_changes_and_a_function_of_others() -> None:
    ours, twin = _pair()
    engine, _, call = _through(ours)
    with torch.no_grad():
        for step, factor in enumerate((None, None, None, None, 1.5, 1.5, 1.5, 1.5, 0.5, 0.5, None)):
            options = {} if factor is None else {"patches": {"block": [lambda x, factor=factor: x * factor]}}
            if step == 7:
                for model in (ours, twin):
                    model.blocks[1].layer.weight.mul_(2.0)
            x = torch.randn(2, 8, generator=torch.Generator().manual_seed(step))
            torch.testing.assert_close(call(x, transformer_options=options), twin(x, transformer_options=options))
    assert engine.report.calls["fused"] >= 3


class Twofold(nn.Module):
    """A block with another method than its forward: of its parts, one is a layer alone."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(8), nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(self.norm(x))

    def step(self, x: torch.Tensor) -> torch.Tensor:
        """What a model with a cache calls."""
        return x - self.inner(self.norm(x))


class TwoWays(nn.Module):
    """It asks what it has kept which of its blocks' methods is to run, and whether any."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Twofold() for _ in range(3))
        self.eval()

    def forward(self, x: torch.Tensor, way: list[str]) -> torch.Tensor:
        float(x.sum())
        for block in self.blocks:
            x = x if way[0] == "none" else block.step(x) if way[0] == "parts" else block(x)
        return x


def test_blocks_that_are_run_by_another_method_are_fused_by_their_parts() -> None:
    """Such a call isn't one that somebody has answered; what is run in one call is fused in the next."""
    torch.manual_seed(0)
    ours = TwoWays()
    engine = Engine("TwoWays", CONFIG)
    parts = ByBlocks(engine.reporter, engine.store, lambda name: Engine(name, CONFIG))
    ways = ["whole", "parts", "parts", "parts", "none", "parts", "whole", "whole", "whole"]
    with torch.no_grad():
        for seed, way in enumerate(ways):
            x = torch.randn(2, 8, generator=torch.Generator().manual_seed(seed))
            expected = ours(x, [way])
            torch.testing.assert_close(parts.call(ours, "a test", lambda x=x, way=way: ours(x, [way])), expected)
    assert sum(engine.report.answered.values()) == 1
    # the second call finds out, the third and the first whole one are traced; parts run once more inside a whole one
    assert engine.report.calls == {"eager": 1, "traced": 2, "fused": 5}, engine.report.text()
    assert not any("forward" in module.__dict__ for module in ours.modules())


def test_blocks_whose_forwards_others_replace_during_the_call_have_been_run() -> None:
    """As ComfyUI-NAG's for SD3: nobody has answered such a call in the model's place."""
    torch.manual_seed(0)
    ours = TwoWays()
    engine = Engine("TwoWays", CONFIG)
    parts = ByBlocks(engine.reporter, engine.store, lambda name: Engine(name, CONFIG))

    def by_layers(self: Twofold, x: torch.Tensor) -> torch.Tensor:
        for layer in (self.norm, *self.inner):
            x = layer(x)
        return x

    def theirs(x: torch.Tensor) -> torch.Tensor:
        before = [block.forward for block in ours.blocks]
        for block in ours.blocks:
            block.forward = by_layers.__get__(block)
        found = ours(x, ["whole"])
        for block, forward in zip(ours.blocks, before, strict=True):
            block.forward = forward
        return found

    with torch.no_grad():
        for seed in range(3):
            x = torch.randn(2, 8, generator=torch.Generator().manual_seed(seed))
            expected = theirs(x)
            torch.testing.assert_close(parts.call(ours, "a test", lambda x=x: theirs(x)), expected)
    assert not engine.report.answered and engine.report.reasons == {"a test": 3}, engine.report.text()
    assert not any("forward" in layer.__dict__ for block in ours.blocks for layer in block.children())


def test_nothing_of_ours_stays_on_the_blocks() -> None:
    ours, _ = _pair()
    _, _, call = _through(ours)
    with torch.no_grad():
        for seed in range(4):
            call(torch.randn(2, 8, generator=torch.Generator().manual_seed(seed)))
    assert not any("forward" in module.__dict__ for module in ours.modules())


def test_what_a_block_raises_reaches_the_caller() -> None:
    ours, _ = _pair()
    engine = Engine("Model", CONFIG)
    parts = ByBlocks(engine.reporter, engine.store, lambda name: Engine(name, CONFIG))

    def wrong() -> torch.Tensor:
        return ours.blocks[0](torch.randn(2, 7), transformer_options={})

    with torch.no_grad(), pytest.raises(RuntimeError, match="shapes"):
        parts.call(ours, "a test", wrong)
    assert "forward" not in ours.blocks[0].__dict__


@pytest.mark.parametrize("partly", [False, True], ids=["a function", "a partial"])
def test_whoever_was_seen_to_run_the_blocks_is_known_by_its_code(partly: bool) -> None:
    """Nodes put another method of the same code there at each call."""
    ours, _ = _pair()
    parts = ByBlocks(Engine("Model", CONFIG).reporter, WeightStore(), lambda name: Engine(name, CONFIG))

    def theirs(self: Model, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.blocks[0](self.first(x) * scale, transformer_options={})

    def put() -> None:
        """As ComfyUI-NAG: a method of what some of the arguments are given to."""
        method = MethodType(functools.partial(theirs, scale=2.0), ours) if partly else theirs.__get__(ours)
        ours.forward = method  # type: ignore[method-assign]

    put()
    assert parts.why(ours) is None
    parts.walked(ours)
    put()
    why = parts.why(ours)
    assert why is not None and why.startswith("another node replaces its forward (")
    del ours.forward
    assert parts.why(ours) is None


def test_it_goes_without_the_collector() -> None:
    ours, _ = _pair()
    engine, parts, call = _through(ours)
    with torch.no_grad():
        for seed in range(4):
            call(torch.randn(2, 8, generator=torch.Generator().manual_seed(seed)))
    gone = [weakref.ref(engine), weakref.ref(parts)]
    gc.disable()
    try:
        del engine, parts, call
        assert [each() for each in gone] == [None, None]
    finally:
        gc.enable()


def test_code_of_others_finds_weights_with_the_strides_that_the_model_gave_them() -> None:
    """A program of the whole model has turned them for itself."""
    net = nn.Sequential(nn.Conv2d(4, 8, 3), nn.Conv2d(8, 4, 3)).eval().requires_grad_(False)
    engine, x = Engine("Net", CONFIG), torch.randn(1, 4, 16, 16)
    parts, forward = ByBlocks(engine.reporter, engine.store, lambda name: Engine(name, CONFIG)), net.forward
    with torch.no_grad():
        for _ in range(2):
            engine.call(net, forward, (x,), {})
        assert not net[0].weight.is_contiguous()
        assert parts.call(net, "a test", lambda: net[0].weight.view(8, -1).sum() + net(x).sum()).isfinite()


def _run(layers: nn.Module, x: torch.Tensor) -> torch.Tensor:
    for layer in layers.children():
        x = layer(x)
    return x


class Layers(nn.Sequential):
    """As ComfyUI's UNet has them: a function calls what is in them, never the whole."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _run(self, x)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(8, 8), nn.SiLU())
        self.input_blocks = nn.ModuleList(Layers(nn.Linear(8, 8), nn.SiLU()) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.input_blocks:
            x = _run(block, x)
        return x


def _fused_by_blocks(model: nn.Module) -> ByBlocks:
    """What has run a model's blocks by themselves, in three calls."""
    engine = Engine(type(model).__name__, CONFIG)
    parts, x = ByBlocks(engine.reporter, engine.store, lambda name: Engine(name, CONFIG)), torch.randn(2, 8)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(parts.call(model, "a test", lambda: model(x)), model(x))
    assert engine.report.calls == {"traced": 1, "fused": 2}
    return parts


class Levels(nn.Module):
    """As Stable Cascade's: lists of lists of blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.ModuleList(nn.Linear(8, 8) for _ in range(2)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for level in self.down:
            x = _run(level, x)
        return x


def test_blocks_in_lists_of_lists_are_fused_one_by_one() -> None:
    levels = Levels().eval()
    parts = _fused_by_blocks(levels)
    assert {each.report.name for each in parts.engines()} == {f"Levels down.{a}.{b}" for a in (0, 1) for b in (0, 1)}


class Cached(nn.Module):
    """Somebody else's, in the place of a model's blocks: it leaves all but the first out where that gives much the same
    as before.
    """

    def __init__(self, blocks: nn.ModuleList) -> None:
        super().__init__()
        self.blocks = blocks
        self.before: torch.Tensor | None = None
        self.added: torch.Tensor | None = None

    def forward(self, x: torch.Tensor, **options: Any) -> torch.Tensor:
        first = self.blocks[0](x, **options)
        if self.before is None or self.added is None or float((first - self.before).abs().mean()) > 0.1:
            self.before, y = first, first
            for block in self.blocks[1:]:
                y = block(y, **options)
            self.added = y - first
        return first + self.added


def test_layers_that_a_function_calls_are_fused_one_by_one() -> None:
    torch.manual_seed(0)
    unet = UNet().eval()
    parts = _fused_by_blocks(unet)
    assert sorted(each.report.name for each in parts.engines())[:3] == [
        "UNet embed",
        "UNet input_blocks.0.0",
        "UNet input_blocks.0.1",
    ]


def test_blocks_that_somebody_elses_module_holds_are_fused_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As WaveSpeed's First Block Cache: known before the first call is recorded."""
    from sfast_core.hosts.comfy.obstacles import Obstacles

    monkeypatch.setattr(Cached, "__module__", "their_pack.nodes")
    ours, twin = _pair()
    for model in (ours, twin):
        monkeypatch.setattr(
            Model, "forward", lambda self, x, **options: self.blocks[0](self.first(x), transformer_options=options)
        )
        model.blocks = nn.ModuleList([Cached(model.blocks)])
    monkeypatch.setattr(Obstacles, "_weights", lambda *args: None)
    assert Obstacles().reason(None, ours, "forward", {}) == "another node replaces its blocks (their_pack)"
    engine = Engine("Model", CONFIG)
    parts = ByBlocks(engine.reporter, engine.store, lambda name: Engine(name, CONFIG))
    with torch.no_grad():
        for seed in (1, 2, 2, 2, 3):
            x = torch.randn(2, 8, generator=torch.Generator().manual_seed(seed))
            torch.testing.assert_close(parts.call(ours, "a test", lambda: ours(x)), twin(x))  # noqa: B023
    assert engine.report.calls == {"traced": 1, "fused": 4}
    assert "Model blocks.0.blocks.2" in [each.report.name for each in parts.engines()]
