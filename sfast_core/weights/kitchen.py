"""comfy-kitchen, whose operators checkpoints' formats come with: its names, and its codes of dtypes."""

from __future__ import annotations

from typing import Any

import torch

NAMESPACE = "comfy_kitchen"
#: Its codes of dtypes, as operators are given them.
DTYPES = {0: torch.float32, 1: torch.float16, 2: torch.bfloat16, 5: torch.float8_e4m3fn, 6: torch.float8_e5m2}
CODES = {dtype: code for code, dtype in DTYPES.items()}


def operators(*names: str) -> list[Any]:
    """Those of its operators that are there: it registers them when a host imports it."""
    there = getattr(torch.ops, NAMESPACE)
    return [getattr(there, name) for name in names if hasattr(there, name)]
