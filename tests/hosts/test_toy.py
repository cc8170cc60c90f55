"""A host of one folder, as docs/adding-a-host.md has it: it needs nothing of other hosts, and leaves nothing behind."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from sfast_core.config import CompileConfig
from tests.hosts.toy import install, remove
from tests.hosts.toy.application import Stopped, Studio
from tests.hosts.toy.install import STATES
from tests.hosts.toy.memory import make_room
from tests.hosts.toy.report import report

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


@pytest.fixture
def studio() -> Iterator[Studio]:
    torch.manual_seed(0)
    there = Studio(nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8)))
    install(there, CompileConfig(allow_cpu=True))
    yield there
    remove(there)


def expected(studio: Studio, x: torch.Tensor) -> torch.Tensor:
    """The same without us."""
    plain = Studio(type(studio.model)(*studio.model))
    return plain.picture(x)


def test_pictures_are_made_by_the_engine(studio: Studio) -> None:
    x = torch.randn(2, 8)
    torch.testing.assert_close(studio.picture(x), expected(studio, x))
    assert report().modules[0].calls == {"traced": 1, "fused": 2} and "Sequential" in report().text()


def test_weights_that_change_in_place_are_read(studio: Studio) -> None:
    x = torch.randn(2, 8)
    before = studio.picture(x)
    studio.apply_lora(0.1)
    torch.testing.assert_close(studio.picture(x), expected(studio, x))
    assert not torch.allclose(studio.picture(x), before) and report().modules[0].calls["traced"] == 1


class _Picky(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert len(x) <= 2, f"{len(x)} pictures are too many"
        return super().forward(x)


def test_a_failure_of_the_models_own_is_not_ours(studio: Studio, caplog: pytest.LogCaptureFixture) -> None:
    """The report and the log said that Fast Compile failed, and named the model's own error."""
    studio.model[0] = _Picky(8, 16)  # type: ignore[index]
    with caplog.at_level(logging.DEBUG, "fast_compile"):
        for _ in range(2):
            with pytest.raises(AssertionError, match="3 pictures are too many"):
                studio.picture(torch.randn(3, 8))
    assert not report().modules[0].reasons and not report().modules[0].calls["eager"]
    assert not any("Fast Compile failed" in record.getMessage() for record in caplog.records)
    x = torch.randn(2, 8)
    torch.testing.assert_close(studio.picture(x), expected(studio, x))
    assert report().modules[0].calls == {"traced": 1, "fused": 2}


def test_a_failure_of_ours_is_said(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 8)
    studio.picture(x)
    assert (state := STATES.get(studio.model)) is not None
    monkeypatch.setattr(state.engine, "call", Mock(side_effect=KeyError("a fault")))
    torch.testing.assert_close(studio.picture(x), expected(studio, x))
    assert report().modules[0].reasons == {"Fast Compile failed: KeyError: 'a fault'": 3}


def test_what_the_host_knows_runs_as_it_was(studio: Studio) -> None:
    studio.model.tiled = True  # type: ignore[assignment]
    studio.picture(torch.randn(2, 8))
    assert report().modules[0].calls == {"eager": 3} and report().modules[0].reasons == {
        "the studio tiles this picture": 3
    }


def test_the_button_stops_it(studio: Studio) -> None:
    studio.stopped = True
    with pytest.raises(Stopped):
        studio.picture(torch.randn(2, 8))


def test_memory_is_given_back_and_the_trace_stays(studio: Studio) -> None:
    x = torch.randn(2, 8)
    studio.picture(x)
    make_room()
    torch.testing.assert_close(studio.picture(x), expected(studio, x))
    assert report().modules[0].calls["traced"] == 1


def test_nothing_is_left(studio: Studio) -> None:
    studio.picture(torch.randn(2, 8))
    remove(studio)
    assert "forward" not in vars(studio.model) and STATES.get(studio.model) is None and studio.listeners == []


def test_it_is_five_files_that_know_no_other_host() -> None:
    files = {path.name for path in (HERE / "toy").glob("*.py")} - {"__init__.py", "application.py"}
    text = (ROOT / "docs" / "adding-a-host.md").read_text("utf-8")
    assert len(files) == 5 and files == set(re.findall(r"^\| `(\w+\.py)`", text, re.MULTILINE))
    known = set()
    for path in (HERE / "toy").glob("*.py"):
        known |= {
            node.module
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.ImportFrom) and node.module
        }
    ours = {name for name in known if name.startswith("sfast_core")}
    assert ours <= {
        f"sfast_core.{name}"
        for name in ("config", "engine", "reporting.report", "hosts.hook", "hosts.fallback", "hosts.states")
    }
