"""What holds for all tests: where the package is found, Triton's interpreter, and which tests are left out."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from sfast_core.runtime.graphs import DeviceGraphs

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

if not torch.cuda.is_available():
    # Read by Triton when a kernel is decorated, so before anything imports a kernel.
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--run-slow``: also the tests that need many gigabytes or seconds.

    ``--fuzz-models`` and ``--fuzz-seed``: which random modules.
    """
    parser.addoption("--run-slow", action="store_true", help="also run the tests marked slow")
    parser.addoption("--fuzz-models", type=int, default=300, help="how many random modules tests/fuzz compares (300)")
    parser.addoption(
        "--fuzz-seed", type=int, default=None, help="the one random module that tests/fuzz compares, and prints"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the markers known."""
    config.addinivalue_line("markers", "gpu: needs a CUDA device")
    config.addinivalue_line("markers", "slow: needs many gigabytes or seconds; runs with --run-slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what this machine or this run has no place for: two thirds of all, so that skipping each of them took a
    minute.
    """
    left_out = set[str]()
    if not torch.cuda.is_available():
        left_out.add("gpu")
    if not config.getoption("--run-slow"):
        left_out.add("slow")
    out = [item for item in items if any(item.get_closest_marker(name) for name in left_out)]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if not any(item.get_closest_marker(name) for name in left_out)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was left out, in each run."""
    if not torch.cuda.is_available():
        terminalreporter.write_line("left out: tests that need a CUDA device (marked gpu)")
    if not terminalreporter.config.getoption("--run-slow"):
        terminalreporter.write_line("left out: tests that need many gigabytes or seconds (marked slow; --run-slow)")


@pytest.fixture
def no_gradients() -> Iterator[None]:
    """As a host samples, with the same random numbers in each test."""
    torch.manual_seed(0)
    with torch.no_grad():
        yield


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[DeviceGraphs]:
    """The CPU as a device that captures. Nothing is measured or kept on disk."""
    from tests.capturing import pretend_graphs  # not before Triton's interpreter is on

    found = pretend_graphs(monkeypatch)
    with torch.no_grad():
        yield found


@pytest.fixture(params=[False, True], ids=["fused", "captured"])
def path(request: pytest.FixtureRequest) -> str:
    """How later calls run: on a CPU that captures nothing, and on one that seems to."""
    if request.param:
        request.getfixturevalue("graphs")
    return "replayed" if request.param else "fused"


@pytest.fixture
def a_cpu_as_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked of CUDA's current device does nothing."""
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(synchronize=lambda: None))
