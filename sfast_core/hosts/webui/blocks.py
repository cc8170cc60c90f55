"""A UNet whose forward another extension has replaced: that runs as it is, and the blocks that it calls are fused one by one.

A1111's ControlNet has a forward of its own, which reads values of tensors into Python and calls the UNet's blocks one after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from ...config import CompileConfig
from ...engine import Engine
from ...reasons import WEBUI
from ...report import ModuleReport
from ..hook import Hook
from ..shield import shielded
from ..states import States

#: From the slowest on: a call of the UNet ran as its slowest block did.
_PATHS = ("eager", "traced", "fused", "replayed")


class Blocks:
    """The compiled blocks of one UNet. The modules hold what there is of them.

    Args:
        name: the UNet's, for the report.
        config: as the user has set it.
    """

    def __init__(self, name: str, config: CompileConfig) -> None:
        self._name = name
        self._config = config
        self._engines: States[Engine] = States()

    def call(self, unet: torch.nn.Module, forward: Callable[[], Any]) -> tuple[Any, str | None, str]:
        """What ``forward()`` returns, which calls the blocks.

        Returns:
            it, by which path the slowest block ran (None where none was called), and why not faster where that is ``"eager"``.
        """
        before = self.report()
        with self._hooked(unet):
            result = forward()
        after = self.report()
        made, why = after.calls - before.calls, after.reasons - before.reasons
        return result, next((path for path in _PATHS if made[path]), None), next(iter(why), "")

    def engines(self) -> list[Engine]:
        """Those that there are."""
        return self._engines.all()

    def report(self) -> ModuleReport:
        """How the calls of all blocks ran."""
        reports = [engine.report for engine in self.engines()]
        return ModuleReport(
            f"{self._name}, its blocks",
            device=next((report.device for report in reports if report.device), ""),
            calls=sum((report.calls for report in reports), Counter[str]()),
            reasons=sum((report.reasons for report in reports), Counter[str]()),
            signatures=[signature for report in reports for signature in report.signatures],
            adopted_bytes=sum(report.adopted_bytes for report in reports),
            settings=self._config.settings(),
            host=WEBUI,
        )

    @contextmanager
    def _hooked(self, unet: torch.nn.Module) -> Iterator[None]:
        hooks: list[Hook] = []
        try:
            for path, block in blocks_of(unet):
                hooks.append(Hook(block, partial(self._through, path)).put())
            yield
        finally:
            for hook in reversed(hooks):
                hook.remove()

    def _through(
        self, path: str, block: torch.nn.Module, original: Callable[..., Any], foreign: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        engine = self._engines.get(block)
        if engine is None:
            self._engines.put(block, engine := Engine(f"{self._name} {path}", self._config, host=WEBUI))

        def attempt(eager: Callable[[], Any]) -> Any:
            if foreign is not None:
                return engine.run_eager(foreign, eager)
            return engine.call(block, original, args, kwargs, eager)

        return shielded(engine, attempt, lambda: original(*args, **kwargs))


def blocks_of(unet: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """The modules right below a UNet, and those in its lists, each with its path."""
    for name, child in unet.named_children():
        if isinstance(child, torch.nn.ModuleList):
            yield from ((f"{name}.{index}", block) for index, block in enumerate(child))
        else:
            yield name, child
