"""The badge's words: each that the script asks for exists in every language, with the same places for values."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "\n".join(path.read_text("utf-8") for path in sorted((ROOT / "web" / "js").glob("*.js")))
STATES = {"tracing", "capturing", "fast", "fused", "eager"}  # what events tell; sfast_core/hosts/comfy/events.py
# what a node's own switches say, and the server's board; web/js/state.js
SWITCHES = {"bypassed", "muted", "off", "idle"}
# how calls ran, as events count them
CALLS = {f"{path}Calls" for path in ("traced", "replayed", "fused", "eager", "answered")}
LANGUAGES = sorted(path.parent.name for path in (ROOT / "locales").glob("*/nodeDefs.json"))


def _words(language: str) -> dict[str, str]:
    found: dict[str, str] = json.loads((ROOT / "locales" / language / "main.json").read_text("utf-8"))["fastCompile"]
    return found


def test_every_word_is_there() -> None:
    asked = (
        set(re.findall(r'\bsay\("(\w+)"', SCRIPT))
        | set(re.findall(r'\["(\w+)"(?:\]|, \{)', SCRIPT)) - {"megabytes"}
        | STATES
        | SWITCHES
        | CALLS
    )
    asked |= (
        set(re.findall(r'"(why\w+)"', SCRIPT))
        | set(re.findall(r"\b(docs\w+):", SCRIPT))
        | set(re.findall(r'PARTS = \["lead", "(\w+)", "(\w+)"\]', SCRIPT)[0])
    )
    assert len(asked) > 12 and LANGUAGES == ["en", "zh"]
    for language in LANGUAGES:
        assert set(_words(language)) == asked, language


def test_values_have_the_same_places() -> None:
    english = {key: sorted(re.findall(r"\{(\w+)\}", text)) for key, text in _words("en").items()}
    for language in LANGUAGES:
        assert {key: sorted(re.findall(r"\{(\w+)\}", text)) for key, text in _words(language).items()} == english


def test_no_word_is_in_the_script() -> None:
    """What a user reads comes from the files: no text of several words stands in the code."""
    code = "\n".join(
        line.partition("//")[0] for line in SCRIPT.splitlines() if not line.strip().startswith(("*", "/*"))
    )
    texts = re.findall(r'"([A-Z][^"]* [^"]*)"', code)
    assert texts == [], texts
