"""Which of the pack's requirements the running Python lacks, found out without importing any of them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
from collections.abc import Iterable
from pathlib import Path

# All that requirements.txt may hold: a name and perhaps the one system that wants it.
_LINE = re.compile(r'(?P<name>[A-Za-z0-9_-]+)(\s*;\s*platform_system == "(?P<system>\w+)")?')


def read(path: Path) -> list[str]:
    """The names in a requirements file that this system wants.

    Raises:
        ValueError: a line is more than a name and a platform_system marker.
    """
    names = []
    for line in path.read_text(encoding="utf-8").splitlines():
        line = line.partition("#")[0].strip()
        if not line:
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"{path.name}: {line!r} is more than a name and a platform_system")
        if match["system"] in (None, platform.system()):
            names.append(match["name"])
    return names


def missing(names: Iterable[str]) -> list[str]:
    """Those that can't be imported, as pip is to be asked for them."""
    # By module: builds of PyTorch for other makers' GPUs bring the module triton under another distribution's name.
    return [as_torch_wants(name) for name in names if importlib.util.find_spec(name) is None]


def as_torch_wants(name: str) -> str:
    """``name==version`` where the installed PyTorch names one version of it (of triton, say), else ``name``."""
    for requirement in _requires("torch"):
        match = re.match(rf"{re.escape(name)}\s*\(?(==[\w.+]+)", requirement)
        if match:
            return name + match[1]
    return name


def version(name: str) -> str | None:
    """The installed version of a distribution."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def release(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: ``"2.11.0+cu130"`` gives ``(2, 11, 0)``."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _requires(name: str) -> list[str]:
    try:
        return importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return []
