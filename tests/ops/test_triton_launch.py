"""A kernel is launched on its tensors' device; threads that launch one for the first time compile it once."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from sfast_core.ops.triton_launch import launcher

OUT = torch.empty(1)


class Kernel:
    """Compiles as Triton does: whoever finds nothing compiled for its arguments compiles."""

    def __init__(self, error: Exception | None = None) -> None:
        self.compiled: dict[Any, int] = {}
        self.launches = 0
        self.error = error
        self._ready: set[Any] = set()
        self._lock = threading.Lock()

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(out: torch.Tensor, x: torch.Tensor | None, size: int, BLOCK: int) -> None:
            key = (None if x is None else x.dtype, BLOCK)
            if key not in self._ready:
                time.sleep(0.02)
                with self._lock:
                    self.compiled[key] = self.compiled.get(key, 0) + 1
                if self.error is not None:
                    raise self.error
                self._ready.add(key)
            with self._lock:
                self.launches += 1

        return launch


def test_each_kernel_is_compiled_by_one_thread() -> None:
    kernel, x = Kernel(), torch.ones(1)
    calls = [(x, 1, 16), (x, 2, 16), (x.half(), 1, 16), (None, 1, 16), (x, 1, 32)] * 4
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda call: launcher(kernel, (1,))(OUT, call[0], call[1], BLOCK=call[2]), calls))
    assert kernel.launches == len(calls) and len(kernel.compiled) == 4 and set(kernel.compiled.values()) == {1}


def test_different_kernels_are_compiled_side_by_side() -> None:
    both_inside = threading.Barrier(2, timeout=10)

    class Slow:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            return lambda x, BLOCK: both_inside.wait()

    kernel = Slow()
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda block: launcher(kernel, (1,))(OUT, BLOCK=block), (16, 32)))


def test_a_failed_compilation_is_tried_by_the_next() -> None:
    kernel = Kernel(RuntimeError("no kernel image"))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no kernel image"):
            launcher(kernel, (1,))(OUT, None, 1, BLOCK=16)
    kernel.error = None
    launcher(kernel, (1,))(OUT, None, 1, BLOCK=16)
    assert kernel.launches == 1


def test_a_kernel_runs_on_its_tensors_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on the one that is current in the calling thread."""
    entered: list[torch.Tensor] = []

    @contextlib.contextmanager
    def device_of(tensor: torch.Tensor) -> Iterator[None]:
        entered.append(tensor)
        yield
        entered.clear()

    class Looking:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            return lambda count, x, BLOCK: seen.extend(entered)

    seen: list[torch.Tensor] = []
    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    launcher(Looking(), (1,))(3, OUT, BLOCK=16)
    assert len(seen) == 1 and seen[0] is OUT
