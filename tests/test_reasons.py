"""Every reason for running as before is of a kind, and comes with what the user of that host can do about it."""

from __future__ import annotations

import ast
import copy
import logging
import pickle
import re
from collections import Counter
from pathlib import Path

import pytest
import torch

from benchmarks.reasons import PAGE, page
from sfast_core import CompileConfig, compile
from sfast_core.capture.errors import CaptureError
from sfast_core.reporting.reason import COMFY, HOSTS, PYTHON, WEBUI, Kind, Reason, reason_of, told
from sfast_core.reporting.reasons import KINDS
from sfast_core.reporting.reasons.calls import CHANGES, COMPILED_TOO, GRADIENTS, NO_GPU, NOT_KEYED, SETTING_CHANGES
from sfast_core.reporting.reasons.hosts import NO_MODULE, NODE_REPLACES, PAST_NODE, RUN_BY
from sfast_core.reporting.reasons.memory import COMPUTED, IN_A_FILE, NOT_THERE, UNKNOWN_VRAM
from sfast_core.reporting.reasons.records import (
    CHANGES_MODULE,
    FINISHED,
    FROM_ELSEWHERE,
    HOOKS_OF_ALL,
    NOT_COMPARED,
    NOT_FUSED,
    NOT_TRACED,
    RANDOM,
    READS_OPTION,
    READS_VALUE,
    SIZE_BY_VALUE,
    UNLIKE,
)
from sfast_core.reporting.report import ModuleReport, Report
from sfast_core.reporting.saved import report_from

ROOT = Path(__file__).resolve().parent.parent
KINDS_OF = ROOT / "sfast_core" / "reporting" / "reasons"
SOURCES = "\n".join(path.read_text("utf-8") for path in (ROOT / "sfast_core").rglob("*.py") if path.parent != KINDS_OF)
REPORT = "please report it"


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.code or "unknown")
def test_each_is_a_clause(kind: Kind, host: str) -> None:
    """They stand inside sentences and in cells of a table."""
    advice = kind.advice(host)
    assert (
        advice[0].islower()
        and not advice.endswith(".")
        and kind.means.endswith(".")
        and "|" not in kind.row()[2:-2].replace(" | ", "")
    )


@pytest.mark.parametrize("code", [code for code in KINDS if code])
def test_the_code_gives_each(code: str) -> None:
    made = (
        node
        for path in KINDS_OF.glob("*.py")
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and node.value.args
    )
    name = next(node.targets[0].id for node in made if getattr(node.value.args[0], "value", None) == code)  # type: ignore[attr-defined]
    assert re.search(rf"\b{name}(\(|\.because|\b)", SOURCES)


def test_the_documents_have_the_table() -> None:
    """``python -m benchmarks.reasons`` writes it."""
    assert page(PAGE.read_text("utf-8")) == PAGE.read_text("utf-8")


@pytest.mark.parametrize(
    ("reason", "host", "words"),
    [
        (NO_GPU(device="cpu"), COMFY, "NVIDIA"),
        (NODE_REPLACES(attribute="_forward", by="freeu"), COMFY, "remove that node"),
        (FINISHED(what="FreeU (patches output_block_patch 0) returns something built otherwise"), COMFY, "traced once"),
        (NOT_THERE(weight="out.weight", where="cpu", device="cuda:0"), COMFY, "free GPU memory"),
        (NOT_KEYED(place="kwargs['x']", kind="generator"), COMFY, "if a node passes that to the model"),
        (NOT_KEYED(place="kwargs['x']", kind="generator"), WEBUI, "if an extension passes"),
        (NOT_KEYED(place="kwargs['x']", kind="generator"), PYTHON, "pass tensors"),
        (READS_OPTION(name="'cond_or_uncond'"), COMFY, "if a node brings that in"),
        (RANDOM(), PYTHON, "if the code is yours"),
        (NOT_TRACED.because(RANDOM()), COMFY, "if a node brings that in"),
        (NOT_TRACED.because("something that nobody has thought of"), COMFY, REPORT),
        (NOT_FUSED.because(reason_of(CaptureError("further away")), error="CaptureError"), PYTHON, REPORT),
        (IN_A_FILE(kind="Linear"), COMFY, "free GPU memory"),
        (UNKNOWN_VRAM(), COMFY, "--disable-dynamic-vram"),
        (COMPUTED(kind="Linear"), COMFY, "with its LoRAs merged"),
        (
            CHANGES(change="X (y) returns something built otherwise: finished by the original forward"),
            WEBUI,
            "if an extension",
        ),
        (told("something that nobody has thought of"), PYTHON, REPORT),
        (RANDOM(), "a host of somebody's", "if the code is yours"),
    ],
)
def test_a_reason(reason: Reason, host: str, words: str) -> None:
    assert words in reason.advice(host)


