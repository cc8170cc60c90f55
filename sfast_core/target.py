"""What the machine at hand can run: the facts that an impl's ``why_not`` may ask for.

It knows neither ops nor passes. Nothing is probed at import; :func:`probe` asks and returns a value, :func:`probed`
asks once.
"""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import dataclass

import torch

from .machine.numerics import Numerics


@dataclass(frozen=True)
class Target:
    """One device as the impls see it. Two equal targets run the same kernels with the same choices."""

    device: torch.device
    name: str = "cpu"
    capability: tuple[int, int] = (0, 0)  #: CUDA compute capability, (0, 0) without CUDA
    sm_count: int = 1
    shared_memory_bytes: int = 0  #: the most shared memory one block may opt in to
    triton: bool = False  #: triton can be imported and the device is one it compiles for
    numerics: Numerics = Numerics()  #: what PyTorch's settings allow; no part of :meth:`key`

    @property
    def is_cuda(self) -> bool:
        """Whether kernels can run on this device at all."""
        return self.device.type == "cuda"

    def key(self) -> str:
        """The part of a cache key that speaks of the hardware."""
        return f"{self.name} sm_{self.capability[0]}{self.capability[1]} x{self.sm_count}"


def probe(device: torch.device) -> Target:
    """Describe ``device`` (the current CUDA device when it has no index)."""
    if device.type != "cuda":
        return Target(device)
    index = torch.cuda.current_device() if device.index is None else device.index
    properties = torch.cuda.get_device_properties(index)
    return Target(
        device=torch.device("cuda", index),
        name=properties.name,
        capability=(properties.major, properties.minor),
        sm_count=properties.multi_processor_count,
        shared_memory_bytes=int(getattr(properties, "shared_memory_per_block_optin", 48 * 1024)),
        triton=torch.version.hip is None and importlib.util.find_spec("triton") is not None,
    )


@functools.cache
def probed(device: torch.device) -> Target:
    """As :func:`probe`, asked once for each device: a launch has no time for it."""
    return probe(device)
