"""The C interface is read from the sources, and one that can't be read is said to be so."""

from __future__ import annotations

import ctypes
import re
from types import SimpleNamespace

import pytest
import torch

from sfast_core.native import load
from sfast_core.native.build import CSRC
from sfast_core.native.interface import interface, parse

SOURCES = """
// SFAST_API int32_t not_this(int32_t x) {
#define SFAST_API extern "C"
enum : int32_t { SFAST_A = 0, SFAST_B = 5 };
SFAST_API const char* sfast_name(int32_t error) { return "a name"; }
SFAST_API int32_t sfast_none() {
    return 0;
}
SFAST_API int64_t sfast_many(
    const void* x, int64_t x_stride,  // elements
    const int32_t *cut, float eps, void* stream) { return 0; }
"""


def test_sources() -> None:
    found = parse(SOURCES)
    assert found.constants == {"SFAST_A": 0, "SFAST_B": 5}
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
        ("sfast_none() {\n    return 0;\n}", "sfast_none();", "a function of the interface isn't defined as"),
        ("float eps", "double eps", "got the type 'double'"),
        ("int32_t error", "unsigned error", "got the type 'unsigned'"),
        ("float eps", "float", "a parameter without a type and a name"),
    ],
)
def test_sources_that_can_not_be_read(before: str, after: str, words: str) -> None:
    assert before in SOURCES
    with pytest.raises(ValueError, match=words):
        parse(SOURCES.replace(before, after))


def test_every_function_is_used() -> None:
    python = "\n".join(path.read_text("utf-8") for path in (CSRC.parent / "sfast_core").rglob("*.py"))
    assert [name for name in interface().functions if not re.search(rf"\b{name}\b", python)] == []


def test_what_an_older_cuda_left_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_library", SimpleNamespace)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    reason = load.why_not.__wrapped__(torch.device("cuda", 0), "sfast_conv2d_status")
    assert reason == "the CUDA extension was built by a CUDA older than 12"
