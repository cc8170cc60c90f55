"""Cuts calls along rows (a transformer's tokens, a picture's stripes): whether that pays, and the programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.fx import Graph

from ..capture import Trace, autocast_off, tensors_of
from ..config import CompileConfig
from ..programs.deployment import Deployment
from ..programs.entries import CacheEntry
from ..programs.proof import computed_in
from ..reporting.reporter import Reporter
from ..reporting.signature_report import SignatureReport
from ..runtime.any_store import Store
from ..runtime.program import Program
from ..sharding import Cut, Times, computes_in, cut, cut_in_stripes, has_images, prepared, row_counts, times
from .asked import Asked
from .links import Links
from .others import Others
from .part import OneDevice
from .plan import launching_on
from .ranks import FirstRank, Rank
from .retarget import copied, retargeted, why_not_retargetable
from .speeds import measured

LEAST_GAIN = 1.1  #: how many times as fast it must be by arithmetic, which doesn't count everything that takes time
_LENGTHS = 4  #: of the lengths that streams of tokens have, so many are tried, the longest first
_FEWEST_ROWS = 2  #: on each device
_MB = 2**20
_Way = Callable[[Sequence[int] | None], Cut]


class InRows:
    """Makes programs that compute whole calls of one module on several devices.

    Args:
        store: of the module's weights.
        others: what the module has on the other devices.
        lower: makes programs.
        reporter: the module's.
    """

    def __init__(self, store: Store, others: Others, lower: Callable[..., Program], reporter: Reporter) -> None:
        self._store, self._others, self._lower, self._reporter = store, others, lower, reporter
        self._links: dict[tuple[torch.device, ...], Links] = {}

    def made(
        self, asked: Asked, result: Any, least_gain: float, failed: Callable[[Exception], None]
    ) -> tuple[FirstRank, Any, str]:
        """A proved program for calls like this one, its result for this call, and how it is done in words.

        Args:
            asked: the call, which one device has computed.
            result: its result.
            least_gain: how many times as fast as one device it must be, by arithmetic.
            failed: is told why the program had to leave a call to one device.

        Raises:
            OneDevice: it can't be cut along rows, or that wouldn't pay.
            CaptureError: the devices' result isn't that of one.
        """
        entry: CacheEntry = asked.call.served
        where = asked.where
        trace, here = entry.spare, where[0]
        assert trace is not None and entry.graphed is not None, "kept for each entry where several devices are wanted"
        if reason := why_not_retargetable(trace, trace, here):
            raise OneDevice(reason)
        if len(tensors_of(result)) != sum(len(node.args[0]) for node in trace.graph.nodes if node.op == "output"):
            raise OneDevice("it leaves tensors behind besides its result, or returns one twice")
        links = self._links.get(tuple(where)) or self._links.setdefault(tuple(where), Links(where))
        graphs, expected = self._cut(copied(trace).graph, len(where), links, least_gain)
        places = [self._others.deployment(index, here, there) for index, there in enumerate(where)]
        reports = [SignatureReport(str(asked.call.signature), calls=1) for _ in where]
        own, *programs = [
            self._lowered(replace(trace, graph=graph), here, there, asked.config, report)
            for graph, there, report in zip(graphs.graphs, places, reports, strict=True)
        ]
        ranks = []
        for index, lowered in enumerate(programs, 1):
            knowing = self._others.replica(index, here, where[index]).found_valid
            ranks.append(Rank(index, knowing, lowered, trace.outputs, places[index], reports[index]))
        home = replace(places[0], reporter=self._reporter)
        program = FirstRank(ranks, links, entry.graphed, failed, own, trace.outputs, home, entry.report)
        with self._store.pinned(here):
            made = program.prove(asked.call.signature.tensors, result, computed_in(trace), asked.config.tolerance)
        return program, made, _words(graphs, expected, where)

    def _cut(self, graph: Graph, devices: int, links: Links, least_gain: float) -> tuple[Cut, Times]:
        """The graph cut in the fastest way: along tokens, by the length that the cut begins with, or into stripes."""
        prepared(graph)
        dtype = computes_in(graph)
        lengths = [length for length in row_counts(graph) if length >= _FEWEST_ROWS * devices][:_LENGTHS]
        ways: list[_Way] = [partial(cut, graph, devices, length) for length in lengths]
        if has_images(graph):
            ways.append(partial(cut_in_stripes, graph, devices))
        if not ways or dtype is None:
            raise OneDevice("it has no tokens to be divided")
        first = self._others.graphs_of(links.devices[0])
        speeds = measured(links, first.backend if first else None, dtype)
        tried = [(way, times(graph, way([0]), speeds)) for way in ways]
        best, expected = max(tried, key=lambda each: each[1].gain)
        if expected.gain < least_gain:
            unknown = best([0]).unknown
            names = ", ".join(sorted(unknown, key=lambda name: -unknown[name])[:3])
            why = f"cut along its tokens or its picture it would be {expected.gain:.2f} x as fast by arithmetic"
            raise OneDevice(why + (f": {names} can't be divided" if names else ""))
        return best(None), expected

    def _lowered(
        self, trace: Trace, here: torch.device, there: Deployment, config: CompileConfig, report: SignatureReport
    ) -> Program:
        """One device's program."""
        with launching_on(there.device), autocast_off():
            moved = retargeted(trace, here, there.device) if there.device != here else trace
            program = self._lower(moved, there, config, report)
        if program.cut is None:
            raise OneDevice("nothing of it is exchanged")
        return program


def _words(made: Cut, expected: Times, where: Sequence[torch.device]) -> str:
    count = f"{made.rows} {made.what} are divided among {len(where)}"
    exchanged = f"{len(made.gathers)} exchanges bring each {expected.exchanged_bytes / _MB:.0f} MB of the others"
    return f"{count} ({', '.join(map(str, where))}); {exchanged}; {expected.gain:.2f} x one by arithmetic"
