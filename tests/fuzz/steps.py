"""What random modules are made of: each step adds lines to a forward and values to go on from.

A seed's module depends on their order.
"""

from __future__ import annotations

import importlib

from tests.fuzz.step import STEPS

for _name in ("steps_on_images", "steps_on_tokens", "steps_on_any"):
    importlib.import_module(f"tests.fuzz.{_name}")

__all__ = ["STEPS"]
