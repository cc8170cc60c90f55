"""The fused operators: a folder each. :func:`all_ops` imports them when it is called, not before."""

from __future__ import annotations

import importlib
import pkgutil

from .spec import Impl, Op

__all__ = ["NAMES", "Impl", "Op", "all_ops"]

#: An op is a folder here.
NAMES = tuple(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)


def all_ops() -> dict[str, Op]:
    """Every op by name."""
    return {name: importlib.import_module(f".{name}", __package__).OP for name in NAMES}
