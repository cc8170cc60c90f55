"""What the tests of several ops share."""

from __future__ import annotations

import pytest

from sfast_core.native import load


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which status functions the library was asked for; it has nothing against anything."""
    names: list[str] = []
    monkeypatch.setattr(load, "why_not", lambda device, status_of="sfast_device_status": names.append(status_of))
    return names
