"""One call that several devices may compute, with everything that decides how it is shared out."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ..capture import Call
from ..config import CompileConfig

Compute = Callable[[Call, torch.device], Any]


class About(NamedTuple):
    """What may be kept of a call when it is over: neither its tensors nor the module.

    Attributes:
        key: of its signature.
        words: the signature as text, for the report.
        batch: the number of images.
        home: the module's device.
    """

    key: Hashable
    words: str
    batch: int
    home: torch.device


@dataclass(frozen=True)
class Asked:
    """A call that several devices may compute.

    Attributes:
        call: the call, with its signature.
        batch: the number of images.
        where: the devices; the first is the module's.
        compute: computes a call on one device.
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
        """What may be kept of the call."""
        return About(self.call.signature.key, str(self.call.signature), self.batch, self.where[0])
