"""Torch's own functions, where somebody has put another one in their place.

A function of ``torch.nn.functional`` hands itself to a mode by its name in its file. Where an extension has replaced it
under that name (by one that calls it), what it hands over is the replacement, which the mode would call a second time.
"""

from __future__ import annotations

import os
from types import (
    BuiltinFunctionType,
    FrameType,
    FunctionType,
    MethodDescriptorType,
    MethodWrapperType,
    WrapperDescriptorType,
)
from typing import Any

import torch

_TORCH = os.path.dirname(torch.__file__) + os.sep  # as its code names its files, links and all
_FUNCTIONS = os.path.join(_TORCH, "nn", "functional.py")
_OF_C = (
    BuiltinFunctionType,
    MethodDescriptorType,
    MethodWrapperType,
    WrapperDescriptorType,
    type(torch.relu),
    type(torch.Tensor.add),
)
_NEAREST = 6  # frames between the mode and the function that hands over


def is_torchs(func: Any) -> bool:
    """Whether a function is one that torch has made, as nearly all are."""
    if isinstance(func, _OF_C):
        return True
    return type(func) is FunctionType and func.__code__.co_filename.startswith(_TORCH)


def asked_function(func: Any, frame: FrameType | None) -> Any:
    """The function that was called: ``func``, or torch's own in whose place ``func`` is.

    Args:
        func: what was handed over.
        frame: where.
    """
    name = next((name for name, value in vars(torch.Tensor).items() if value is func), None)
    if name is not None and hasattr(torch._C.TensorBase, name):  # C looks the method up by its name, too
        return getattr(torch._C.TensorBase, name)
    if (operator := _operator(func)) is not None:
        return operator
    for _ in range(_NEAREST):
        if frame is None:
            return func
        code = frame.f_code
        if code.co_filename == _FUNCTIONS and code.co_name != "fn":
            return func if getattr(func, "__code__", None) is code else _own(frame)
        frame = frame.f_back
    return func


def _operator(func: Any) -> Any:
    """The operator in whose place of ``torch.ops`` a function is, made anew: C looks those up by their names.

    None where it is in none.
    """
    for space in [space for space in vars(torch.ops).values() if isinstance(space, torch._ops._OpNamespace)]:
        for name in [name for name, value in vars(space).items() if value is func]:
            operator, overloads = torch._C._jit_get_operation(f"{space.name}::{name}")
            if operator is not None:
                return torch._ops.OpOverloadPacket(f"{space.name}::{name}", name, operator, overloads)
    return None


def _own(frame: FrameType) -> Any:
    """The function whose call a frame is, made anew: its name may lead to another by now."""
    code = frame.f_code
    names = frame.f_locals
    cells = [(lambda value: (lambda: value).__closure__[0])(names[name]) for name in code.co_freevars if name in names]  # type: ignore[index]
    if len(cells) != len(code.co_freevars):
        raise LookupError(f"what {code.co_name} closes over isn't known")
    return FunctionType(code, frame.f_globals, code.co_name, None, tuple(cells))
