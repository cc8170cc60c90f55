"""Reports in other languages: every reason, advice and line has its words, with the same fields, and what isn't known
stays English.
"""

from __future__ import annotations

import re
import string
from collections import Counter

import pytest

from sfast_core.reporting import chinese
from sfast_core.reporting.reason import COMFY, Reason
from sfast_core.reporting.reasons import KINDS
from sfast_core.reporting.reasons.calls import NO_GPU, TOO_MANY
from sfast_core.reporting.reasons.graphs import NO_CUDA
from sfast_core.reporting.reasons.hosts import NODE_REPLACES
from sfast_core.reporting.reasons.records import BLOCK_AS_IT_WAS, HOOKS, NOT_TRACED, RANDOM, READS_VALUE
from sfast_core.reporting.report import ModuleReport, Report
from sfast_core.reporting.signature_report import SignatureReport
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


def test_a_reason_for_a_reason() -> None:
    """Both are said in that language, as most are that a user reads."""
    one = NOT_TRACED.because(READS_VALUE(name="item"))
    assert reason(one, chinese.SENTENCES) == "无法追踪它：item 把张量的值读入 Python"
    both = BLOCK_AS_IT_WAS.because(NODE_REPLACES(attribute="forward", by="TeaCache"), block=one)
    assert not re.search("[a-z]{2,} [a-z]{2,}", reason(both, chinese.SENTENCES).replace("forward", ""))
    assert reason(NOT_TRACED.because("in words"), chinese.SENTENCES) == "无法追踪它：in words"


def test_every_line_of_a_report_has_its_words() -> None:
    """Whatever has happened."""
    said: set[str] = set()

    def say(line: str, **fields: object) -> str:
        said.add(line)
        return line.format(**fields)

    for count in (1, 2):
        signature = SignatureReport(
            "float16[2, 4, 3, 64, 96], float16[2, 77, 768]",
            calls=count,
            segments=count,
            live=[f"FreeU {number}" for number in range(9)],
            live_because=[RANDOM()],
            recorded_in=["PAG"],
            live_s=1.0,
            segmented_s=2.0,
            lossy=["a clause"],
            distance=1e-3,
            reused=1,
            streamed_bytes=2**30,
            ring_bytes=2**20 * (count - 1),
            kept_bytes=2**20,
            graph_bytes=2**20 * (count - 1),
            not_captured_because=NO_CUDA(),
        )
        module = ModuleReport("SD15", host=COMFY, pixels=8, signatures=[signature], settings={"quality": "fast"})
        module.calls.update(replayed=count - 1, fused=3, traced=1, eager=1)
        module.reasons[NOT_TRACED.because(RANDOM())] = 1
        module.answered["TeaCache"] = module.copied_bytes = 1
        module.times[signature.inputs], module.several = 2.5, ["in two parts"]
        other = ModuleReport("VAE", left_out="it isn't understood")
        bad = ModuleReport("CLIP", calls=Counter(eager=2), signatures=[SignatureReport("x", eager_because=RANDOM())])
        Report([module, other, bad], {}).parts(say)
        for lines in (signature.live_lines, signature.lossy_lines, signature.stream_lines):
            lines(say)
    assert len(said) > 35 and said - set(chinese.LINES) <= {"{words}"}


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
    words = re.sub("`[^`]+`", "", parts["lead"] + parts["sizes"])  # without what is to be typed
    assert not re.search("[a-z]{4,} [a-z]{3,}", words), parts
    assert "768x512" in parts["sizes"] and "77 个 token" in parts["sizes"] and "2.50 倍" in parts["lead"]
    assert report.parts(speaker("fr")) == report.parts()
    english = report.parts()
    assert english["lead"].splitlines()[0] == "SD15 on cuda:0: fast, but for some calls"
    assert english["sizes"] == "SD15\n  768x512, 2 at once, 77 tokens: 1 call, ready in 0.0 s, graph 1 MB"
    assert isinstance(next(iter(module.reasons)), Reason)
