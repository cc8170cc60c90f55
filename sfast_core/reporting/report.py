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
from .translated import Say, english

T = TypeVar("T")
_TRIES = 5
_SHAPE = re.compile(r"\[(\d+(?:, \d+)*)\]")
_HOSTS = ("diffusers", "transformers")  # libraries whose versions are given where they are in use
_NAMED = 6  # the most functions that one line names


def read_while_counting(read: Callable[[], T]) -> T:
    """``read()``, tried again where another thread adds to the counts that it iterates over."""
    for left in reversed(range(_TRIES)):
        try:
            return read()
        except RuntimeError:  # a count was added in the middle of reading them
            if not left:
                raise
    raise AssertionError("unreachable")


@dataclass(eq=False)
class SignatureReport:
    """What became of one signature."""

    inputs: str  #: the call's tensors and settings, as text
    passes: dict[str, int] = field(default_factory=dict)
    nodes_before: int = 0
    nodes_after: int = 0
    impls: dict[str, dict[str, int]] = field(default_factory=dict)  #: op -> impl -> places
    refused: dict[str, dict[str, str]] = field(default_factory=dict)  #: op -> impl -> why not
    distance: float | None = None  #: relative L2 distance to eager on the first call
    trace_s: float = 0.0
    rewrite_s: float = 0.0
    capture_s: float = 0.0
    graph_bytes: int = 0
    captures: int = 0
    calls: int = 0
    segments: int = 0  #: the segments that live code cuts the program into; 0 where there is no live code
    reused: int = 0  #: calls that reused what an earlier one had computed in the model's deep layers
    #: what was done, or couldn't be, of what a quality below exact allows; a clause each
    lossy: list[str] = field(default_factory=list)
    live: list[str] = field(default_factory=list)  #: the live code between segments, by name, in order
    live_because: list[str] = field(default_factory=list)  #: why functions among it run live, where that is known
    recorded_in: list[str] = field(default_factory=list)  #: other people's functions that are a part of the program
    live_s: float = 0.0  #: seconds of the host's thread that live code took
    segmented_s: float = 0.0  #: seconds that the calls with live code took in all
    #: the weights that are copied to the device at each call
    streamed_bytes: int = 0
    ring_bytes: int = 0  #: the device memory through which they are streamed
    #: the copies of weights that stay on the device for a sampling; other signatures may read some of them, too
    kept_bytes: int = 0
    eager_because: str | None = None
    not_captured_because: str | None = None

    def refusals(self) -> dict[str, list[str]]:
        """Why impls could not be taken: by reason, the impls as ``op.impl``."""
        found: dict[str, list[str]] = {}
        for op, impls in self.refused.items():
            for impl, reason in impls.items():
                found.setdefault(reason.removeprefix(f"{impl}: "), []).append(f"{op}.{impl}")
        return found

    def lossy_lines(self, say: Say = english) -> list[str]:
        """What a quality below exact has led to, and how far the first result was from the model's own. Empty under
        "exact".
        """
        if not self.lossy:
            return []
        far = "; {distance} from the model's own result in the first call"
        again = "; {count} calls of {calls} used the deep part of an earlier one"
        measured = "" if self.distance is None else say(far, distance=f"{self.distance:.1e}")
        reused = say(again, count=self.reused, calls=self.calls) if self.reused else ""
        return [say("    quality: {what}", what=f"{'; '.join(self.lossy)}{measured}{reused}")]

    def stream_lines(self, say: Say = english) -> list[str]:
        """How much of the weights is copied to the device at each call. Empty where all are there."""
        if not self.streamed_bytes and not self.kept_bytes:
            return []
        ring, stay = _megabytes(self.ring_bytes), _megabytes(self.kept_bytes)
        through = say(" through {size} of its memory", size=ring) if self.ring_bytes else say(", one by one")
        kept = say("; {size} stay there for a sampling", size=stay) if self.kept_bytes else ""
        line = "    streams {size} of weights to the device at each call{through}{kept}"
        return [say(line, size=_megabytes(self.streamed_bytes), through=through, kept=kept)]

    def live_lines(self, say: Say = english) -> list[str]:
        """What ran live between segments with its share of the time, and which other people's functions are a part of
        the program. Empty where there are none.
        """
        within = "    recorded with the model's code: {functions}"
        inside = [say(within, functions=_listed(self.recorded_in, say))] if self.recorded_in else []
        if not self.live:
            return inside
        part = f"{self.live_s / self.segmented_s:.0%}" if self.segmented_s else ""
        share = say(", {part} of the time", part=part) if part else ""
        line = f"    {{count}} {'segment' if self.segments == 1 else 'segments'}, between them: {{functions}}{{share}}"
        because = "    that runs live because {why}"
        why = [say(because, why=_listed(self.live_because, say))] if self.live_because else []
        return [say(line, count=self.segments, functions=_listed(self.live, say), share=share), *why, *inside]


