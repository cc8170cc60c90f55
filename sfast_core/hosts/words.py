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
    """The strings in the code of the model's layers, and of the files that they are defined in. A first guess: other
    names that the code mentions are found when a call is recorded.
    """
    words: set[str] = set()
    kinds = {type(module) for module in model.modules()}
    for name in {kind.__module__ for kind in kinds}:
        if name.partition(".")[0] not in _GIVEN:
            there = vars(sys.modules[name]).values() if name in sys.modules else ()  # packs load files by other names
            for value in [*there, *(kind for kind in kinds if kind.__module__ == name)]:
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
