"""Tables that libraries fill the first time they are used, which a recorded call would be seen to change.

Nothing here imports a library.
"""

from __future__ import annotations

import sys

import torch


def fill_memos() -> None:
    """Have them filled: einops' one of the kinds of tensors that it has met."""
    einops = sys.modules.get("einops._backends")
    if einops is None:
        return
    try:
        einops.get_backend(torch.empty(0))
    except Exception:  # another version's: the first call that it is used in runs as it was
        return
