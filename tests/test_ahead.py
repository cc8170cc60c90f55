"""What is done ahead of the first lowering is done once, where CUDA is in use, and harms nothing."""

from __future__ import annotations

import contextlib
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sfast_core.machine import ahead
from sfast_core.target import Target

DEVICE = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def _anew() -> Any:
    ahead._start.cache_clear()
    yield
    ahead._start.cache_clear()


def started() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "fast_compile_ahead"]


@pytest.mark.parametrize("available, initialised, times", [(False, False, 0), (True, False, 0), (True, True, 1)])
def test_it_starts_once_and_only_where_cuda_is_in_use(
    available: bool, initialised: bool, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    worked: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: initialised)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(ahead, "_work", worked.append)
    for _ in range(3):
        ahead.prepare()
    for thread in started():
        thread.join()
    assert worked == [DEVICE] * times


def test_what_cannot_run_here_is_left_out_and_what_fails_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[str] = []
    loaded: list[str] = []

    def impl(name: str, reason: str | None, error: Exception | None) -> Any:
        def launch(*_: Any) -> None:
            launched.append(name)
            if error is not None:
                raise error

        def load() -> None:
            loaded.append(name)
            if error is not None:
                raise ImportError(name)

        return SimpleNamespace(name=name, why_not=lambda target, *_: reason, launch=launch, load=load)

    ops = {
        "refused": SimpleNamespace(impls=[impl("a", "needs Triton", None)]),
        "broken": SimpleNamespace(impls=[impl("b", None, RuntimeError("no kernel image"))]),
        "works": SimpleNamespace(impls=[impl("other", None, None), impl("c", None, None)]),
    }
    monkeypatch.setattr(ahead, "all_ops", lambda: ops)
    monkeypatch.setattr(ahead, "leave_captures_alone", lambda: launched.append("nobody's capture ends"))
    monkeypatch.setattr(ahead, "probe", lambda device: Target(device))
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(
        ahead,
        "_first_launches",
        lambda device: [("refused", "a", ()), ("broken", "b", ()), ("gone", "x", ()), ("works", "c", ())],
    )
    ahead._work(DEVICE)
    assert launched == ["nobody's capture ends", "b", "c"]
    assert loaded == ["a", "b", "other", "c"]


def test_the_calls_are_those_of_real_impls() -> None:
    for op, name, arguments in ahead._first_launches(torch.device("cpu")):
        assert name in [impl.name for impl in ahead.all_ops()[op].impls]
        assert ahead.all_ops()[op].reference(*arguments).dtype == torch.float16


@pytest.mark.gpu
def test_it_runs_on_a_gpu() -> None:
    torch.zeros(1, device="cuda")
    ahead.prepare()
    for thread in started():
        thread.join(60)
    assert not started()


@pytest.mark.gpu
def test_it_ends_no_capture_of_the_hosts() -> None:
    """Whose mode is PyTorch's default, under which any thread's loading of a kernel makes it invalid."""
    x = torch.ones(4, device="cuda")
    (x * 2).sum().item()
    ahead.prepare()
    captured = 0
    while started() or not captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x * 2
        graph.replay()
        captured += 1
    assert y.sum().item() == 8
