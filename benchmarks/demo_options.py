"""The demo's command line. The standard library alone: ``install.py demo --help`` reads it before anything is
installed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

PICTURE_NAME = "fast_compile_demo.png"


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python install.py demo", description="eager and fast side by side, in one picture"
    )
    parser.add_argument(
        "--out", type=Path, default=Path.cwd(), help=f"folder for {PICTURE_NAME} (default: the working directory)"
    )
    parser.add_argument("--steps", type=int, default=20, help="denoising steps")
    parser.add_argument("--device", help="cuda or cpu (default: cuda where there is one)")
    parser.add_argument("--no-full-size", action="store_true", help="leave SD1.5's and SDXL's UNets out")
    return parser.parse_args(argv)
