"""The script's arguments, and the status line."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from sfast_core.hosts.webui.arguments import Arguments, given, parse
from sfast_core.hosts.webui.status import LastPicture, status_line
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
    module = ModuleReport(
        "SDXL UNet", calls=Counter(replayed=18, traced=1, eager=2), reasons=Counter({"token merging is on": 2})
    )
    line = status_line(Report([ModuleReport("UNet"), module], {}))
    assert (
        line
        == "So far: SDXL UNet: 18 replayed as a CUDA graph, 1 traced, 2 as before. Ran as before because token merging is on"
    )


def test_the_last_picture() -> None:
    """Of one generation alone, in words, with the toggle off as well."""
    module = ModuleReport("UNet", calls=Counter(eager=5), reasons=Counter({"an earlier one": 5}))
    assert LastPicture(False, [module]).text([module]) == "Last picture: made as before, because Fast Compile is off."
    picture = LastPicture(True, [module])
    assert picture.text([module]) == "Last picture: no model has run through it."
    module.calls.update(traced=1, replayed=19)
    decoder = ModuleReport("VAE decoder", calls=Counter(eager=1), reasons=Counter({"it computes in float32": 1}))
    text = picture.text([module, decoder])
    assert text == (
        "Last picture: mostly fast. Calls of its models: 19 replayed as a CUDA graph, 1 traced, 1 as before. As before because it computes in float32."
    )


def test_the_end_of_a_generation() -> None:
    """The webui closes its object also where nothing else is called, after an exception: ours goes before."""
    from contextlib import closing

    from sfast_core.hosts.webui.endings import at_the_end

    seen: list[str] = []
    p = SimpleNamespace(close=lambda: seen.append("theirs"))
    for _ in range(2):  # two scripts, two calls
        at_the_end(p, lambda: seen.append("ours"))
    with pytest.raises(ValueError), closing(p):
        raise ValueError
    assert seen == ["ours", "theirs"]
    at_the_end(SimpleNamespace(), lambda: None)  # a webui whose object can't be closed
