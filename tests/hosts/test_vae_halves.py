"""Which calls of an autoencoder's halves are accelerated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch

from sfast_core.hosts import vae


def _picture(dtype: torch.dtype, dims: int = 4, device: str = "cuda") -> Any:
    return SimpleNamespace(dim=lambda: dims, dtype=dtype, device=torch.device(device))


@pytest.mark.parametrize(
    ("dtype", "tf32", "refused"),
    [(torch.bfloat16, False, False), (torch.float32, True, False), (torch.float32, False, True)],
)
def test_float32_where_convolutions_may_round(dtype: torch.dtype, tf32: bool, refused: bool) -> None:
    with patch.object(vae, "convolutions_round", lambda: tf32), patch.object(vae.torch, "Tensor", SimpleNamespace):
        assert (vae._why_not((_picture(dtype),)) is not None) == refused
        assert vae._why_not((_picture(dtype, device="cpu"),)) is None
