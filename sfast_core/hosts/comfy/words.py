"""Which names the code of a model may look up among a step's options: what it never mentions steers nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

_DEEP = 3  #: files that take functions from files that take functions from a layer's
_GIVEN = ("torch", "builtins", "einops", "numpy")


def words_of(model: torch.nn.Module) -> set[str]:
    """The strings in the code of the files that the model's layers are written in, and of those that these take functions from."""
    files = {type(module).__module__ for module in model.modules()}
    packages = {name.partition(".")[0] for name in files if name.partition(".")[0] not in _GIVEN}
    known: set[str] = set()
    words: set[str] = set()
    new = {name for name in files if name.partition(".")[0] in packages}
    for _ in range(_DEEP):
        found: set[str] = set()
        for name in new - known:
            known.add(name)
            file = sys.modules.get(name)
            if file is not None:
                for value in list(vars(file).values()):
                    found.add(value.__name__ if isinstance(value, ModuleType) else str(getattr(value, "__module__", "")))
                    words.update(_strings(value, name))
        new = {name for name in found if name.partition(".")[0] in packages}
    return words


def _strings(value: Any, file: str) -> Iterator[str]:
    if getattr(value, "__module__", None) != file:
        return
    for each in vars(value).values() if isinstance(value, type) else (value,):
        function = getattr(each, "__func__", each)
        function = getattr(function, "__wrapped__", function)
        if isinstance(function, FunctionType):
            yield from _in_code(function.__code__)


def _in_code(code: CodeType) -> Iterator[str]:
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, CodeType):
            yield from _in_code(constant)
        elif isinstance(constant, (tuple, frozenset)):
            yield from (item for item in constant if isinstance(item, str))
