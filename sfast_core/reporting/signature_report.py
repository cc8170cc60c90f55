"""What became of one signature of a module, and how a person reads it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from .translated import Say, english

_NAMED = 6  # the most functions that one line names


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
        """What a quality below exact led to, and how far off the first result was. Empty under "exact"."""
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
        ring, stay = megabytes(self.ring_bytes), megabytes(self.kept_bytes)
        through = say(" through {size} of its memory", size=ring) if self.ring_bytes else say(", one by one")
        kept = say("; {size} stay there for a sampling", size=stay) if self.kept_bytes else ""
        line = "    streams {size} of weights to the device at each call{through}{kept}"
        return [say(line, size=megabytes(self.streamed_bytes), through=through, kept=kept)]

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

    def detail_lines(self, on_gpu: bool) -> list[str]:
        """All that is known about it. Where this isn't ``on_gpu`` no kernel can be taken, and none is listed."""
        lines = [f"  {self.inputs}: {_counted(self.calls, 'call')}"]
        if self.eager_because:
            return [*lines, f"    eager: {self.eager_because}"]
        lines.append(
            f"    {self.nodes_before} operations became {self.nodes_after}; distance to eager {self.distance or 0:.1e}"
        )
        captured = f", captured {self.captures}x in {self.capture_s:.2f} s" if self.captures else ""
        lines.append(f"    traced in {self.trace_s:.2f} s, rewritten in {self.rewrite_s:.2f} s{captured}")
        fused = {name: count for name, count in self.passes.items() if count}
        lines.append("    rewrites: " + ", ".join(f"{name} {count}" for name, count in fused.items()))
        lines.append(
            "    impls: "
            + "; ".join(
                f"{op}: " + ", ".join(f"{impl} {n}" for impl, n in impls.items()) for op, impls in self.impls.items()
            )
        )
        lines += [*self.lossy_lines(), *self.live_lines(), *self.stream_lines()]
        if idle := [name for name, count in self.passes.items() if not count]:
            lines.append("    found nothing to do: " + ", ".join(idle))
        lines += (
            [f"    not taken, {reason}: {', '.join(names)}" for reason, names in self.refusals().items()]
            if on_gpu
            else []
        )
        if self.not_captured_because:
            lines.append(f"    no graph: {self.not_captured_because}")
        elif self.captures:
            lines.append(f"    graph: {megabytes(self.graph_bytes)}")
        return lines


def _listed(names: list[str], say: Say) -> str:
    """The names of functions, each once with its count, and the number of those that aren't named."""
    counted = Counter(names)
    most = [(say("{words}", words=name), count) for name, count in counted.most_common(_NAMED)]
    shown = ", ".join(f"{count}x {name}" if count > 1 else name for name, count in most)
    more = len(counted) - len(most)
    return say("{shown} and {more} more", shown=shown, more=more) if more > 0 else shown


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def megabytes(count: int) -> str:
    """A size to read."""
    return f"{count / 2**20:.0f} MB"
