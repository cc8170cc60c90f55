"""What is asked of several devices: one call, with all that decides how it is cut."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ..capture import Call
from ..config import CompileConfig

Compute = Callable[[Call, torch.device], Any]


class About(NamedTuple):
    """What is kept of a call: neither its tensors nor the module.

    Attributes:
        key: of its signature.
        words: the signature, for the report.
        batch: how many images it is of.
        home: where the module is.
    """

    key: Hashable
    words: str
    batch: int
    home: torch.device


@dataclass(frozen=True)
class Asked:
    """A signed call that several devices may compute.

    Attributes:
        call: it.
        batch: how many images it is of.
        where: the devices; the module is on the first.
        compute: computes a signed call on one device.
        config: the settings.
        interruptions: the exceptions by which a host stops a call.
    """

    call: Call
    batch: int
    where: Sequence[torch.device]
    compute: Compute
    config: CompileConfig
    interruptions: tuple[type[BaseException], ...]

    @property
    def about(self) -> About:
        """What may be kept of it."""
        return About(self.call.signature.key, str(self.call.signature), self.batch, self.where[0])
