"""The devices that share calls: those that the user asked for, as far as the machine has them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

ALL = "all"
_AS_LARGE = 0.97  #: of the first device's memory: cards of one kind differ by what the driver takes


def devices_for(wanted: str | int | Sequence[str], home: torch.device) -> list[torch.device]:
    """The devices that share a model's calls, beginning with its own.

    Args:
        wanted: ``"all"`` for each GPU that is as new and as large as the model's own; a number for so many devices at
            most; or their names. The CPU may be named several times.
        home: the model's own device.
    """
    if wanted == ALL or isinstance(wanted, int):
        others = _alike(home) if home.type == "cuda" else []
        return [home, *(others if isinstance(wanted, str) else others[: wanted - 1])]
    named = [_with_index(torch.device(name)) for name in wanted]
    if home in named:
        named.remove(home)
    there = torch.cuda.device_count()
    return [
        home,
        *(device for device in named if device.type == home.type and (device.type != "cuda" or device.index < there)),
    ]


def _with_index(device: torch.device) -> torch.device:
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device


def _alike(home: torch.device) -> list[torch.device]:
    """The other GPUs that are as large as this one, and no older."""
    own = torch.cuda.get_device_properties(home)
    found = []
    for index in range(torch.cuda.device_count()):
        each = torch.cuda.get_device_properties(index)
        as_new = (each.major, each.minor) >= (own.major, own.minor)
        if index != home.index and as_new and each.total_memory >= _AS_LARGE * own.total_memory:
            found.append(torch.device("cuda", index))
    return found
