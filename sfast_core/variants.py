"""The signatures of one module: what each became, and which of them are kept."""

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
    reason: str = "its first call was interrupted"
    guard: Guard | None = None
    tally: Tally = field(default_factory=Tally)

    def release(self) -> None:
        """Release the graph, if there is one."""
        if self.graphed is not None:
            self.graphed.release()


class Variants:
    """Those used last, by key, with their lines in the module's report. Not thread-safe: its caller holds the device's lock."""

    def __init__(self, report: ModuleReport) -> None:
        self._report = report
        self._variants: OrderedDict[Hashable, Variant] = OrderedDict()

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
        """Keep one more, and let the oldest go where there would be more than ``at_most``."""
        self._variants[key] = variant
        self._report.signatures.append(variant.report)
        while len(self._variants) > at_most:
            self.remove(next(iter(self._variants)))

    def remove(self, key: Hashable) -> None:
        """Forget this signature and release its graph."""
        self._variants[key].release()
        self._report.signatures.remove(self._variants.pop(key).report)

    def clear(self) -> None:
        """Forget all signatures and release their graphs."""
        self.release()
        self._variants.clear()
        self._report.signatures.clear()

    def release(self) -> None:
        """Release all graphs."""
        for variant in self._variants.values():
            variant.release()

    def release_evicted(self) -> None:
        """Let go of the graphs that others have evicted."""
        for graphed in self.programs():
            graphed.release_evicted()

    def programs(self) -> list[GraphedProgram]:
        """The programs that there are."""
        return [variant.graphed for variant in self._variants.values() if variant.graphed is not None]
