"""Files of the repository as modules of their own: their packages import PyTorch, which needn't be there."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from . import ROOT


def load(name: str, path: Path) -> ModuleType:
    """The file as the module ``name`` below this package.

    Raises:
        ImportError: it is missing.
    """
    name = f"{__package__}._{name}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ImportError(f"{path} is missing")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def builder() -> ModuleType:
    """The builder of the CUDA extension: ``sfast_core/native/build.py``."""
    return load("build", ROOT / "sfast_core" / "native" / "build.py")
