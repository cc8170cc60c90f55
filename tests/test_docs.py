"""What the documents say of the code: names exist, links lead somewhere, reasons are those that the code gives."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from sfast_core.config import CompileConfig

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMFY = ROOT / "tests" / "hosts" / "comfy"


def _table(page: str, heading: str = "") -> list[str]:
    """The first column of every table of a page, below ``heading``; head rows left out."""
    text = (
        (ROOT / "docs" / page).read_text("utf-8").partition(heading)[2]
        if heading
        else (ROOT / "docs" / page).read_text("utf-8")
    )
    rows = re.findall(r"^\| (.+?) \|.*\|$\n(?!\|---)", text, re.MULTILINE)
    return [row for row in rows if row.startswith("`")]


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """To a file or folder of this repository, and to a heading that it has."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{target} isn't there"
        assert not anchor or anchor in _anchors(found), f"{target}: there is no such heading"


def test_every_setting_has_its_row() -> None:
    """Those of CompileConfig, and those of the node."""
    rows = _table("settings.md")
    assert {row.strip("`") for row in rows} >= set(CompileConfig.names())
    text = (ROOT / "docs" / "settings.md").read_text("utf-8")
    tree = ast.parse((ROOT / "nodes" / "settings.py").read_text("utf-8"))
    execute = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "execute")
    assert all(f"`{argument.arg}`" in text for argument in execute.args.args[1:])


def test_the_tests_that_prove_compatibility_exist() -> None:
    """Each scenario that the page names is a function in the file that it names."""
    text = (ROOT / "docs" / "compatibility.md").read_text("utf-8")
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", text)
    assert len(named) > 20
    for file, name in named:
        assert f"def {name}(" in (COMFY / file).read_text("utf-8"), f"{file}::{name}"
    for file in re.findall(r"`((?:scenarios/|test_)\w+\.py)`", text):
        assert (COMFY / file).exists(), file


def test_messages_are_those_that_the_code_gives() -> None:
    """The words in the tables of symptoms stand in the sources."""
    sources = "\n".join(
        path.read_text("utf-8") for folder in ("sfast_core", "nodes") for path in (ROOT / folder).rglob("*.py")
    )
    rows = [row.strip("`") for row in _table("troubleshooting.md", "## A node refuses its input")]
    assert len(rows) > 2
    assert [row for row in rows if row not in sources] == []


def test_the_short_table_is_what_was_measured() -> None:
    """``python -m benchmarks.headline`` writes it."""
    from benchmarks import headline

    text = headline.PAGE.read_text("utf-8")
    assert headline.page(text) == text and "x |" in text


def test_the_badge_links_to_pages_that_exist() -> None:
    """And to none that the server wouldn't give."""
    script = (ROOT / "web" / "js" / "details.js").read_text("utf-8")
    named = re.findall(r'docs\w+: "([\w-]+)"', script)
    assert len(named) > 3 and all((ROOT / "docs" / f"{name}.md").is_file() for name in named)


def test_the_states_of_the_badge_are_explained() -> None:
    import json

    words = json.loads((ROOT / "locales" / "en" / "main.json").read_text("utf-8"))["fastCompile"]
    page = (ROOT / "docs" / "why-not-faster.md").read_text("utf-8")
    states = ("ready", "tracing", "capturing", "fast", "fused", "eager", "idle", "bypassed", "muted", "off", "notHere")
    assert [state for state in states if f"`{words[state]}`" not in page] == []
