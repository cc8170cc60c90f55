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
    """The compiled state of one module. It keeps no tensor of the module's, only places below it.

    Args:
        name: of the module, in the report.
        config: how it is compiled.
        leaf_scope: keeps a host's own layers whole while a call is recorded.
        store: of the module's weights; one of plain weights where None.
        host: who uses the report.
        graphs_of: a device's graphs.
        lower: makes a program of a recorded graph.

    Attributes:
        config: asked anew at each call.
        devices: what there is on each device that calls ran on.
        several: computes calls on several of them, where the settings want that.
        report: what became of the calls, for who uses ``host`` (:mod:`.reporting.reasons`).
        reporter: writes that report; a host may set its ``observer`` and its ``may_say``.
        store: of the weights; a host says to it when a sampling begins.
        taken_in: the functions of others that are recorded with the module's own code.
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
        self.report = ModuleReport(name, settings=config.settings(), host=host)
        self.reporter = Reporter(self.report)
        self._tracer = Tracer(leaf_scope)
        self.taken_in = self._tracer.taken_in
        self.store: Store = store or WeightStore()
        self.devices = Devices(self.report, self.store, graphs_of)
        self._sensitivity = Sensitivity()
        self.several = Several(config, self.store, self.devices, self.reporter, graphs_of, lower)
        renew_in_children(self)

    def __deepcopy__(self, memo: Any) -> None:
        """A copy of a module starts uncompiled."""
        return None

    def configure(self, config: CompileConfig | None, name: str | None = None) -> None:
        """Take another config, another name for the report; None leaves what there is.

        Under another config all is traced anew.
        """
        if name is not None:
            self.report.name = name
        if config is not None and config != self.config:
            self.restore()
            self.reset()
            self.config = config
            self.report.settings = config.settings()
            self.several.configure(config)

    def renew(self) -> None:
        """In a forked child: another thread may have been in the middle of a call."""
        self.devices.renew()
        self.store.renew()
        self.report.signatures.clear()

    def mentions(self, name: str) -> bool:
        """Whether code that ran in a recorded call mentions this name: it may look for an option of that name."""
        return name in self._tracer.words

    def run_eager(self, reason: str, eager: Callable[[], Any]) -> Any:
        """Run the forward as it was, and say why once."""
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
        self._tracer.forget()

    def release_graphs(self) -> None:
        """Release the graphs, keep the traces: a later call captures again."""
        self.several.release()
        self.devices.release_graphs()

    def forget_evicted(self) -> None:
        """Let go of graphs that others evicted, so that the report counts what is there.

        Waits for no call that is running.
        """
        for on in self.devices:
            on.release_evicted()

    def restore(self) -> None:
        """Give the module its weights back as they were laid out, and release the graphs that read them otherwise."""
        self.several.release()
        self.devices.restore()

    def lay_plain(self) -> None:
        """Let others find the weights with the strides that the module gave them, until the next call.

        Graphs stay as they are.
        """
        with self.store.lock:
            self.store.lay_plain()

    def _give_up(self, entry: CacheEntry, reason: str) -> None:
        entry.release()
        entry.reason = entry.report.eager_because = reason
        entry.graphed = entry.wide = None
        self.devices.restore_unless_used()
        self.reporter.gave_up(reason)
