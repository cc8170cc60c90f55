"""The webui benchmark's table, and imports that are missing there."""

from __future__ import annotations

import importlib
import sys

import pytest

from benchmarks.absent import Absent
from benchmarks.webui import Row, table


def test_table() -> None:
    """Each row beside the one of its model with the toggle off."""
    off = Row("SD1.5 512x512", "off", 20, 3.0, 2.0, 2.5, 2**30, 0.0)
    on = Row("SD1.5 512x512", "on", 20, 4.0, 0.5, 1.0, 2**31, 1e-3)
    lines = table([off, on]).splitlines()
    assert lines[2] == "| SD1.5 512x512 | off | 3.0 s | 2.000 s | 10.0 | 1.00 | 2.500 s | 1.00 | 1.00 GiB | 0.0e+00 |"
    assert lines[3] == "| SD1.5 512x512 | on | 4.0 s | 0.500 s | 40.0 | 4.00 | 1.000 s | 2.50 | 2.00 GiB | 1.0e-03 |"
    assert all(line.count("|") == lines[0].count("|") for line in lines)


def test_what_is_missing_can_be_imported_and_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is installed is what is imported; the name of what is missing is said when it is called."""
    absent = Absent(("json", "not_installed"))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    absent.install()
    try:
        missing = importlib.import_module("not_installed.part")
        assert importlib.import_module("json").dumps([1]) == "[1]" and absent.missing == {"not_installed"}
        with pytest.raises(
            ImportError, match=r"not_installed.part.Thing.make is wanted, and not_installed isn't installed"
        ):
            missing.Thing.make()
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("not_installed_either")
    finally:
        for name in ("not_installed", "not_installed.part"):
            sys.modules.pop(name, None)
