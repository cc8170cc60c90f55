"""Reads the CUDA extension's C interface from the sources that it is compiled from, so that it is written down once."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from .build import CSRC

#: The types that the interface uses; a pointer to anything but text is an address.
_TYPES = {"int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64, "float": ctypes.c_float}


@dataclass(frozen=True)
class Function:
    """One function: the type of its result, and of its parameters by name, in order."""

    result: type
    parameters: Mapping[str, type]


@dataclass(frozen=True)
class Interface:
    """The interface: its functions and its constants by name."""

    functions: Mapping[str, Function]
    constants: Mapping[str, int]


def parse(sources: str) -> Interface:
    """The interface that sources define.

    Raises:
        ValueError: there is a function of a form or with a type that isn't known.
    """
    text = re.sub(r"//[^\n]*", "", sources)
    constants = {name: int(code) for name, code in re.findall(r"\b(SFAST_\w+) = (\d+)", text)}
    defined = re.findall(r"^SFAST_API ([^(]*[\s*])(\w+)\(([^)]*)\)\s*\{", text, re.MULTILINE)
    if len(defined) != len(re.findall(r"^SFAST_API ", text, re.MULTILINE)):
        raise ValueError("csrc: a function of the interface isn't defined as `SFAST_API type name(parameters) {`")
    functions = {name: Function(_type(result), _parameters(given)) for result, name, given in defined}
    return Interface(functions, constants)


@functools.cache
def interface() -> Interface:
    """The interface of the sources beside this package, read once."""
    return parse("\n".join(path.read_text("utf-8") for path in (CSRC / "sfast.h", *sorted(CSRC.glob("*.cu")))))


def _parameters(given: str) -> dict[str, type]:
    parameters = {}
    for parameter in given.split(",") if given.strip() else ():
        found = re.fullmatch(r"\s*(.+?[\s*])(\w+)\s*", parameter, re.DOTALL)
        if found is None:
            raise ValueError(f"csrc: got {parameter.strip()!r}, a parameter without a type and a name")
        parameters[found[2]] = _type(found[1])
    return parameters


def _type(words: str) -> type:
    name = " ".join(words.split())
    if name == "const char*":
        return ctypes.c_char_p
    if name.endswith("*"):
        return ctypes.c_void_p
    if name not in _TYPES:
        raise ValueError(f"csrc: got the type {name!r}, needs a pointer or one of {', '.join(_TYPES)}")
    return _TYPES[name]
