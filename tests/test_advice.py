"""Every reason for running as before comes with what the user can do about it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from sfast_core import CompileConfig, compile
from sfast_core.advice import ADVICE, advice
from sfast_core.report import ModuleReport

SOURCES = sorted((Path(__file__).resolve().parent.parent / "sfast_core").rglob("*.py"))


@pytest.mark.parametrize("words", [found.words for found in ADVICE])
def test_its_words_are_those_of_a_reason(words: str) -> None:
    """They stand in a source besides the table's own."""
    assert any(words in path.read_text("utf-8") for path in SOURCES if path.name != "advice.py")


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("the inputs are on cpu, which isn't a CUDA device", "NVIDIA"),
        ("another node replaces its _forward", "take that node out"),
        ("FreeU (patches output_block_patch 0) returns something built otherwise: finished by the original forward", "traced once"),
        ("the weight out.weight is on cpu, not on cuda:0", "free GPU memory"),
        ("it can't be traced: item reads a tensor's value into Python", "report it"),
        ("something that nobody has thought of", "report it"),
    ],
)
def test_a_reason(reason: str, word: str) -> None:
    assert word in advice(reason)


def test_each_is_a_clause() -> None:
    """They stand inside sentences and in cells of a table."""
    for found in ADVICE:
        assert found.do[0].islower() and not found.do.endswith(".") and found.means.endswith(".")


def test_the_report_and_the_log_say_it(caplog: pytest.LogCaptureFixture) -> None:
    handle = compile(torch.nn.Linear(4, 4), CompileConfig(allow_cpu=False))
    with caplog.at_level(logging.INFO, "fast_compile"), torch.no_grad():
        handle(torch.randn(2, 4))
    words = advice("which isn't a CUDA device")
    assert words in handle.report().text() and sum(words in record.message for record in caplog.records) == len(caplog.records) == 1
    assert "what you can do" not in ModuleReport("a model").text()