#: What popular packs do to a model, and what their users read who look why it isn't fast (docs/notes/0040).
OF_PACKS = {
    "TeaCache, MagCache, NAG, x-flux: a method of the model's": (NODE_REPLACES(attribute="f", by="x"), "that node"),
    "PuLID-Flux, CacheDiT: likewise, for good": (NODE_REPLACES(attribute="f", by="x"), "the model has been reloaded"),
    "First Block Cache: the blocks": (RUN_BY(who="x"), "that node"),
    "Automatic CFG: calls with options of its own": (PAST_NODE(), "that node"),
    "TensorRT": (NO_MODULE(kind="TrTUnet"), "one of the two"),
    "torch.compile, of KJNodes, Essentials, TeaCache": (COMPILED_TOO(), "one of the two"),
    "Nunchaku: kernels past PyTorch": (FROM_ELSEWHERE(name="linear", what="tensor of shape (2,)"), "if a node brings"),
    "the same, by addresses": (UNLIKE(name="data_ptr"), "if a node brings"),
    "bleh's Deep Shrink: asks for a value": (READS_VALUE(name="item"), "if a node brings"),
    "masks that choose rows": (SIZE_BY_VALUE(name="__getitem__"), "if a node brings"),
    "ToMe, Enhance-A-Video: keeps a number": (CHANGES_MODULE(what="x"), "if a node brings"),
    "sonar: noise inside the model": (RANDOM(), "if a node brings"),
    "bleh's Block CFG: a progress bar": (NOT_COMPARED(origin="tqdm", kind="TextIOWrapper"), "if a node brings"),
    "regional prompts: objects among the options": (NOT_KEYED(place="x", kind="Region"), "if a node passes"),
    "KJNodes' torch settings, different in two branches": (SETTING_CHANGES(setting="x"), "one setting in the whole"),
    "trainers": (GRADIENTS(), "nothing: training"),
    "profilers": (HOOKS_OF_ALL(), "turn it off"),
    "MultiGPU: layers elsewhere": (NOT_THERE(weight="w", where="cpu", device="cuda:0"), "free GPU memory"),
    "LoRAs beside the weights": (COMPUTED(kind="Linear"), "with its LoRAs merged"),
}


@pytest.mark.parametrize("pack", OF_PACKS)
def test_what_a_packs_user_reads(pack: str) -> None:
    """Something that they can do; a report is for what nobody knows."""
    reason, words = OF_PACKS[pack]
    assert words in reason.advice(COMFY) and REPORT not in reason.advice(COMFY)
    inside = NOT_TRACED.because(reason)
    assert inside.advice(COMFY) == reason.advice(COMFY)


@pytest.mark.parametrize("code", KINDS)
def test_a_node_is_to_be_taken_out_only_where_there_is_one(code: str) -> None:
    kind = KINDS[code]
    for host, what in ((COMFY, "that node"), (WEBUI, "that extension")):
        assert what not in kind.advice(host) or any(
            word in f"{kind.sentence} {kind.means}" for word in ("node", "extension", "Likewise")
        )


def test_without_a_host_there_is_no_node_to_take_out() -> None:
    assert [
        kind.code
        for kind in KINDS.values()
        if "node" in kind.advice(PYTHON) and "node" not in f"{kind.sentence} {kind.means}"
    ] == []


def test_it_is_its_sentence() -> None:
    """Who reads reports reads text: equal, hashed, kept and copied as such."""
    reason = NO_GPU(device="cpu")
    assert reason == "the inputs are on cpu, which isn't a CUDA device" and f"{reason}" == str(reason)
    assert Counter([reason])["the inputs are on cpu, which isn't a CUDA device"] == 1
    for other in (copy.deepcopy(reason), pickle.loads(pickle.dumps(reason)), reason.also("in other words")):
        assert isinstance(other, Reason) and other.code == "no-gpu"


def test_an_error_has_its_reason() -> None:
    assert reason_of(CaptureError(RANDOM())).code == "random"
    assert reason_of(CaptureError("in words")) == "in words" and reason_of(CaptureError("in words")).code == ""
    assert reason_of(ValueError()) == ""


def test_the_report_and_the_log_say_it(caplog: pytest.LogCaptureFixture) -> None:
    handle = compile(torch.nn.Linear(4, 4), CompileConfig(allow_cpu=False))
    with caplog.at_level(logging.INFO, "fast_compile"), torch.no_grad():
        handle(torch.randn(2, 4))
    words = NO_GPU(device="cpu").advice(PYTHON)
    assert (
        words in handle.report().text()
        and sum(words in record.message for record in caplog.records) == len(caplog.records) == 1
    )
    assert "what you can do" not in ModuleReport("a model").text()


def test_a_saved_report_keeps_them() -> None:
    """With a code that is known; of another version's it says what that said."""
    report = ModuleReport("a model", reasons=Counter([RANDOM(), told("in words")]), host=COMFY)
    data = Report([report], {}).as_dict()
    assert report_from(data).text() == Report([report], {}).text() and "if a node brings" in report.text()
    data["modules"][0]["codes"] = {"it draws random numbers": "another version's"}
    assert "what you can do" not in report_from(data).text()


def test_a_recording_is_given_up_with_a_reason_of_a_kind() -> None:
    class Draws(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand_like(x)

    class Reads(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * round(x.sum().item(), 3)

    for module, code in ((Draws(), "random"), (Reads(), "reads-value")):
        handle = compile(module, CompileConfig(allow_cpu=True))
        with torch.no_grad():
            handle(torch.ones(4)), handle(torch.ones(4))
        (reason,) = handle.engine.report.reasons
        assert reason.startswith("it can't be traced: ") and isinstance(reason, Reason) and reason.code == code
