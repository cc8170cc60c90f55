"""A capture that fails, at any place, in any of PyTorch's ways to keep books about it: the others' graphs and later
captures don't notice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from sfast_core.native import driver
from sfast_core.runtime.backend import CudaBackend
from sfast_core.runtime.failed_capture import clear_frames, tensors_of
from tests.runtime.fake_cuda import NONE, VERSIONS, FakeCuda

Run = Callable[[FakeCuda], None]


def raises(error: BaseException) -> Run:
    def run(cuda: FakeCuda) -> None:
        raise error

    return run


def forbidden(cuda: FakeCuda) -> None:
    cuda.invalidate()
    raise RuntimeError("CUDA error: operation not permitted when stream is capturing")


# name: (what the captured run does, what CUDA refuses, whether all books are right again in the end)
FAILURES: dict[str, tuple[Run | None, dict[str, BaseException], bool]] = {
    "an exception of the model's": (raises(ValueError("no")), {}, True),
    "out of memory": (raises(torch.cuda.OutOfMemoryError("full")), {}, True),
    "interrupted": (raises(KeyboardInterrupt()), {}, True),
    "something forbidden": (forbidden, {}, True),
    "something forbidden whose error was ignored": (FakeCuda.invalidate, {}, True),
    "not instantiated": (None, {"instantiate": RuntimeError("CUDA error: out of memory")}, True),
    "a stream that wasn't joined": (None, {"end": RuntimeError("CUDA error: capture was not joined")}, False),
    "not begun": (None, {"begin": RuntimeError("CUDA error: out of memory")}, False),
}


def capture(cuda: FakeCuda, backend: CudaBackend, fault: Run | None = None, alone: bool = False) -> Any:
    warm = False

    def run() -> None:
        nonlocal warm
        if warm and fault is not None:
            fault(cuda)
        warm = True
        cuda.launch()

    return backend.capture(run, alone)


def fail(cuda: FakeCuda, backend: CudaBackend, name: str, alone: bool = False) -> None:
    fault, refused, _ = FAILURES[name]
    cuda.refuses = dict(refused)
    with pytest.raises((RuntimeError, ValueError, KeyboardInterrupt)) as caught:
        capture(cuda, backend, fault, alone)
    assert not cuda.refuses, f"it failed before it got there: {caught.value}"


@pytest.mark.parametrize("alone", [False, True], ids=["shared", "alone"])
@pytest.mark.parametrize("others", [False, True], ids=["first", "beside another"])
@pytest.mark.parametrize("has_driver", [True, False], ids=["driver", "no driver"])
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", FAILURES)
def test_others_and_later_captures_work(
    monkeypatch: pytest.MonkeyPatch, name: str, version: str, has_driver: bool, others: bool, alone: bool
) -> None:
    cuda = FakeCuda(version, has_driver)
    backend = cuda.install(monkeypatch)
    other = capture(cuda, backend) if others else None
    before = cuda.memory.in_use
    for _ in range(3):
        fail(cuda, backend, name, alone)
        assert cuda.status == NONE and not cuda.error and not cuda.generator_captures and not cuda.memory.recording
        assert all(cuda.memory.in_use.get(pool, 0) >= count for pool, count in before.items()), (
            "the other graph's memory is still its own"
        )
        later = capture(cuda, backend)
        later.release()
    assert cuda.renewed == 0, "the graphs of others draw from the state that a seed reaches"
    whole = FAILURES[name][2] and (has_driver or "forbidden" not in name)
    if whole:
        assert cuda.memory.in_use == before and not cuda.pinned.recording and cuda.pinned.in_use in (before, {})
        assert backend._kept == []
    if other is not None:
        other.release()
        assert not whole or cuda.memory.in_use == {}
    if cuda.pinned.recording:
        assert len(backend._kept) == 3, "what the allocator still asks must not go"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", FAILURES)
def test_what_is_timed_goes_on_being_timed(monkeypatch: pytest.MonkeyPatch, name: str, version: str) -> None:
    cuda = FakeCuda(version, True)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)  # there is no device
    backend = cuda.install(monkeypatch)
    with backend.scratch():
        capture(cuda, backend, alone=True).release()
        fail(cuda, backend, name, alone=True)
        capture(cuda, backend, alone=True).release()
    assert not FAILURES[name][2] or cuda.memory.in_use == {}
    capture(cuda, backend).release()


def test_a_scratch_that_was_interrupted_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda("2.13", True)
    backend = cuda.install(monkeypatch)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: raises(KeyboardInterrupt())(cuda))
    with pytest.raises(KeyboardInterrupt), backend.scratch():
        pass
    pools = cuda.pools
    capture(cuda, backend, alone=True).release()
    assert cuda.pools > pools and cuda.memory.in_use == {}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("moment", ["reset", "end"])
def test_an_interrupt_waits_until_all_is_undone(monkeypatch: pytest.MonkeyPatch, version: str, moment: str) -> None:
    cuda = FakeCuda(version, True)
    backend = cuda.install(monkeypatch)
    cuda.refuses = {moment: KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        capture(cuda, backend, forbidden)
    assert not cuda.refuses and cuda.status == NONE and not cuda.memory.recording and not cuda.generator_captures
    capture(cuda, backend).release()


def test_a_generator_gets_another_state_where_nothing_can_be_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda("2.6", False)
    backend = cuda.install(monkeypatch)
    monkeypatch.setattr(cuda, "begin_stream", lambda: raises(RuntimeError("CUDA error: unknown error"))(cuda))
    with pytest.raises(RuntimeError, match="unknown error"):
        capture(cuda, backend)
    assert cuda.renewed == 1 and not cuda.generator_captures


def test_a_graph_that_goes_without_a_release_ends_its_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does whose capture was interrupted behind its end."""
    cuda = FakeCuda("2.13", True)
    backend = cuda.install(monkeypatch)
    replay = capture(cuda, backend)
    replay._graph.reset()
    del replay
    capture(cuda, backend).release()


