"""How far one result is from another."""

from __future__ import annotations

import torch


def distance(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    """The relative L2 distance: ``||mine - theirs|| / ||theirs||``."""
    return float((mine - theirs).norm() / theirs.norm())
