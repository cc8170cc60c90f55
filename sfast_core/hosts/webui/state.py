"""The compiled state of a UNet, of a VAE's half, of a text encoder."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ...config import CompileConfig
from ...engine import Engine
from ...reporting.reason import WEBUI, told
from ...reporting.report import ModuleReport
from ..blocks import Blocks
from ..fallback import with_fallback
from ..hook import HookedCall
from ..layer_tables import LayerTables
from ..live import LiveCalls
from ..options import PROMPTS, Steering, options_place
from ..parts import PartCalls
from .blocks import forges_blocks
from .lora import LazyLoras
from .parts import Part
from .results import Opened
from .surroundings import surroundings

#: What VAEs note down about a call and nobody reads. A trace would be bound to it.
_NOTES = ("last_z_shape",)


class ModuleState:
    """The compiled state of one module. Lives as long as that does and holds nothing of it.

    Attributes:
        calls: that came here, whatever became of them.
    """

    def __init__(self, config: CompileConfig, name: str) -> None:
        self.config = config
        self.engine = Engine(name, config, forges_blocks, host=WEBUI)
        self.engine.reporter.reasons_level = logging.WARNING  # the webuis' logs begin there
        self._surroundings: tuple[Any, ...] | None = None
        self._loras = LazyLoras()
        self._obstacle: str | None = None
        self.calls = 0

    def prepare(self, obstacle: str | None) -> None:
        """Before each sampling: trace again where what steers the forward has changed.

        Args:
            obstacle: why this sampling can't be accelerated, or None.
        """
        self._obstacle = obstacle
        self._loras.forget()  # pictures made with the toggle off have changed the weights too
        for engine in self.engines():
            engine.taken_in.begin_sampling()
        now = surroundings()
        if self._surroundings is not None and now != self._surroundings:
            for engine in self.engines():
                engine.reset()
        self._surroundings = now

    def begin_sampling(self, steps: int | None) -> None:
        """The first step of a sampling comes: nobody but the Lora extension writes to weights before
        :meth:`end_sampling`. ``steps``: how many it has.
        """
        for engine in self.engines():
            engine.store.begin_sampling(steps)

    def end_sampling(self) -> None:
        """It is over: extensions may write to weights."""
        for engine in self.engines():
            engine.store.end_sampling()

    def _weights_written(self) -> None:
        """In the middle of a sampling, too: some extensions give LoRAs another strength at each step."""
        for store in (engine.store for engine in self.engines()):
            if store.period() is not None:
                store.begin_sampling(store.steps)

    def call(self, call: HookedCall) -> Any:
        """One call of the module, by the fastest way that is known to be right."""
        self.calls += 1

        def attempt(eager: Callable[[], Any]) -> Any:
            self._before_call(call.module)
            if reason := self._obstacle or self._loras.why_not():
                return self._run_eager(reason, eager)
            if call.foreign is not None:
                return self._compute_foreign(call, call.foreign, eager)
            self._apply_loras(call.module)
            return self._compute(call, eager)

        return with_fallback(self.engine, attempt, call.eager)

    def _apply_loras(self, module: torch.nn.Module) -> None:
        if self._loras.apply(module):
            self._weights_written()

    def _run_eager(self, reason: str, eager: Callable[[], Any]) -> Any:
        return self.engine.run_eager(reason, eager)

    def _compute_foreign(self, call: HookedCall, foreign: str, eager: Callable[[], Any]) -> Any:
        """A call of a method that isn't the module's own: ``foreign`` says whose it is."""
        return self._run_eager(foreign, eager)

    def _before_call(self, module: torch.nn.Module) -> None:
        """What a kind of module needs first."""

    def _compute(self, call: HookedCall, eager: Callable[[], Any]) -> Any:
        raise NotImplementedError

    def engines(self) -> list[Engine]:
        """All that it compiles with."""
        return [self.engine]

    def reports(self) -> list[ModuleReport]:
        """What became of its calls."""
        return [self.engine.report]

    def restore(self) -> None:
        """Give the module its weights back as they were laid out, and the graphs' memory; the traces stay."""
        for engine in self.engines():
            engine.restore()

    def close(self) -> None:
        """Leave the module as it was found, and know nothing of it any more."""
        self.end_sampling()
        for engine in self.engines():
            engine.restore()
            engine.reset()
        self._loras.forget()
        self._surroundings = None


