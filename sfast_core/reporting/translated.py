"""The words of reports in another language: lines, reasons and advice. What isn't translated stays in English."""

from __future__ import annotations

import functools
import re
import string
from collections.abc import Callable
from typing import Any

from . import chinese
from .reason import Reason, told
from .reasons import KINDS

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
    """A reason's sentence in the language of these ones."""
    found = told(words)
    pattern, translated = _pattern(found.code), sentences.get(found.code)
    match = pattern.fullmatch(found) if pattern is not None and translated is not None else None
    return str(found) if match is None or translated is None else translated.format(**match.groupdict())


def said(words: str, advice: str) -> dict[str, tuple[str, str]]:
    """A reason and its advice, by language."""
    return {
        language: (reason(words, found.SENTENCES), found.ADVICE.get(advice, advice))
        for language, found in LANGUAGES.items()
    }


@functools.cache
def _pattern(code: str) -> re.Pattern[str] | None:
    """What a sentence of this kind looks like, with a group for each field."""
    if not code:
        return None
    parts = string.Formatter().parse(KINDS[code].sentence)
    return re.compile(
        "".join(re.escape(text) + (f"(?P<{name}>.+?)" if name else "") for text, name, _, _ in parts), re.DOTALL
    )
