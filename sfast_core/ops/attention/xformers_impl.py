"""Attention by xformers, where the user has it and its operators load."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any

import torch

from ...target import Target
from ..spec import Arguments
from .constraints import why_not_alike


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why xformers can't compute this, or None."""
    if reason := why_not_alike(call):
        return reason
    if call.q.numel() == 0:
        return "q is empty"
    if importlib.util.find_spec("xformers") is None:
        return "needs xformers"
    return _why_broken(target.device, call.q.dtype, call.q.shape[3])


@functools.cache
def _xformers() -> Any:
    """Its operators. Imported here, as it raises more than ImportError where it is built for another PyTorch."""
    return importlib.import_module("xformers.ops")


@functools.cache
def _why_broken(device: torch.device, dtype: torch.dtype, head: int) -> str | None:
    """What came of running it once: built for another PyTorch it imports with a warning and fails when called."""
    try:
        with torch.cuda.device(device):
            x = torch.ones(1, 64, 1, head, dtype=dtype, device=device)
            _xformers().memory_efficient_attention(x, x, x)
            torch.cuda.synchronize(device)
    except Exception as error:  # noqa: BLE001 (whatever it raises is the reason)
        return f"does not run here: {(str(error).strip() or type(error).__name__).splitlines()[0][:120]}"
    return None


def launch(q, k, v, mask=None, is_causal=False, scale=None) -> torch.Tensor:
    """As :func:`.reference.attention`, without mask."""
    out: torch.Tensor = _xformers().memory_efficient_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), scale=scale
    )
    return out.contiguous().transpose(1, 2)
