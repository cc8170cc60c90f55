"""Which calls can be compiled at all, by what is known before they run."""

from __future__ import annotations

import torch

from .errors import CaptureError, GradientsRecorded


def device_of(module: torch.nn.Module, tensors: list[torch.Tensor], cpu_allowed: bool) -> torch.device:
    """The device that a call runs on.

    Args:
        module: whose forward is called.
        tensors: the call's signature's.
        cpu_allowed: a CPU will do, which it doesn't else.

    Raises:
        GradientsRecorded: the result would require grad. Tensors that are no parameters may bring that too: a recorded call's result tells.
        CaptureError: this call is not one to compile.
    """
    if not tensors:
        raise CaptureError("there is no tensor among the arguments")
    device = next((tensor.device for tensor in tensors if tensor.device.type == "cuda"), tensors[0].device)
    if device.type != "cuda" and not (device.type == "cpu" and cpu_allowed):
        raise CaptureError(f"the inputs are on {device.type}, which isn't a CUDA device")
    if any(tensor.numel() == 0 for tensor in tensors):
        raise CaptureError("an input is empty")
    if torch.is_grad_enabled() and (any(t.requires_grad for t in tensors) or any(p.requires_grad for p in module.parameters())):
        raise GradientsRecorded
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise CaptureError("the caller is capturing a CUDA graph of its own")
    return device
