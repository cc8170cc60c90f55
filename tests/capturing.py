"""The CPU as a device that captures."""

from __future__ import annotations

import pytest

from sfast_core.machine.choices import Choices
from sfast_core.runtime.graphs import DeviceGraphs
from tests.fakes import FakeBackend


def pretend_graphs(monkeypatch: pytest.MonkeyPatch) -> DeviceGraphs:
    """From here on engines capture, with a backend that only counts. Nothing is measured or kept on disk."""
    found = DeviceGraphs(FakeBackend())
    monkeypatch.setattr("sfast_core.engine.device_graphs", lambda device: found)
    monkeypatch.setattr("sfast_core.lowering._choices", lambda target: Choices(None))
    return found
