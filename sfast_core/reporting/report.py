"""The report: for each compiled module how its calls ran, what was fused, what was not, and why."""

from __future__ import annotations

import platform
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from ..version import VERSION
from .reason import PYTHON, Reason
from .signature_report import SignatureReport, megabytes
from .translated import Say, english

T = TypeVar("T")
_TRIES = 5
_SHAPE = re.compile(r"\[(\d+(?:, \d+)*)\]")
_HOSTS = ("diffusers", "transformers")  # libraries whose versions are given where they are in use


def read_while_counting(read: Callable[[], T]) -> T:
    """``read()``, tried again where another thread adds to the counts that it iterates over."""
    for left in reversed(range(_TRIES)):
        try:
            return read()
        except RuntimeError:  # a count was added in the middle of reading them
            if not left:
                raise
    raise AssertionError("unreachable")


@dataclass
class ModuleReport:
    """What became of one compiled module.

    Attributes:
        name: the module's, as users read it.
        device: where the last call ran.
        calls: the number of calls by path: ``traced``, ``replayed``, ``fused`` (without a graph), ``eager``.
        reasons: why calls ran eager, with their number.
        answered: calls that somebody else answered in the module's place, such as a cache, by who did.
        signatures: what became of each.
        adopted_bytes: the size of weights that lie in another layout.
        copied_bytes: the size of copies of weights in another form (8 bits).
        settings: by name.
        left_out: why it isn't compiled at all, or None.
        host: whose users read this, one of :data:`.reason.HOSTS`.
        times: how many times as fast as without us a benchmark has measured it, by signature.
        pixels: how many pixels of a picture, along a side, one element of the input stands for; 0 where unknown.
        several: which calls several devices compute and how, or why not; a clause each.
    """

    name: str
    device: str = ""
    calls: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)
    signatures: list[SignatureReport] = field(default_factory=list)
    adopted_bytes: int = 0
    copied_bytes: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    left_out: str | None = None
    host: str = PYTHON
    times: dict[str, float] = field(default_factory=dict)
    pixels: int = 0
    several: list[str] = field(default_factory=list)

    @property
    def graph_bytes(self) -> int:
        """The size of this module's graphs now."""
        return sum(signature.graph_bytes for signature in self.signatures)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON. ``codes`` has the code of each reason."""
        return {
            **asdict(self),
            "calls": dict(self.calls),
            "reasons": {str(reason): count for reason, count in self.reasons.items()},
            "codes": {str(reason): reason.code for reason in self.reasons if isinstance(reason, Reason)},
            "answered": dict(self.answered),
            "graph_bytes": self.graph_bytes,
        }

    def verdict(self) -> str:
        """Whether it is fast, in a few words."""
        total = self.calls.total()
        if not total:
            return "nothing has run through it yet"
        if 2 * self.calls["eager"] > total:
            return "not fast"
        if self.device == "cpu":
            return "traced and fused, which makes nothing faster on a CPU"
        mostly = "fast, but for some calls" if self.calls["eager"] else "fast"
        return (
            mostly
            if self.calls["replayed"]
            else f"{mostly}, without graphs"
            if self.calls["fused"]
            else "traced: fast from the next call on"
        )

    def lead_lines(self, say: Say = english) -> list[str]:
        """What a person asks first: is it fast, by how much, what isn't and why, what can be done about it, and the
        memory that it takes. ``say`` gives each line in a language.
        """
        if self.left_out is not None:
            return [say("{name} is left out: {why}", name=self.name, why=self.left_out)]
        line = "{name} on {device}: {verdict}" if self.device else "{name}: {verdict}"
        lines = [say(line, name=self.name, device=self.device, verdict=say(self.verdict()))]
        calls = ", ".join(say(f"{{count}} {path}", count=count) for path, count in self.calls.most_common())
        lines.append(say("  calls: {calls}", calls=calls or say("none")))
        for inputs, times in self.times.items():
            line = "  {times} x as fast as without it, as the benchmark measured, for {size}"
            lines.append(say(line, times=f"{times:.2f}", size=self.size(inputs, say)))
        for reason, count in self.reasons.most_common():
            lines.append(say("  ran as before, {count}x: {reason}", count=count, reason=reason))
            if isinstance(reason, Reason):  # else one from the file of a version that knows others
                lines.append(say("    what you can do: {advice}", advice=reason.advice(self.host)))
        lines += [
            say("  {count} more calls didn't run it: {who} answered in its place", who=who, count=count)
            for who, count in self.answered.most_common()
        ]
        copied = (
            say(", weights in 8 bits beside them {size}", size=megabytes(self.copied_bytes))
            if self.copied_bytes
            else ""
        )
        memory = {"graphs": megabytes(self.graph_bytes), "adopted": megabytes(self.adopted_bytes), "copied": copied}
        lines.append(say("  memory: graphs {graphs}, weights laid out anew {adopted}{copied}", **memory))
        lines += [say("  several GPUs: {what}", what=what) for what in self.several]
        if (quality := self.settings.get("quality", "exact")) != "exact":
            lines.append(
                say("  quality: {quality}, as it is set; what was done is said for each size", quality=quality)
            )
        return lines

    def size(self, inputs: str, say: Say = english) -> str:
        """A signature's size as a person chooses it, in pixels or tokens; the inputs where that isn't known."""
        shapes = [[int(number) for number in shape.split(", ")] for shape in _SHAPE.findall(inputs)]
        picture = next((shape for shape in shapes if len(shape) in (4, 5)), None)
        if not self.pixels or picture is None:
            return inputs
        words = [f"{picture[-1] * self.pixels}x{picture[-2] * self.pixels}"]
        words += [say("{count} latent frames", count=picture[2])] if len(picture) == 5 and picture[2] > 1 else []
        words += [say("{count} at once", count=picture[0])] if picture[0] > 1 else []
        words += [say("{count} tokens", count=shape[1]) for shape in shapes if len(shape) == 3][:1]
        return ", ".join(words)

    def size_lines(self, say: Say = english) -> list[str]:
        """One line for each size: what became of it."""
        lines = []
        for signature in self.signatures:
            ready = signature.trace_s + signature.rewrite_s + signature.capture_s
            why = signature.eager_because
            became = (
                say("ran as before: {why}", why=why) if why else say("ready in {seconds} s", seconds=f"{ready:.1f}")
            )
            if signature.graph_bytes:
                became += say(", graph {size}", size=megabytes(signature.graph_bytes))
            elif signature.not_captured_because:
                became += say(", no graph: {why}", why=signature.not_captured_because)
            calls = say(f"{{count}} {'call' if signature.calls == 1 else 'calls'}", count=signature.calls)
            lines.append(
                say("  {size}: {calls}, {became}", size=self.size(signature.inputs, say), calls=calls, became=became)
            )
        return [self.name, *lines] if lines else []

    def detail_lines(self) -> list[str]:
        """All that is known about each size."""
        lines = [
            line for signature in self.signatures for line in signature.detail_lines(self.device.startswith("cuda"))
        ]
        return [self.name, *lines] if lines else []

    def text(self) -> str:
        """The whole report of this module to read."""
        return "\n".join([*self.lead_lines(), *self.size_lines()[1:], *self.detail_lines()[1:]])


@dataclass
class Report:
    """Several modules and the versions that they ran with."""

    modules: list[ModuleReport]
    versions: dict[str, str]

    def __str__(self) -> str:
        return self.text()

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {"versions": self.versions, "modules": [module.as_dict() for module in self.modules]}

    def parts(self, say: Say = english) -> dict[str, str]:
        """The report to read in three parts: ``lead`` (what a person asks first), ``sizes`` and ``all``. ``say`` gives
        the lines of the first two in a language.
        """
        shown = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return {
            "lead": "\n".join(line for module in self.modules for line in module.lead_lines(say)),
            "sizes": "\n".join(line for module in self.modules for line in module.size_lines(say)),
            "all": "\n".join([shown, *(line for module in self.modules for line in module.detail_lines())]),
        }

    def text(self) -> str:
        """The whole report to read."""
        parts = self.parts()
        headed = (
            f"{head}{parts[name]}"
            for name, head in (("lead", ""), ("sizes", "By size:\n"), ("all", "Everything:\n"))
            if parts[name]
        )
        return "\n\n".join(headed)


def versions() -> dict[str, str]:
    """The versions that matter here, without importing what isn't imported already."""
    import importlib.metadata as metadata

    import torch

    found = {"fast compile": VERSION, "python": platform.python_version(), "torch": torch.__version__}
    if torch.version.cuda and torch.cuda.is_available():
        found |= {
            "cuda": torch.version.cuda,
            "cudnn": str(torch.backends.cudnn.version()),
            "gpu": torch.cuda.get_device_name(),
        }
    for name in ("triton", "nvidia-cudnn-frontend", "xformers"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found | {
        name: version for name in _HOSTS if (version := getattr(sys.modules.get(name), "__version__", None))
    }
