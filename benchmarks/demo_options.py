"""The demo's command line, by the standard library alone: ``install.py demo --help`` comes before any installing."""

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
        "--out", type=_folder, default=Path.cwd(), help=f"folder for {PICTURE_NAME} (default: the working directory)"
    )
    parser.add_argument("--steps", type=_steps, default=20, help="denoising steps (default: 20)")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: cuda where there is one")
    parser.add_argument("--no-full-size", action="store_true", help="leave SD1.5's and SDXL's UNets out")
    return parser.parse_args(argv)


def _folder(text: str) -> Path:
    """It is made at once: that it can't be is said before minutes of work."""
    try:
        Path(text).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text} can't be made: {error.strerror}") from None
    return Path(text)


def _steps(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, needs a whole number from 1 on")
    return int(text)
