"""The builder of the CUDA extension, which lives in ``sfast_core``, loaded without importing that package (it imports PyTorch)."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from . import ROOT

_NAME = "fast_compile_installer._build"


def builder() -> ModuleType:
    """``sfast_core/native/build.py`` as a module of its own."""
    if _NAME in sys.modules:
        return sys.modules[_NAME]
    spec = importlib.util.spec_from_file_location(_NAME, ROOT / "sfast_core" / "native" / "build.py")
    if spec is None or spec.loader is None:
        raise ImportError("sfast_core/native/build.py is missing")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_NAME] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