class UnetState(ModuleState):
    """A UNet's: other extensions may steer it by options, and put functions into these."""

    def __init__(self, config: CompileConfig, name: str) -> None:
        super().__init__(config, name)
        self._live = LiveCalls(self.engine)
        self.engine.several.apart = PROMPTS
        of_block = config.replace(devices=None)
        self._blocks = Blocks(name, lambda block: _Block(Engine(block, of_block, forges_blocks, host=WEBUI)))
        self._by_blocks = False
        self._sampling = 0  # the last one that was seen
        self._layers = LayerTables()

    def engines(self) -> list[Engine]:
        """The UNet's, and those of its blocks, for calls of a forward of others."""
        return [self.engine, *self._blocks.engines()]

    def reports(self) -> list[ModuleReport]:
        """What became of the UNet's calls, and in one report what became of its blocks', where there are any."""
        return [self.engine.report, *([self._blocks.report()] if self._blocks.engines() else [])]

    def _run_eager(self, reason: str, eager: Callable[[], Any]) -> Any:
        self._turn(False)
        return super()._run_eager(reason, eager)

    def _turn(self, by_blocks: bool) -> None:
        """Let the weights lie for the whole UNet, or for one block after the other: programs of both would lay them out
        anew in turns.
        """
        if by_blocks is not self._by_blocks:
            for engine in self.engines():
                engine.restore()
            self._by_blocks = by_blocks

    def _compute_foreign(self, call: HookedCall, foreign: str, eager: Callable[[], Any]) -> Any:
        # Forge's: the blocks hand one another news by what they leave there
        if options_place(call.args, call.kwargs) is not None:
            return self._run_eager(foreign, eager)
        self._turn(True)
        self._apply_loras(call.module)
        result, path, why = self._blocks.call(call.module, eager)
        if path is None or path == "eager":
            self.engine.reporter.ran_eager(why or told(foreign).also(f"{foreign}, and calls none of its blocks"))
        else:
            self.engine.reporter.say(f"runs block by block, because {foreign}")
            self.engine.report.calls[path] += 1
        return result

    def _compute(self, call: HookedCall, eager: Callable[[], Any]) -> Any:
        def compute(traced: Callable[..., Any], steering: Steering) -> Any:
            return self.engine.call(call.module, traced, steering.args, steering.kwargs, eager, steering.around)

        self._turn(False)
        taken_in = self.engine.taken_in
        if self._sampling != taken_in.sampling:
            for on in self.engine.devices:
                on.let_go(call.module, self._sampling)
            self._sampling = taken_in.sampling
            self._layers.put_back(call.module)
        return self._live(call, compute)


class _Block:
    """What there is of one block of a UNet."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def __call__(self, call: HookedCall, eager: Callable[[], Any]) -> Any:
        return self.engine.call(call.module, call.original, call.args, call.kwargs, eager, seen=True)


class PartState(ModuleState):
    """Another part's. Its first call in a generation prepares it, when all extensions have done theirs."""

    def __init__(self, part: Part, config: CompileConfig) -> None:
        super().__init__(config, part.name)
        self._calls = PartCalls(self.engine, part.kind, config)
        self._opened = Opened()
        self._passing = (*_NOTES, *({part.method} - {"forward"}))
        self._left_alone = part.left_alone
        self._prepared = True

    def prepare_later(self) -> None:
        """Have :meth:`prepare` done at the next call."""
        self._prepared = False

    def _before_call(self, module: torch.nn.Module) -> None:
        if not self._prepared:
            self._prepared = True
            self.prepare(self._left_alone)

    def _compute(self, call: HookedCall, eager: Callable[[], Any]) -> Any:
        def traced(*args: Any, **kwargs: Any) -> Any:
            with _without(self._passing, call.module):
                return call.original(*args, **kwargs)

        with _without(self._passing, call.module):
            forward = self._opened.inside(traced)
            return self._opened.closed(self._calls(call.module, forward, call.args, call.kwargs, eager))


@contextmanager
def _without(names: tuple[str, ...], module: torch.nn.Module) -> Iterator[None]:
    """For the length of the block the module has no attributes of these names of its own, and afterwards those from
    before.

    A method of ours is one of them: another than ``forward`` would be taken for a change of the module's.
    """
    own = module.__dict__
    before = {name: own[name] for name in names if name in own}
    try:
        for name in before:
            del own[name]
        yield
    finally:
        for name in names:
            own.pop(name, None)
        own.update(before)
