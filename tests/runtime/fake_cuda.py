"""What PyTorch and the driver keep about captures, as docs/notes/0002-failed-captures.md tells it of four of PyTorch's
versions.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sfast_core.native.driver import CaptureStatus
from sfast_core.runtime import backend, failed_capture
from sfast_core.runtime.backend import CudaBackend

VERSIONS = ("2.6", "2.11", "2.13", "after 2.13")
NONE, ACTIVE, INVALIDATED = CaptureStatus


class Pools:
    """An allocator's pools: which of them are recorded to, and how many graphs use each."""

    def __init__(self) -> None:
        self.recording: set[Any] = set()
        self.used: Counter[Any] = Counter()
        self._known: set[Any] = set()

    def begin(self, pool: Any) -> None:
        if pool in self._known and not self.used[pool]:
            raise RuntimeError("use_count > 0 INTERNAL ASSERT FAILED")
        self._known.add(pool)
        self.used[pool] += 1
        if pool in self.recording:
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        self.recording.add(pool)

    def end(self, pool: Any) -> None:
        if pool not in self.recording:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.recording.remove(pool)

    def release(self, pool: Any) -> None:
        assert self.used[pool] > 0, "a pool was released once too often"
        self.used[pool] -= 1

    @property
    def in_use(self) -> dict[Any, int]:
        return {pool: count for pool, count in self.used.items() if count}


class FakeCuda:
    """One stream, two allocators, one generator.

    Attributes:
        refuses: what the next of these raises, by name: ``begin`` of the stream's capture, its ``end``,
            ``instantiate``, ``reset``.
        error: whether CUDA has an error to tell to the next who launches a kernel.
        renewed: how often the generator was given another state.
    """

    def __init__(self, version: str, driver: bool) -> None:
        self.version, self.driver = version, driver
        self.memory, self.pinned = Pools(), Pools()
        self.generator_captures = False
        self.status = NONE
        self.error = False
        self.refuses: dict[str, BaseException] = {}
        self.streams = self.pools = 0
        self.renewed = 0

    def refuse(self, name: str) -> None:
        if error := self.refuses.pop(name, None):
            raise error

    def invalidate(self) -> None:
        self.status, self.error = INVALIDATED, True

    # -- the driver

    def begin_stream(self) -> None:
        self.refuse("begin")
        if self.status != NONE:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        self.status = ACTIVE

    def end_stream(self) -> None:
        status, self.status = self.status, NONE
        self.refuse("end")
        if status != ACTIVE:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    def launch(self) -> None:
        error, self.error = self.error or self.status == INVALIDATED, False
        if error:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    def capture_status(self, stream: int) -> CaptureStatus | None:
        return self.status if self.driver else None

    def begin_capture(self, stream: int) -> bool:
        if self.driver:
            with contextlib.suppress(RuntimeError):
                self.begin_stream()
                return True
        return False

    def drop_capture(self, stream: int) -> None:
        if self.driver:
            self.status = NONE

    # -- PyTorch

    def stop(self, device: int, pool: Any) -> None:
        self.memory.end(pool)

    def release(self, device: int, pool: Any) -> None:
        self.memory.release(pool)

    def renew_generator(self, state: object) -> None:
        self.generator_captures = False
        self.renewed += 1

    def new_pool(self) -> tuple[int, int]:
        self.pools += 1
        return (0, self.pools)

    def stream(self, device: object) -> SimpleNamespace:
        self.streams += 1
        return SimpleNamespace(
            wait_stream=lambda other: None, synchronize=lambda: None, cuda_stream=self.streams, device_index=0
        )

    def install(self, monkeypatch: pytest.MonkeyPatch) -> CudaBackend:
        """A backend on this in the place of CUDA."""
        if torch.cuda.is_available():
            torch.cuda.init()  # or what it sets up now would be undone with the patches
        generator = SimpleNamespace(graphsafe_set_state=self.renew_generator, clone_state=lambda: None)
        made: dict[str, Any] = {
            "Stream": self.stream,
            "stream": lambda stream: contextlib.nullcontext(),
            "current_stream": lambda device: self.stream(device),
            "Event": lambda: None,
            "CUDAGraph": lambda: FakeGraph(self),
            "graph_pool_handle": self.new_pool,
            "get_allocator_backend": lambda: "native",
            "memory_reserved": lambda device: 0,
            "memory_allocated": lambda device: 0,
            "mem_get_info": lambda device: (1 << 40, 1 << 40),
            "default_generators": [generator],
        }
        for name, value in made.items():
            monkeypatch.setattr(torch.cuda, name, value)
        stopping: dict[str, Callable[..., None]] = {
            "_cuda_endAllocateToPool": self.stop,
            "_cuda_releasePool": self.release,
        }
        for name, function in stopping.items():
            monkeypatch.setattr(torch._C, name, function, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None, raising=False)
        for module in (failed_capture, backend):
            monkeypatch.setattr(module, "capture_status", self.capture_status)
        for name in ("begin_capture", "drop_capture"):
            monkeypatch.setattr(failed_capture, name, getattr(self, name))
        monkeypatch.setattr(CudaBackend, "_touch", lambda backend: self.launch())
        return CudaBackend(torch.device("cuda", 0))


class FakeGraph:
    """``torch.cuda.CUDAGraph``."""

    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda
        self._registered = self._routing = self._ended = False

    def capture_begin(self, pool: Any, capture_error_mode: str) -> None:
        cuda = self._cuda
        assert pool is not None and capture_error_mode == "thread_local"
        self._pool = pool
        if cuda.version == "2.6":
            cuda.generator_captures = True
        cuda.memory.begin(pool)
        self._routing = True
        if cuda.version != "2.6":
            cuda.pinned.begin(pool)
        cuda.begin_stream()
        cuda.generator_captures = self._registered = True

    def capture_end(self) -> None:
        cuda, error = self._cuda, None
        try:
            cuda.end_stream()
        except RuntimeError as refused:
            error = refused
        if error and cuda.version == "2.6":
            raise error
        if not self._registered:
            raise RuntimeError("capture_end() called before capture_begin().")
        self._registered = False
        if error and cuda.version == "2.11":
            raise error
        cuda.memory.end(self._pool)
        if cuda.version != "2.6":
            cuda.pinned.end(self._pool)
        self._routing = False
        if error:
            raise error
        cuda.generator_captures = False
        self._ended = True
        cuda.refuse("instantiate")

    def pool(self) -> Any:
        if not self._ended:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self._pool

    def reset(self) -> None:
        cuda = self._cuda
        cuda.refuse("reset")
        if cuda.version == "after 2.13":
            cuda.generator_captures = False
            if self._routing:
                cuda.memory.end(self._pool)
                if self._pool in cuda.pinned.recording:
                    cuda.pinned.end(self._pool)
                self._ended, self._routing = True, False
        if self._ended:
            cuda.memory.release(self._pool)
            if cuda.version != "2.6":
                cuda.pinned.release(self._pool)
            self._ended = False
