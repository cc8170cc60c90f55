"""Fuses a model block by block, where its forward can't be recorded or somebody has replaced it.

A1111's ControlNet brings a forward of its own, which reads tensors' values into Python and calls the UNet's blocks one
after the other. So do TeaCache and First Block Cache in ComfyUI, which skip blocks where little has changed. Such a
forward runs as it is, and each block that it calls is fused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, Protocol

import torch

from ..engine import Engine
from ..reporting.reason import PYTHON
from ..reporting.reasons.hosts import GOES_AROUND
from ..reporting.report import ModuleReport
from .fallback import with_fallback
from .hook import Hook, HookedCall
from .states import States

#: The slowest first: a call of the model counts as what its slowest block did.
_PATHS = ("eager", "traced", "fused", "replayed")


BlocksOf = Callable[[torch.nn.Module], Iterator[tuple[str, torch.nn.Module]]]


class Block(Protocol):
    """One compiled block."""

    engine: Engine

    def __call__(self, call: HookedCall, eager: Callable[[], Any]) -> Any:
        """What the block returns, by its engine. ``eager`` runs the block as it is."""


class Blocks:
    """The compiled blocks of one model. Each is held by its module.

    Args:
        name: the model's, for the report.
        make: makes the compiled block of this name, when it is first called.
        blocks: finds a model's blocks, each with its path. None: :func:`blocks_of`.
    """

    def __init__(self, name: str, make: Callable[[str], Block], blocks: BlocksOf | None = None) -> None:
        self._name = name
        self._make = make
        self._of = blocks or blocks_of
        self._blocks: States[Block] = States()
        self._opened = False  # the last call that ran blocks ran them by other methods than their forward

    def call(self, model: torch.nn.Module, forward: Callable[[], Any]) -> tuple[Any, str | None, str]:
        """Run ``forward()``, which calls the blocks.

        Returns:
            what it returns; the path of the slowest block, or None where no block of a list was run; and the reason
            where that path is ``"eager"``.
        """
        before, seen = self.report(), _Seen()
        with self._hooked(model, seen):
            result = forward()
        after = self.report()
        made, why = after.calls - before.calls, after.reasons - before.reasons
        if seen.listed and not seen.whole and not seen.parts:
            return result, "eager" if seen.layer else None, ""
        opened, self._opened = self._opened, seen.parts and not seen.whole
        if self._opened and not opened:
            return result, "eager", GOES_AROUND()
        return result, next((path for path in _PATHS if made[path]), None), next(iter(why), "")

    def engines(self) -> list[Engine]:
        """The engines of the blocks that were called so far."""
        return [block.engine for block in self._blocks.all()]

    def report(self) -> ModuleReport:
        """How the calls of all blocks ran."""
        reports = [engine.report for engine in self.engines()]
        return ModuleReport(
            f"{self._name}, its blocks",
            device=next((report.device for report in reports if report.device), ""),
            host=next((report.host for report in reports), PYTHON),
            calls=sum((report.calls for report in reports), Counter[str]()),
            reasons=sum((report.reasons for report in reports), Counter[str]()),
            signatures=[signature for report in reports for signature in report.signatures],
            adopted_bytes=sum(report.adopted_bytes for report in reports),
            settings=next((report.settings for report in reports), {}),
        )

    @contextmanager
    def _hooked(self, model: torch.nn.Module, seen: _Seen) -> Iterator[None]:
        hooks: list[Hook] = []
        try:
            for path, block in self._of(model):
                listed = path.rpartition(".")[2].isdigit()
                parts = list(_parts_of(block)) if listed else []
                if listed and self._opened:
                    hooks.append(Hook(block, seen.run_whole).put())
                    for name, part in parts:
                        hooks.append(Hook(part, partial(self._through, f"{path}.{name}", seen.run_part)).put())
                    seen.listed = True
                    continue
                hooks.append(Hook(block, partial(self._through, path, seen.run_whole if listed else None)).put())
                if parts and not seen.looking:
                    seen.looking = [Hook(part, seen.run_part).put() for _, part in parts]
                    seen.looking += [Hook(layer, seen.run_layer).put() for layer in _first_layer_of(block)]
                seen.listed = seen.listed or listed
            yield
        finally:
            seen.look_no_more()
            for hook in reversed(hooks):
                hook.remove()

    def _through(self, path: str, note: Callable[[], Any] | None, call: HookedCall) -> Any:
        if note is not None:
            note()
        found = self._blocks.get(call.module)
        if found is None:
            self._blocks.put(call.module, found := self._make(f"{self._name} {path}"))
        block = found

        def attempt(eager: Callable[[], Any]) -> Any:
            return block(call, eager) if call.foreign is None else block.engine.run_eager(call.foreign, eager)

        return with_fallback(block.engine, attempt, call.eager)


class _Seen:
    """What one call of the model has run of its listed blocks: themselves, or only what is in them."""

    def __init__(self) -> None:
        self.listed = self.whole = self.parts = self.layer = False
        self.looking: list[Hook] = []  # at what is in one block, until a block is run as a whole

    def run_whole(self, call: HookedCall | None = None) -> Any:
        """A block's forward is called."""
        self.whole = True
        self.look_no_more()
        return None if call is None else call.eager()

    def run_part(self, call: HookedCall | None = None) -> Any:
        """What is in a block is called."""
        self.parts = True
        return None if call is None else call.eager()

    def run_layer(self, call: HookedCall) -> Any:
        """A layer in a block is called: whoever runs the block has put a forward in the place of its own."""
        self.layer = True
        return call.eager()

    def look_no_more(self) -> None:
        """Leave what is in the block as it was found."""
        while self.looking:
            self.looking.pop().remove()


def _parts_of(block: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """What is in a block and worth a program of its own: more than a layer."""
    return ((name, part) for name, part in blocks_of(block) if any(part.children()))


def _first_layer_of(block: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The first layer with a weight, if it has one."""
    yield from islice((each for each in block.modules() if next(each.parameters(recurse=False), None) is not None), 1)


def blocks_of(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """A model's children, with the members of ``ModuleList``s in the place of the lists; each with its path."""
    for name, child in model.named_children():
        if isinstance(child, torch.nn.ModuleList):
            yield from ((f"{name}.{path}", block) for path, block in blocks_of(child))
        else:
            yield name, child


def holds_blocks_of_others(model: torch.nn.Module, module: torch.nn.Module) -> bool:
    """Whether ``module``, found among a model's blocks, is somebody else's and contains blocks itself, which it runs or
    skips.
    """
    if not any(isinstance(child, torch.nn.ModuleList) for child in module._modules.values()):
        return False
    package = type(module).__module__.partition(".")[0]
    return package not in ("torch", *{type(each).__module__.partition(".")[0] for each in (model, *model.children())})
