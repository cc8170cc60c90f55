"""Rows of channels that several tokens share: a modulation for each frame, or one for a picture and one for what it is
made after.
"""

from __future__ import annotations

import torch


def of_each_token(rows: torch.Tensor, part: int, length: int) -> torch.Tensor:
    """The row of each token: of every ``part`` tokens one, and the last also of all that are left.

    Args:
        rows: [B, P, C].
        part: at least 1.
        length: the number of tokens, L.

    Returns:
        [B, L, C], where token t has row min(t // part, P - 1).
    """
    taken = (torch.arange(length, device=rows.device) // part).clamp(max=rows.shape[1] - 1)
    return rows[:, taken]


def broadcast(rows: torch.Tensor | None, part: int, length: int) -> torch.Tensor | None:
    """``rows`` such that they multiply [B, L, C]: as they are where all tokens of an image have one, or there are
    none.
    """
    return rows if rows is None or rows.shape[1] == 1 else of_each_token(rows, part, length)
