"""The words of reports in another language: lines, reasons and advice. What isn't translated stays in English."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import chinese
from .reason import Reason

Say = Callable[..., str]  #: ``say(line, **fields)``
LANGUAGES = {"zh": chinese}


def english(line: str, **fields: Any) -> str:
    """A line with its fields."""
    return line.format(**fields) if fields else line


def speaker(language: str) -> Say:
    """What says a line in this language, such as ``zh`` or ``zh-TW``; in English where that isn't known."""
    found = LANGUAGES.get(language) or LANGUAGES.get(language.partition("-")[0])
    if found is None:
        return english

    def say(line: str, **fields: Any) -> str:
        fields = {
            name: reason(value, found.SENTENCES) if isinstance(value, Reason) else value
            for name, value in fields.items()
        }
        if "advice" in fields:
            fields["advice"] = found.ADVICE.get(fields["advice"], fields["advice"])
        return english(found.LINES.get(line, line), **fields)

    return say


def reason(words: str, sentences: dict[str, str]) -> str:
    """A reason's sentence in the language of these ones, and so what it gives as its own reason."""
    if not isinstance(words, Reason) or words.spelled is None or words.spelled.code not in sentences:
        return str(words)
    about = {name: reason(value, sentences) for name, value in words.about.items()}
    return sentences[words.spelled.code].format(**about)


def said(words: str, advice: str) -> dict[str, tuple[str, str]]:
    """A reason and its advice, by language."""
    return {
        language: (reason(words, found.SENTENCES), found.ADVICE.get(advice, advice))
        for language, found in LANGUAGES.items()
    }
