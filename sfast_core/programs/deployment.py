"""Where the programs of one module run, and what they find there."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..reporting.reporter import Reporter
from ..runtime.any_store import Store
from ..runtime.backend import Backend
from ..runtime.graphs import DeviceGraphs


@dataclass(frozen=True)
class Deployment:
    """One module on one device.

    Attributes:
        device: the device.
        graphs: the device's graphs. None: nothing is captured there.
        store: lays out the module's weights.
        reporter: the module's, for what runs there.
    """

    device: torch.device
    graphs: DeviceGraphs | None
    store: Store
    reporter: Reporter

    @property
    def backend(self) -> Backend | None:
        """What captures graphs there."""
        return None if self.graphs is None else self.graphs.backend
