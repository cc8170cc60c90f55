"""Finds the names that a model's code may look up among a step's options. Others steer nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import torch

from ..capture.live.reach import strings_in

_GIVEN = ("torch", "builtins", "einops", "numpy")


def words_of(model: torch.nn.Module) -> set[str]:
    """The strings in the code of the files that the model's layers are defined in. A first guess: other names that the
    code mentions are found when a call is recorded.
    """
    words: set[str] = set()
    for name in {type(module).__module__ for module in model.modules()}:
        file = sys.modules.get(name)
        if file is not None and name.partition(".")[0] not in _GIVEN:
            for value in list(vars(file).values()):
                words.update(_strings(value, name))
    return words


def _strings(value: Any, file: str) -> Iterator[str]:
    if getattr(value, "__module__", None) != file:
        return
    for each in vars(value).values() if isinstance(value, type) else (value,):
        function = getattr(each, "__func__", each)
        function = getattr(function, "__wrapped__", function)
        if isinstance(function, FunctionType):
            yield from strings_in(function.__code__)
