"""What holds for all tests: where the package is found, Triton's interpreter, and which tests are skipped."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

if not torch.cuda.is_available():
    # Read by Triton when a kernel is decorated, so before anything imports a kernel.
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--run-slow``: also the tests that need many gigabytes or seconds. ``--fuzz-models`` and ``--fuzz-seed``: which random modules."""
    parser.addoption("--run-slow", action="store_true", help="also run the tests marked slow")
    parser.addoption("--fuzz-models", type=int, default=300, help="how many random modules tests/fuzz compares (300)")
    parser.addoption("--fuzz-seed", type=int, default=None, help="the one random module that tests/fuzz compares, and prints")


def pytest_configure(config: pytest.Config) -> None:
    """Make the markers known."""
    config.addinivalue_line("markers", "gpu: needs a CUDA device")
    config.addinivalue_line("markers", "slow: needs many gigabytes or seconds; runs with --run-slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what this machine or this run has no place for."""
    no_gpu = pytest.mark.skip(reason="needs a CUDA device")
    not_slow = pytest.mark.skip(reason="slow: runs with --run-slow")
    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(no_gpu)
        if item.get_closest_marker("slow") and not config.getoption("--run-slow"):
            item.add_marker(not_slow)
