"""The script's arguments, and the status line."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from sfast_core.hosts.webui.arguments import Arguments, given, parse
from sfast_core.hosts.webui.status import status_line
from sfast_core.reporting.report import ModuleReport, Report


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((), Arguments(False, True)),
        ((True,), Arguments(True, True)),
        ((True, False), Arguments(True, False)),
        ((True, True, False, None), Arguments(True, True, False, True)),
        (({"enabled": True, "text_encoder": False},), Arguments(True, text_encoder=False)),
        (({"enabled": True},), Arguments(True, True)),
        (({"enabled": True, "cuda_graphs": False}, True), Arguments(True, False)),
        (({},), Arguments(False, True)),
        ((None, None), Arguments(False, True)),
        ((True, True, True, True, "fast"), Arguments(True, quality="fast")),
        (({"enabled": True, "quality": "near-exact"},), Arguments(True, quality="near-exact")),
    ],
)
def test_arguments(values: tuple[Any, ...], expected: Arguments) -> None:
    """By position and by name."""
    assert parse(values) == expected


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (({"fast": True},), "no argument 'fast'"),
        (("yes",), "enabled is 'yes'"),
        ((1,), "enabled is 1"),
        (({"quality": True},), "quality is True, needs exact, near-exact, fast"),
        (({"quality": "faster"},), "quality is 'faster', needs exact"),
    ],
)
def test_wrong_arguments(values: tuple[Any, ...], words: str) -> None:
    """Named in the message."""
    with pytest.raises(ValueError, match=words):
        parse(values)


def test_wrong_arguments_are_answered(caplog: pytest.LogCaptureFixture) -> None:
    """In a field of the reply, and once in the log: the webui asks several times in a generation."""
    p = SimpleNamespace(extra_generation_params={})
    for _ in range(3):
        assert given(p, ({"enable": True},)) == Arguments()
    words = "there is no argument 'enable'; there are enabled, cuda_graphs, vae, text_encoder, quality"
    assert p.extra_generation_params == {"Fast Compile error": words}
    assert [record.message for record in caplog.records] == [f"Fast Compile: this picture is made as before: {words}"]
    right = SimpleNamespace(extra_generation_params={})
    assert given(right, (True,)).enabled and not right.extra_generation_params


def test_status_line() -> None:
    """Paths in words, and why it ran as before."""
    assert "Nothing" in status_line(Report([ModuleReport("UNet")], {}))
    module = ModuleReport("SDXL UNet", calls=Counter(replayed=18, traced=1, eager=2), reasons=Counter({"token merging is on": 2}))
    line = status_line(Report([ModuleReport("UNet"), module], {}))
    assert line == "SDXL UNet: 18 replayed as a CUDA graph, 1 traced, 2 as before. Ran as before because token merging is on"
