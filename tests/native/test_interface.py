"""The C interface is read from its header, and a header that can't be read is said to be so."""

from __future__ import annotations

import ctypes
import re

import pytest

from sfast_core.native.interface import HEADER, interface, parse

HEADER_OF_ONE = """
// SFAST_API int32_t not_this(int32_t x);
#define SFAST_API extern "C"
#define SFAST_ABI_VERSION 7
enum : int32_t { SFAST_A = 0, SFAST_B = 5 };
SFAST_API const char* sfast_name(int32_t error);
SFAST_API int32_t sfast_none(void);
SFAST_API int64_t sfast_many(
    const void* x, int64_t x_stride,  // elements
    const int32_t *cut, float eps, void* stream);
"""


def test_a_header() -> None:
    found = parse(HEADER_OF_ONE)
    assert found.version == 7 and found.constants == {"SFAST_A": 0, "SFAST_B": 5}
    assert {name: (function.result, dict(function.parameters)) for name, function in found.functions.items()} == {
        "sfast_name": (ctypes.c_char_p, {"error": ctypes.c_int32}),
        "sfast_none": (ctypes.c_int32, {}),
        "sfast_many": (
            ctypes.c_int64,
            {
                "x": ctypes.c_void_p,
                "x_stride": ctypes.c_int64,
                "cut": ctypes.c_void_p,
                "eps": ctypes.c_float,
                "stream": ctypes.c_void_p,
            },
        ),
    }


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("#define SFAST_ABI_VERSION 7\n", "", "there is no SFAST_ABI_VERSION"),
        ("sfast_none(void);", "sfast_none(void) { return 0; }", "a declaration isn't"),
        ("float eps", "double eps", "got the type 'double'"),
        ("int32_t error", "unsigned error", "got the type 'unsigned'"),
        ("float eps", "float", "a parameter without a type and a name"),
    ],
)
def test_a_header_that_can_not_be_read(before: str, after: str, words: str) -> None:
    assert before in HEADER_OF_ONE
    with pytest.raises(ValueError, match=words):
        parse(HEADER_OF_ONE.replace(before, after))


def test_every_function_is_defined_and_used() -> None:
    """In csrc with as many parameters, where it does something and where the compiler is too old for that, and by its
    name in Python.
    """
    sources = "\n".join(path.read_text("utf-8") for path in HEADER.parent.glob("*.cu"))
    python = "\n".join(path.read_text("utf-8") for path in (HEADER.parent.parent / "sfast_core").rglob("*.py"))
    for name, function in interface().functions.items():
        defined = re.findall(rf"SFAST_API [^;{{]*\b{name}\(([^)]*)\)\s*\{{", sources)
        counts = {0 if given.strip() in ("", "void") else given.count(",") + 1 for given in defined}
        assert counts == {len(function.parameters)}, name
        assert re.search(rf"\b{name}\b", python), name
