"""What the commands of benchmarks have in common: a parser with the folder for the results, and what they need."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch


def plain_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """The parser of ``python -m benchmarks.<name>``."""
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def parser_of(name: str, description: str | None, out: str = ".") -> argparse.ArgumentParser:
    """The same, with the option ``--out``."""
    parser = plain_parser(name, description)
    parser.add_argument("--out", type=Path, default=Path(out), help=f"folder for {name}.csv, {name}.md and the like")
    return parser


def folder_of(name: str, description: str | None, default: str | None = None) -> Path:
    """The one argument of a command that is told a folder."""
    parser = plain_parser(name, description)
    parser.add_argument("folder", metavar="FOLDER", type=Path, nargs="?" if default else None, default=default)
    return Path(parser.parse_args().folder)


def need_cuda(name: str) -> None:
    """End the benchmark where there is no CUDA device."""
    if not torch.cuda.is_available():
        raise SystemExit(f"benchmarks.{name} needs a CUDA device")


def comfyui_for(name: str) -> Path:
    """The folder of the ComfyUI to measure, which can be imported then. Without one the benchmark ends."""
    if "COMFYUI_PATH" not in os.environ:
        raise SystemExit(f"benchmarks.{name} needs COMFYUI_PATH, the folder of a ComfyUI 0.33 or newer")
    sys.path.insert(0, os.environ["COMFYUI_PATH"])
    return Path(os.environ["COMFYUI_PATH"])


def version(comfyui: Path) -> str:
    """The version of the ComfyUI in this folder."""
    text = (comfyui / "comfyui_version.py").read_text("utf-8")
    return text.split("__version__ = ")[1].split()[0].strip("\"'")