def _listed(names: list[str], say: Say) -> str:
    """The names of functions, each once with its count, and the number of those that aren't named."""
    counted = Counter(names)
    most = [(say("{words}", words=name), count) for name, count in counted.most_common(_NAMED)]
    shown = ", ".join(f"{count}x {name}" if count > 1 else name for name, count in most)
    more = len(counted) - len(most)
    return say("{shown} and {more} more", shown=shown, more=more) if more > 0 else shown


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
            say(", weights in 8 bits beside them {size}", size=_megabytes(self.copied_bytes))
            if self.copied_bytes
            else ""
        )
        memory = {"graphs": _megabytes(self.graph_bytes), "adopted": _megabytes(self.adopted_bytes), "copied": copied}
        lines.append(say("  memory: graphs {graphs}, weights laid out anew {adopted}{copied}", **memory))
        lines += [say("  several GPUs: {what}", what=what) for what in self.several]
        if (quality := self.settings.get("quality", "exact")) != "exact":
            lines.append(
                say("  quality: {quality}, as it is set; what was done is said for each size", quality=quality)
            )
        return lines

    def size(self, inputs: str, say: Say = english) -> str:
        """A signature's size as a person chooses it, a picture in pixels and a prompt in tokens. The inputs themselves
        where that isn't known.
        """
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
                became += say(", graph {size}", size=_megabytes(signature.graph_bytes))
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
            line
            for signature in self.signatures
            for line in _signature_lines(signature, self.device.startswith("cuda"))
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


def _signature_lines(signature: SignatureReport, on_gpu: bool) -> list[str]:
    """``on_gpu``: elsewhere no kernel can be taken, and a list of them would say nothing."""
    lines = [f"  {signature.inputs}: {_counted(signature.calls, 'call')}"]
    if signature.eager_because:
        return [*lines, f"    eager: {signature.eager_because}"]
    lines.append(
        f"    {signature.nodes_before} operations became {signature.nodes_after}; distance to eager"
        f" {signature.distance or 0:.1e}"
    )
    captured = f", captured {signature.captures}x in {signature.capture_s:.2f} s" if signature.captures else ""
    lines.append(f"    traced in {signature.trace_s:.2f} s, rewritten in {signature.rewrite_s:.2f} s{captured}")
    fused = {name: count for name, count in signature.passes.items() if count}
    lines.append("    rewrites: " + ", ".join(f"{name} {count}" for name, count in fused.items()))
    lines.append(
        "    impls: "
        + "; ".join(
            f"{op}: " + ", ".join(f"{impl} {n}" for impl, n in impls.items()) for op, impls in signature.impls.items()
        )
    )
    lines += [*signature.lossy_lines(), *signature.live_lines(), *signature.stream_lines()]
    if idle := [name for name, count in signature.passes.items() if not count]:
        lines.append("    found nothing to do: " + ", ".join(idle))
    lines += (
        [f"    not taken, {reason}: {', '.join(names)}" for reason, names in signature.refusals().items()]
        if on_gpu
        else []
    )
    if signature.not_captured_because:
        lines.append(f"    no graph: {signature.not_captured_because}")
    elif signature.captures:
        lines.append(f"    graph: {_megabytes(signature.graph_bytes)}")
    return lines


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _megabytes(count: int) -> str:
    return f"{count / 2**20:.0f} MB"
