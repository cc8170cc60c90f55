"""What of the application's own means that a call runs as it was, in words that its users know."""

from __future__ import annotations

import torch


def obstacle(model: torch.nn.Module) -> str | None:
    """Why this model can't be accelerated now, or None."""
    return "the studio tiles this picture" if getattr(model, "tiled", False) else None
