"""The least time of a computation: its products, convolutions and attention at the rates that large ones sustain."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

_SIDE = 8192
_HEADS, _TOKENS, _HEAD = 24, 8192, 128
_SECONDS = 0.5  #: a GPU's power limit shows after tenths of a second


@dataclass(frozen=True)
class Work:
    """Operations, two for each multiplication and addition: of products and convolutions, and of attention."""

    products: float
    attention: float


@dataclass(frozen=True)
class Rates:
    """Operations a second."""

    products: float
    attention: float

    def floor_ms(self, work: Work) -> float:
        """What ``work`` takes at least."""
        return (work.products / self.products + work.attention / self.attention) * 1e3


def work_of(run: Callable[[], Any]) -> Work:
    """What ``run`` computes, run once."""
    with _Attention() as attention, FlopCounterMode(display=False) as counter:
        run()
    counts = counter.get_flop_counts().get("Global", {})
    return Work(
        sum(count for operator, count in counts.items() if "attention" not in str(operator)), attention.operations
    )


class _Attention(TorchFunctionMode):
    """Counts attention where it is called: of the operators behind it some are in no table."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0.0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            query, key, value = (*args, *(kwargs or {}).values())[:3]
            self.operations += 2 * query.shape[:-1].numel() * key.shape[-2] * (query.shape[-1] + value.shape[-1])
        return func(*args, **(kwargs or {}))


def rates(device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Rates:
    """What a large product and cuDNN's attention sustain on this device, now."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    a, b = (torch.randn(_SIDE, _SIDE, device=device, dtype=dtype) for _ in range(2))
    q, k, v = (torch.randn(1, _HEADS, _TOKENS, _HEAD, device=device, dtype=dtype) for _ in range(3))
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):
        attention = _a_second(lambda: F.scaled_dot_product_attention(q, k, v))
    return Rates(2 * _SIDE**3 * _a_second(lambda: a @ b), 4 * _HEADS * _TOKENS**2 * _HEAD * attention)


def _a_second(run: Callable[[], Any]) -> float:
    """How often ``run`` runs in a second, once the GPU is as warm as it gets."""
    for timed in (False, True):
        torch.cuda.synchronize()
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < _SECONDS:
            for _ in range(8):
                run()
            torch.cuda.synchronize()
            count += 8
        if timed:
            return count / (time.perf_counter() - start)
    raise AssertionError
