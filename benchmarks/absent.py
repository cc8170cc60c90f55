"""Lets a program be imported whose imports aren't all installed, for a run that uses none of what is missing."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds what nobody else has found, as modules that say what is missing when they are used.

    Args:
        names: the top-level modules that may be missing.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)
        self.missing: set[str] = set()

    def install(self) -> None:
        """Come after all other finders: what is installed is what is imported."""
        sys.meta_path.append(self)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """A module of ours for one of the names, and for what is below it."""
        if fullname.partition(".")[0] not in self._names:
            return None
        self.missing.add(fullname.partition(".")[0])
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """An empty module whose attributes are all there."""
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self.__name__}.{name}")


class _Missing:
    """What can be named but not used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self._name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise ImportError(f"{self._name} is wanted, and {self._name.partition('.')[0]} isn't installed")
