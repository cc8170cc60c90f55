"""The browser that looks at hosts' pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def chromium() -> Iterator[Any]:
    """A headless Chromium: the system's, or Playwright's own. The test is skipped where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install playwright")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with api.sync_playwright() as playwright:
        try:
            opened = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        except api.Error as error:
            pytest.skip(f"needs a Chromium: playwright install chromium ({str(error).splitlines()[0]})")
        yield opened
        opened.close()
