"""What the private environment gets. PyTorch is apart: the running Python's, or put in first and left as it is."""

from __future__ import annotations

import platform
from dataclasses import dataclass

TORCH = "torch==2.13.0"
OLDEST_TORCH = (2, 6)

_RUN = ("numpy", "pillow", "platformdirs", "safetensors", "diffusers>=0.30", "transformers>=4.41")
_CHECK = ("pytest>=8.2", "pytest-xdist>=3.6", "ruff==0.17.6", "mypy==2.4.1")


@dataclass(frozen=True)
class Packages:
    """``plain`` with their dependencies, none of which is PyTorch; ``bare`` without, because theirs would bring one."""

    plain: tuple[str, ...]
    bare: tuple[str, ...] = ()


def packages_for(command: str) -> Packages:
    """The packages of ``demo`` or ``test``."""
    if command == "demo":
        return Packages(_RUN)
    triton = ("triton",) if platform.system() == "Linux" else ()
    return Packages((*_RUN, *_CHECK, "psutil", "pyyaml", "tqdm"), ("accelerate>=0.30", "peft>=0.11", *triton))
