"""A model of ComfyUI's whose forward can't be fused as a whole, block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import CodeType
from typing import Any

import torch

from ...capture import code_of
from ...engine import Engine
from ...reporting.reasons.hosts import NODE_REPLACES, RUN_BY
from ...reporting.reasons.records import BLOCK_AS_IT_WAS
from ...reporting.report import ModuleReport
from ...reporting.reporter import Reporter
from ...runtime.any_store import Store
from ..blocks import Blocks, blocks_of, holds_blocks_of_others
from ..hook import HookedCall, foreign_method, maker_of
from ..live import LiveCalls
from ..options import Steering
from .reach import is_hosts


class ByBlocks:
    """Runs calls of one model with its blocks compiled, each by itself.

    Args:
        reporter: of the model's calls. Not its engine, which holds this.
        store: of the model's weights, which its own code finds with the strides that it gave them.
        make: an engine for a block, by its name. It lays no weights out anew: programs of the whole model may have.
    """

    def __init__(self, reporter: Reporter, store: Store, make: Callable[[str], Engine]) -> None:
        self._reporter = reporter
        self._store = store
        self._blocks = Blocks(reporter.report.name, lambda name: _Block(make(name)), _blocks_of)
        self._walking: set[CodeType] = set()  # of functions that were seen to run the blocks themselves

    def engines(self) -> list[Engine]:
        """The engines of the blocks that were called."""
        return self._blocks.engines()

    def reports(self) -> list[ModuleReport]:
        """One report of all blocks together; none where no block was called."""
        return [self._blocks.report()] if self.engines() else []

    def call(self, model: torch.nn.Module, reason: str, forward: Callable[[], Any]) -> Any:
        """What ``forward()`` returns, which runs the model and isn't to be fused as a whole because of ``reason``."""
        with self._store.plain():
            result, path, why = self._blocks.call(model, forward)
        if path is None:
            self._reporter.answered(f"code that runs none of its blocks ({reason})")
        elif path == "eager":
            self._reporter.ran_eager(BLOCK_AS_IT_WAS.because(reason, block=why) if why else reason)
        else:
            self._reporter.say(f"runs block by block, because {reason}")
            self._reporter.report.calls[path] += 1
        return result

    # -- functions in the place of a forward that is called by another name -----------------------------------------

    def walked(self, model: torch.nn.Module) -> None:
        """The model's blocks have just been run, but not by its forward."""
        if (code := _own_forward(model)) is not None:
            self._walking.add(code)

    def why(self, model: torch.nn.Module) -> str | None:
        """Why a call that begins now will run the blocks by other people's code, as far as earlier ones tell."""
        if _own_forward(model) not in self._walking:
            return None
        return foreign_method(model, "forward", NODE_REPLACES) or RUN_BY(who=maker_of(type(model).forward))


def _blocks_of(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """The blocks that ComfyUI's forwards call, and nodes in their place: of a UNet the layers of each, and those that a
    node's module holds.
    """
    for path, block in blocks_of(model):
        if holds_blocks_of_others(model, block):
            yield from ((f"{path}.{inner}", each) for inner, each in blocks_of(block))
        elif isinstance(block, torch.nn.Sequential) and type(block).forward is not torch.nn.Sequential.forward:
            # a function calls these, and never the whole
            yield from ((f"{path}.{inner}", each) for inner, each in block.named_children())
        else:
            yield path, block


class _Block:
    """One compiled block."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._live = LiveCalls(engine, seen=True)

    def __call__(self, call: HookedCall, eager: Callable[[], Any]) -> Any:
        def compute(traced: Callable[..., Any], steering: Steering) -> Any:
            return self.engine.call(
                call.module, traced, steering.args, steering.kwargs, eager, steering.around, seen=True
            )

        return self._live(call, compute, self.engine.interruptions)


def _own_forward(model: torch.nn.Module) -> CodeType | None:
    """The code of the forward that somebody has put onto the model itself, or has given it by another class."""
    there: Mapping[str, Any] = model.__dict__
    if "forward" in there:
        return code_of(there["forward"])
    return None if is_hosts(of_class := type(model).forward) else code_of(of_class)
