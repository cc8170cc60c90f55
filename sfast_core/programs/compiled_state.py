"""What is kept of one compiled module between its calls, and how it is given back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..capture import Tracer
from ..capture.record import LeafScope
from ..config import CompileConfig
from ..machine.forks import renew_in_children
from ..quality.sensitivity import Sensitivity
from ..reporting.report import ModuleReport
from ..reporting.reporter import Reporter
from ..runtime.any_store import Store
from ..runtime.graphs import DeviceGraphs
from ..runtime.store import WeightStore
from ..several import OfPart, Several
from .entries import CacheEntry
from .on_device import Devices


class CompiledState:
    """The compiled state of one module. It holds none of the module's tensors, only where they are found.

    Args:
        name: of the module, for the report.
        config: how it is compiled.
        leaf_scope: a context that lets a host's own layers be recorded as a whole.
        store: of the module's weights. None: an ordinary one.
        host: the application whose users read the report (:mod:`.reporting.reasons`).
        graphs_of: gives a device's graphs.
        lower: see below.

    Attributes:
        config: read at each call.
        devices: the state on each device that the module was called on.
        several: computes calls on several devices, where the settings want that.
        report: what became of the calls.
        reporter: writes the report; a host may set its ``observer`` and its ``may_say``.
        store: of the weights; a host tells it when a sampling begins.
        tracer: records calls.
        taken_in: the other people's functions that are recorded with the module's own code.
        sensitivity: what rounding each layer to 8 bits does to the result, where the config allows that.
        lower: makes a program of a recorded graph.
        interruptions: the exceptions by which a host stops a call. They always reach the host, and never count as a
            failure of the call.
    """

    def __init__(
        self,
        name: str,
        config: CompileConfig,
        leaf_scope: LeafScope | None,
        store: Store | None,
        host: str,
        graphs_of: Callable[[torch.device], DeviceGraphs | None],
        lower: Callable[..., Any],
    ) -> None:
        self.config = config
        self.lower = lower
        self.interruptions: tuple[type[BaseException], ...] = ()
        self.report = ModuleReport(name, settings=config.settings(), host=host)
        self.reporter = Reporter(self.report)
        self.tracer = Tracer(leaf_scope)
        self.taken_in = self.tracer.taken_in
        self.store: Store = store or WeightStore()
        self.devices = Devices(self.report, self.store, graphs_of)
        self.sensitivity = Sensitivity()
        self.several = Several(config, self.store, self.devices, self.reporter, graphs_of, lower)
        renew_in_children(self)

    def __deepcopy__(self, memo: Any) -> None:
        """A copy of a module starts uncompiled."""
        return None

    def configure(self, config: CompileConfig | None, name: str | None = None) -> None:
        """Change the config or the name in the report; None leaves it. Another config means that all is traced anew."""
        if name is not None:
            self.report.name = name
        if config is not None and config != self.config:
            self.restore()
            self.reset()
            self.config = config
            self.report.settings = config.settings()
            self.several.configure(config)

    def renew(self) -> None:
        """Start empty in a forked child process, where another thread's half-finished call will never end."""
        self.devices.renew()
        self.store.renew()
        self.report.signatures.clear()

    def mentions(self, name: str) -> bool:
        """Whether code that ran in a recorded call mentions this name, and so may read an option of that name."""
        return name in self.tracer.words

    def run_eager(self, reason: str, eager: Callable[[], Any]) -> Any:
        """Run the original forward, and log the reason once."""
        if isinstance(eager, OfPart):
            eager.refuse(reason)
        self.reporter.ran_eager(reason)
        with self.store.plain():
            return eager()

    @property
    def graphs(self) -> DeviceGraphs | None:
        """The graphs of the CUDA device that the last call ran on."""
        return self.devices.last.graphs if self.devices.last is not None else None

    @property
    def device(self) -> torch.device:
        """The device of the last call."""
        return self.devices.last.device if self.devices.last is not None else torch.device("cpu")

    def reset(self) -> None:
        """Forget all signatures and release their graphs. The next call traces again."""
        self.several.reset()
        self.devices.reset()
        self.tracer.forget()

    def release_graphs(self) -> None:
        """Release the graphs, keep the traces: a later call captures again."""
        self.several.release()
        self.devices.release_graphs()

    def forget_evicted(self) -> None:
        """Forget graphs that somebody else has evicted, so that the report is right. It waits for no running call."""
        for on in self.devices:
            on.release_evicted()

    def restore(self) -> None:
        """Release the graphs, and give the module its weights back in their own layout."""
        self.several.release()
        self.devices.restore()

    def lay_plain(self) -> None:
        """Give the weights the strides that the module gave them, until the next call. Graphs stay."""
        with self.store.lock:
            self.store.lay_plain()

    def give_up(self, entry: CacheEntry, reason: str) -> None:
        """Let calls of the entry's signature run as they were, from now on."""
        entry.release()
        entry.reason = entry.report.eager_because = reason
        entry.graphed = entry.wide = None
        self.devices.restore_unless_used()
        self.reporter.gave_up(reason)
