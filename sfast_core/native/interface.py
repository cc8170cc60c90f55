"""What the CUDA extension's C interface is, read from csrc/sfast.h, which the kernels are compiled with: nothing of it
is written here again.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from .build import CSRC

HEADER = CSRC / "sfast.h"
#: The types that the header uses; a pointer to anything but text is an address.
_TYPES = {"int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64, "float": ctypes.c_float}


@dataclass(frozen=True)
class Function:
    """One function: its result's type, and those of its parameters by name, in order."""

    result: type
    parameters: Mapping[str, type]


@dataclass(frozen=True)
class Interface:
    """The interface: its version, its functions and its constants by name."""

    version: int
    functions: Mapping[str, Function]
    constants: Mapping[str, int]


def parse(header: str) -> Interface:
    """The interface that a header declares.

    Raises:
        ValueError: it has a declaration of a form or with a type that isn't known.
    """
    text = re.sub(r"//[^\n]*", "", header)
    version = re.search(r"#define SFAST_ABI_VERSION (\d+)\n", text)
    constants = {name: int(code) for name, code in re.findall(r"\b(SFAST_\w+) = (\d+)", text)}
    declared = re.findall(r"^SFAST_API ([^(]*[\s*])(\w+)\(([^)]*)\);", text, re.MULTILINE)
    if version is None or len(declared) != len(re.findall(r"^SFAST_API ", text, re.MULTILINE)):
        raise ValueError(
            "csrc/sfast.h: there is no SFAST_ABI_VERSION, or a declaration isn't `SFAST_API type name(parameters);`"
        )
    functions = {name: Function(_type(result), _parameters(given)) for result, name, given in declared}
    return Interface(int(version[1]), functions, constants)


@functools.cache
def interface() -> Interface:
    """That of the sources beside this package, read once."""
    return parse(HEADER.read_text("utf-8"))


def _parameters(given: str) -> dict[str, type]:
    if given.strip() == "void":
        return {}
    parameters = {}
    for parameter in given.split(","):
        found = re.fullmatch(r"\s*(.+?[\s*])(\w+)\s*", parameter, re.DOTALL)
        if found is None:
            raise ValueError(f"csrc/sfast.h: got {parameter.strip()!r}, a parameter without a type and a name")
        parameters[found[2]] = _type(found[1])
    return parameters


def _type(words: str) -> type:
    name = " ".join(words.split())
    if name == "const char*":
        return ctypes.c_char_p
    if name.endswith("*"):
        return ctypes.c_void_p
    if name not in _TYPES:
        raise ValueError(f"csrc/sfast.h: got the type {name!r}, needs a pointer or one of {', '.join(_TYPES)}")
    return _TYPES[name]
