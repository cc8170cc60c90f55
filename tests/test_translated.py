"""Reports in other languages: every reason, advice and line has its words, with the same fields, and what isn't known
stays English.
"""

from __future__ import annotations

import re
import string

import pytest

from sfast_core.reporting import chinese
from sfast_core.reporting.reason import COMFY, Reason
from sfast_core.reporting.reasons import KINDS
from sfast_core.reporting.reasons.calls import NO_GPU, TOO_MANY
from sfast_core.reporting.reasons.records import HOOKS
from sfast_core.reporting.report import ModuleReport, Report, SignatureReport
from sfast_core.reporting.translated import reason, said, speaker


def _fields(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


@pytest.mark.parametrize("code", [code for code in KINDS if code])
def test_each_reason_has_its_words(code: str) -> None:
    """With the fields of the English one; and its advice in ComfyUI, where it is shown."""
    assert _fields(chinese.SENTENCES[code]) == _fields(KINDS[code].sentence)
    webui_only = {"extension-replaces", "went-past", "lora-functional", "online-lora", "lowvram", "sd-unet"}
    assert code in webui_only or KINDS[code].advice(COMFY) in chinese.ADVICE


def test_nothing_is_translated_that_nobody_says() -> None:
    assert set(chinese.SENTENCES) == set(KINDS) - {""}
    assert set(chinese.ADVICE) <= {kind.advice(COMFY) for kind in KINDS.values()}
    assert all(_fields(line) == _fields(words) for line, words in chinese.LINES.items())


def test_a_reason() -> None:
    """Its fields are found in its sentence; one that nobody knows, or that has another sentence, stays as it is."""
    assert reason(NO_GPU(device="cpu"), chinese.SENTENCES) == "输入在 cpu 上，它不是 CUDA 设备"
    assert reason(TOO_MANY(place="args[0]", most=10_000), chinese.SENTENCES) == "args[0] 使参数超过 10,000 个值"
    assert reason("a reason", chinese.SENTENCES) == "a reason"
    assert reason(HOOKS(whose="it has").also("another sentence"), chinese.SENTENCES) == "another sentence"
    assert said(NO_GPU(device="cpu"), "none")["zh"] == ("输入在 cpu 上，它不是 CUDA 设备", "none")


def test_a_report() -> None:
    """Its lead and its sizes; in a language that isn't there, in English."""
    module = ModuleReport("SD15", "cuda:0", host=COMFY, pixels=8)
    module.calls.update(replayed=18, traced=1, eager=1)
    module.reasons[NO_GPU(device="cpu")] = 1
    signature = SignatureReport("float16[2, 4, 64, 96], float16[2, 77, 768]", calls=1, graph_bytes=2**20)
    module.signatures.append(signature)
    module.times[signature.inputs] = 2.5
    report = Report([module], {"torch": "2"})
    parts = report.parts(speaker("zh-TW"))
    assert not re.search("[a-z]{4,} [a-z]{3,}", parts["lead"] + parts["sizes"]), parts
    assert "768x512" in parts["sizes"] and "77 个 token" in parts["sizes"] and "2.50 倍" in parts["lead"]
    assert report.parts(speaker("fr")) == report.parts()
    english = report.parts()
    assert english["lead"].splitlines()[0] == "SD15 on cuda:0: fast, but for some calls"
    assert english["sizes"] == "SD15\n  768x512, 2 at once, 77 tokens: 1 call, ready in 0.0 s, graph 1 MB"
    assert isinstance(next(iter(module.reasons)), Reason)
