"""Interrupted at any moment of a first call: no unproven program is used, the next call traces again, and nothing of
ours is left behind.
"""

from __future__ import annotations

import gc
import inspect
import random
import sys
import threading
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from torch import nn

import sfast_core
from sfast_core import CompileConfig, CompiledModule, compile
from tests.models import Forward, ResBlock

pytestmark = pytest.mark.usefixtures("no_gradients")

CORE = str(Path(sfast_core.__file__).parent)
TORCH = Path(torch.__file__).parent
#: Whose functions are interrupted: our own and those behind the ``with`` blocks. What a host raises itself comes from
#: its own code.
OURS = (
    CORE,
    contextmanager.__code__.co_filename,
    torch.no_grad.__init__.__code__.co_filename,
    str(TORCH / "overrides.py"),
)
HOSTS = (
    *(str(TORCH / "nn" / "modules" / name) for name in ("conv.py", "linear.py", "normalization.py")),
    str(Path(__file__).with_name("models.py")),
    str(Path(CORE) / "reporting" / "reporter.py"),
)


class HostStops(Exception):
    """As ComfyUI's InterruptProcessingException, which is an Exception."""


class Stops(BaseException):
    """As the one of A1111's samplers."""


class Interrupter:
    """Raises when the n-th of our functions is entered, where Python itself looks for Ctrl-C. ``at`` None: counts
    them.
    """

    def __init__(self, error: type[BaseException], at: int | None = None) -> None:
        self.error, self.at = error, at
        self._files = HOSTS if error is HostStops else OURS
        self.count = 0
        self.where: CodeType | None = None

    def __enter__(self) -> Interrupter:
        sys.settrace(self._entered)
        return self

    def __exit__(self, *_: Any) -> None:
        sys.settrace(None)

    def _entered(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(self._files) and self.where is None:
            self.count += 1
            if self.count == self.at:
                self.where = frame.f_code
                raise self.error


def module() -> nn.Module:
    torch.manual_seed(1)
    return Forward(
        lambda net, x, emb: net.two(net.block(x, emb).relu()),
        block=ResBlock(4, 8, 6),
        two=nn.Conv2d(8, 4, 3, padding=1),
    ).requires_grad_(False)


INPUTS = torch.randn(1, 4, 6, 6), torch.randn(1, 6)


def scope(log: list[str]) -> Callable[[Any], Any]:
    """A host's context around recorded calls."""

    class Patched:
        """No generator's: where Python itself is interrupted in front of one that it is about to close, it stays open."""

        def __enter__(self) -> None:
            log.append("on")

        def __exit__(self, *_: Any) -> None:
            log.append("off")

    return lambda recorder: Patched()


def check(handle: CompiledModule, twin: nn.Module) -> None:
    torch.testing.assert_close(handle(*INPUTS), twin(*INPUTS), rtol=1e-4, atol=1e-5)


def interrupted(at: int, error: type[BaseException]) -> int:
    """One first call that is interrupted at its ``at``-th entry, and what is to hold afterwards.

    Returns how many entries there were: fewer than ``at`` if the call ended before, since one call enters more of our
    functions than the next (what is asked for the first time, what the garbage collector happens to take then).
    """
    handle, twin, patches = compile(module(), CompileConfig(allow_cpu=True)), module(), list[str]()
    handle.engine.interruptions = (HostStops,)
    handle.engine.tracer._leaf_scope = scope(patches)
    held = None
    try:
        with Interrupter(error, at) as stop:
            handle(*INPUTS)
    except error as raised:
        held = raised  # with all that its traceback holds
    if stop.where is None:
        assert held is None and handle.engine.report.calls["traced"] == 1
        return stop.count
    place = f"{error.__name__} in {stop.where.co_filename}:{stop.where.co_firstlineno} {stop.where.co_name}, entry {at}"
    # Python's own, of a generator that it closes
    assert held is not None or stop.where.co_flags & inspect.CO_GENERATOR, f"{place} was swallowed"
    engine, report = handle.engine, handle.engine.report
    assert not torch.overrides._get_current_function_mode_stack() and not torch.is_grad_enabled() and gc.isenabled(), (
        place
    )
    assert sys.getprofile() is None, place
    assert patches.count("on") == patches.count("off"), place
    free = threading.Thread(target=lambda: [on.lock.acquire() and on.lock.release() for on in engine.devices])
    free.start(), free.join(5)
    assert not free.is_alive(), place
    proved = [graphed for on in engine.devices for graphed in on.entries.programs()]
    for name, weight in twin.named_parameters():
        mine = handle.module.get_parameter(name)
        assert torch.equal(mine, weight) and (proved or mine.stride() == weight.stride()), f"{place}: {name}"
    assert all(line.distance is not None for line in report.signatures) and len(report.signatures) >= len(proved), place
    check(handle, twin)
    check(handle, twin)
    assert report.calls["fused"] in (1, 2) and not report.calls["eager"] and len(report.signatures) <= 2, (
        place,
        report.calls,
        report.reasons,
    )
    return stop.count


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("error", [KeyboardInterrupt, HostStops, Stops])
def test_a_first_call_that_is_interrupted_anywhere(error: type[BaseException]) -> None:
    for handle in (compile(module(), CompileConfig(allow_cpu=True)) for _ in range(2)):  # the first one fills caches
        with Interrupter(error) as counting:
            handle(*INPUTS)
    moments, last = random.Random(error.__name__), counting.count
    for _ in range(100):
        while (at := moments.randint(1, last)) > (entered := interrupted(at, error)):
            last = entered
