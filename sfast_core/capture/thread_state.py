"""What a thread's torch is set to around a call of ours, so that an interruption at any moment leaves nothing of ours
behind.

Each block puts back what it has changed. An exception that comes from outside (Ctrl-C) may hit the very code that does,
and then this does.
"""

from __future__ import annotations

import contextlib
import gc

import torch
from torch.autograd import grad_mode
from torch.utils._python_dispatch import _pop_mode

from .guards.given import is_ours
from .recorder import Recorder


class ThreadState:
    """Made before a call; :meth:`put_back` is for one that an exception has ended."""

    __slots__ = ("_autocast", "_collecting", "_dispatch_modes", "_function_modes", "_grad")

    def __init__(self) -> None:
        self._grad = torch.is_grad_enabled()
        self._autocast = [(kind, torch.is_autocast_enabled(kind)) for kind in ("cuda", "cpu")]
        self._collecting = gc.isenabled()
        self._function_modes = torch.overrides._get_current_function_mode_stack()
        self._dispatch_modes = torch._C._len_torch_dispatch_stack()

    def put_back(self, error: BaseException) -> None:
        """The modes on torch's stacks, gradients, autocast and the collector as they were before the call that
        ``error`` has ended.
        """
        _end_blocks(error)
        while torch._C._len_torch_function_stack():
            torch._C._pop_torch_function_stack()
        for mode in self._function_modes:  # one that was off for a moment may be missing
            torch._C._push_on_torch_function_stack(mode)
        while torch._C._len_torch_dispatch_stack() > self._dispatch_modes:
            _pop_mode()
        torch._C._set_grad_enabled(self._grad)
        for kind, enabled in self._autocast:
            torch.set_autocast_enabled(kind, enabled)
        if self._collecting:
            gc.enable()


def recording() -> bool:
    """Whether this thread is inside a recorded call."""
    return recorder_here() is not None


def recorder_here() -> Recorder | None:
    """The innermost recorder that is at work in this thread."""
    modes = reversed(torch.overrides._get_current_function_mode_stack())
    return next((mode for mode in modes if isinstance(mode, Recorder)), None)


def failed_here(error: Exception) -> bool:
    """Whether a recorded call may have failed with an error because it is recorded, so that it is made once more."""
    recorder = recorder_here()
    return raised_here(error) or (recorder is not None and id(error) == recorder.raised)


def raised_here(error: Exception) -> bool:
    """Whether code of this package raised an error, which no code of a module's or a host's did."""
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    return step is not None and is_ours(step.tb_frame.f_code.co_filename)


def _end_blocks(error: BaseException) -> None:
    """End the blocks whose own beginning or end was interrupted, generators and torch's: else they would end with the
    traceback.
    """
    step = error.__traceback__
    while step is not None:
        if any(step.tb_frame.f_globals is vars(module) for module in (contextlib, grad_mode)):
            with contextlib.suppress(RuntimeError):  # it is still running
                step.tb_frame.clear()
        step = step.tb_next
