"""Does a call leave tensors behind in its modules? A block that keeps its last result for the next step does, and a replay would not."""

from __future__ import annotations

import torch

from .weights import tensors_in

Kept = dict[tuple[str, str], torch.Tensor]


def kept_tensors(root: torch.nn.Module) -> Kept:
    """The tensors in attributes and buffers of ``root`` and of the modules below it, by path and name.

    Not what layers without children keep: hosts put the weights there that they have cast.
    """
    parents = ((path, module) for path, module in root.named_modules() if module._modules)
    return {(path, name): tensor for path, module in parents for name, tensor in tensors_in(module.__dict__, module._buffers)}


def replaced(before: Kept, after: Kept) -> str | None:
    """Which of them is another tensor than before, or new; None where none is."""
    return next((".".join(filter(None, place)) for place, tensor in after.items() if before.get(place) is not tensor), None)
