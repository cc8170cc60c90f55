"""Our node as a function of a ComfyUI model, for drivers that compare variants (``FILE:fast_compile``)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def fast_compile(model: Any) -> Any:
    """What ``Apply Fast Compile`` returns with its defaults."""
    from sfast_core.hosts.comfy import apply

    return apply(model)
