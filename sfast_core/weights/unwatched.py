"""Works on weights in the middle of a call without anybody who watches torch's functions seeing it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes


@contextmanager
def unwatched() -> Iterator[None]:
    """A context in which no mode, no ``torch.func`` transform and no tracer sees this thread's torch functions.

    Else a weight whose strides are changed would be lifted into the transform, put on a fake device, or become a step
    of a trace.
    """
    tracing = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)
    try:
        with (
            _disable_current_modes(),
            torch._C.DisableTorchFunction(),
            torch._C._DisableFuncTorch(),
            forward_ad._set_fwd_grad_enabled(False),
        ):
            yield
    finally:
        torch._C._set_tracing_state(tracing)
