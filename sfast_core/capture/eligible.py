"""Which calls can be compiled at all, by what is known before they run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

from ..reporting.reason import Reason
from ..reporting.reasons.calls import (
    COMPILED_AROUND,
    EMPTY,
    FORWARD_MODE,
    JIT_TRACE,
    NO_GPU,
    NO_TENSOR,
    OWN_GRAPH,
    TRANSFORM,
)
from .errors import CaptureError, GradientsRecorded
from .torch_state import watched_by


def what_watches() -> Reason | None:
    """What else than the caller waits for the operators of a call that comes now, in words, or None: a replay calls
    none of them.

    Asked at every call, in 2 us. That Dynamo is tracing, :func:`torch.compiler.is_compiling` says, and has to be asked
    by code that Dynamo can trace itself.
    """
    if torch._C._get_tracing_state() is not None:
        return JIT_TRACE()
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return TRANSFORM()
    if forward_ad._current_level >= 0:
        return FORWARD_MODE()
    if torch._C._len_torch_dispatch_stack():
        return watched_by(torch._C._get_dispatch_stack_at(torch._C._len_torch_dispatch_stack() - 1))
    for index in range(torch._C._len_torch_function_stack()):
        mode = torch._C._get_function_stack_at(index)
        if not isinstance(mode, DeviceContext):  # of torch.set_default_device
            return watched_by(mode)
    return COMPILED_AROUND() if _dynamo_is_on() else None


def _dynamo_is_on() -> bool:
    """Whether Dynamo would compile the functions that are called now: it left out the one that called us, and would not
    get through ours.
    """
    dynamo: Any = sys.modules.get("torch._C._dynamo.eval_frame")
    callback = getattr(dynamo, "get_eval_frame_callback", bool)()
    return callback is not None and not isinstance(callback, bool)


def device_of(module: torch.nn.Module, tensors: list[torch.Tensor], cpu_allowed: Callable[[], bool]) -> torch.device:
    """The device that a call runs on.

    Args:
        module: whose forward is called.
        tensors: the call's signature's.
        cpu_allowed: whether a CPU will do.

    Raises:
        GradientsRecorded: the result would require grad. Tensors that are no parameters may bring that too: a recorded
        call's result tells.
        CaptureError: this call is not one to compile.
    """
    if not tensors:
        raise CaptureError(NO_TENSOR())
    device = next((tensor.device for tensor in tensors if tensor.device.type == "cuda"), tensors[0].device)
    if device.type != "cuda" and not (device.type == "cpu" and cpu_allowed()):
        raise CaptureError(NO_GPU(device=device.type))
    if any(tensor.numel() == 0 for tensor in tensors):
        raise CaptureError(EMPTY())
    if torch.is_grad_enabled() and (
        any(t.requires_grad for t in tensors) or any(p.requires_grad for p in module.parameters())
    ):
        raise GradientsRecorded
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise CaptureError(OWN_GRAPH())
    return device
