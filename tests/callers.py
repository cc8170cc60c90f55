"""A compiled module, and what became of its calls."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from sfast_core import CompileConfig, CompiledModule, compile
from tests.models import UNet


def compiled(net: nn.Module | None = None, **config: Any) -> CompiledModule:
    return compile(net or UNet(), CompileConfig(**{"allow_cpu": True, **config}))


def own(handle: CompiledModule, *args: Any, **kwargs: Any) -> Any:
    """What the module's class computes."""
    return type(handle.module).forward(handle.module, *args, **kwargs)


def check(handle: CompiledModule, *args: Any, tolerance: float = 1e-5, **kwargs: Any) -> None:
    result = handle(*args, **kwargs)
    torch.testing.assert_close(result, own(handle, *args, **kwargs), rtol=10 * tolerance, atol=tolerance)


def calls(handle: CompiledModule) -> dict[str, int]:
    return dict(handle.engine.report.calls)
