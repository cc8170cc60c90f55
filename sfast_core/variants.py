"""The signatures of one module on one device: what each became, and which of them are kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

from .capture import Guard
from .graphed import GraphedProgram
from .report import ModuleReport, SignatureReport
from .runtime.thrashing import Tally


@dataclass(eq=False)
class Variant:
    """One signature: its program, or without one the ``reason`` why it runs eager. Either holds until the ``guard`` says that it doesn't."""

    report: SignatureReport
    layout: Hashable
    graphed: GraphedProgram | None = None
    reason: str = ""
    guard: Guard | None = None
    tally: Tally = field(default_factory=Tally)

    def release(self) -> None:
        """Release the graph, if there is one."""
        if self.graphed is not None:
            self.graphed.release()


class Variants:
    """Those used last, by key, with their lines in the module's report. Not thread-safe: its caller holds the device's lock.

    Whatever interrupts a change of it leaves it whole: a line too many goes with the next change.
    """

    def __init__(self, report: ModuleReport) -> None:
        self._report = report
        self._variants: OrderedDict[Hashable, Variant] = OrderedDict()
        self._lines: list[SignatureReport] = []  # those that were put into the report

    def take(self, key: Hashable) -> Variant | None:
        """The variant of this signature, which by that is the one that was used last, or None."""
        if key in self._variants:
            self._variants.move_to_end(key)
        return self._variants.get(key)

    def last(self, layout: Hashable) -> Hashable | None:
        """The key of the one with this layout that was used last, or None."""
        return next((key for key, variant in reversed(self._variants.items()) if variant.layout == layout), None)

    def full(self, at_most: int) -> bool:
        """Whether one more would make the oldest go."""
        return len(self._variants) >= at_most

    def add(self, key: Hashable, variant: Variant, at_most: int) -> None:
        """Keep one more, whose program is proved or whose reason is known, and let the oldest go where there would be more than ``at_most``."""
        self._lines.append(variant.report)
        self._report.signatures.append(variant.report)
        self._variants[key] = variant
        while len(self._variants) > at_most:
            self._variants.pop(next(iter(self._variants))).release()
        self._tidy()

    def remove(self, key: Hashable) -> None:
        """Forget this signature and release its graph."""
        self._variants.pop(key).release()
        self._tidy()

    def clear(self) -> None:
        """Forget all signatures and release their graphs."""
        self.release()
        self._variants.clear()
        self._tidy()

    def release(self) -> None:
        """Release all graphs."""
        for variant in self._variants.values():
            variant.release()

    def release_evicted(self) -> None:
        """Let go of the graphs that others have evicted."""
        for graphed in self.programs():
            graphed.release_evicted()

    def release_unreadable(self) -> None:
        """Release the graphs that would read memory of others."""
        for graphed in self.programs():
            if graphed.captured and not graphed.readable():
                graphed.release()

    def programs(self) -> list[GraphedProgram]:
        """The programs that there are."""
        return [variant.graphed for variant in list(self._variants.values()) if variant.graphed is not None]

    def _tidy(self) -> None:
        """Take the lines out of the report whose signatures are gone."""
        kept = {id(variant.report) for variant in self._variants.values()}
        gone = {id(line) for line in self._lines if id(line) not in kept}
        self._report.signatures[:] = [line for line in self._report.signatures if id(line) not in gone]
        self._lines = [line for line in self._lines if id(line) in kept]