def test_under_cudaMallocAsync_what_can_not_be_freed_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: N802
    cuda = FakeCuda("2.13", True)
    backend = cuda.install(monkeypatch)
    held = torch.ones(3)
    cleared: list[BaseException] = []
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "cudaMallocAsync")
    monkeypatch.setattr("sfast_core.runtime.backend.tensors_of", lambda error: [held])
    monkeypatch.setattr("sfast_core.runtime.backend.clear_frames", cleared.append)
    streams = backend._stream
    fail(cuda, backend, "something forbidden")
    assert backend._kept == [held] and cleared == [] and backend._stream is not streams
    fail(cuda, backend, "interrupted")
    assert backend._kept == [held] and len(cleared) == 1, "an active capture takes its memory back"


def test_what_an_error_holds() -> None:
    class OnTheGpu(torch.Tensor):
        is_cuda = True  # type: ignore[assignment]

    def inner() -> None:
        values = [None, torch.ones(1), (made()[0], {"x": made()[1]}), made()[2]]  # noqa: F841
        raise ValueError("inner")

    def outer() -> None:
        alone = made()[3]  # noqa: F841
        try:
            inner()
        except ValueError as error:
            raise RuntimeError("outer") from error

    def hidden() -> Callable[[], list[Any]]:
        tensors = [torch.ones(1).as_subclass(OnTheGpu) for _ in range(4)]
        return lambda: tensors

    made = hidden()
    with pytest.raises(RuntimeError) as caught:
        outer()
    assert {id(tensor) for tensor in tensors_of(caught.value)} == {id(tensor) for tensor in made()}
    clear_frames(caught.value)
    assert tensors_of(caught.value) == []


def test_without_a_driver_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    driver._library.cache_clear()
    monkeypatch.setattr(driver.ctypes, "CDLL", missing)
    with contextlib.ExitStack() as stack:
        stack.callback(driver._library.cache_clear)
        assert driver.capture_status(1) is None and not driver.begin_capture(1)
        driver.drop_capture(1)


class FakeDriver:
    """libcuda, with one stream. Its functions take attributes, as ctypes' do."""

    def __init__(self, status: int, result: int = 0) -> None:
        self.status, self.result, self.destroyed = status, result, 0

        class Function:
            def __init__(self, call: Callable[..., int]) -> None:
                self.call, self.argtypes = call, None

            def __call__(self, *args: Any) -> int:
                return self.call(*args)

        def capturing(stream: int, out: Any) -> int:
            out._obj.value = self.status
            return self.result

        def begin(stream: int, mode: int) -> int:
            self.status = 1
            return self.result

        def end(stream: int, out: Any) -> int:
            out._obj.value = 0 if self.status == 2 else 77
            result, self.status = 901 if self.status == 2 else 0, 0
            return result

        def destroy(graph: Any) -> int:
            self.destroyed += 1
            return 0

        self.cuStreamIsCapturing, self.cuStreamBeginCapture_v2 = Function(capturing), Function(begin)
        self.cuStreamEndCapture, self.cuGraphDestroy = Function(end), Function(destroy)


@pytest.mark.parametrize(("status", "destroyed"), [(0, 0), (1, 1), (2, 0)])
def test_the_drivers_capture_is_dropped(monkeypatch: pytest.MonkeyPatch, status: int, destroyed: int) -> None:
    fake = FakeDriver(status)
    monkeypatch.setattr(driver, "_library", lambda: fake)
    assert driver.capture_status(1) == status
    driver.drop_capture(1)
    assert fake.status == 0 and fake.destroyed == destroyed
    assert driver.begin_capture(1) and driver.capture_status(1) is driver.CaptureStatus.ACTIVE


def test_a_driver_that_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_library", lambda: FakeDriver(2, result=201))
    assert driver.capture_status(1) is None
