"""Prepares, in a thread, what the first lowering of a process needs whatever the model, while that is loaded or runs.

Importing the kernels and their libraries, hashing Triton for the keys of its cache, starting its driver and making
cuDNN's first plan take a second in a new process (H100, caches filled), most of it without Python's lock.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from typing import Any

import torch

from ..native.driver import leave_captures_alone
from ..ops import all_ops
from ..runtime.compile_only import CompileOnly
from ..target import probe

log = logging.getLogger("fast_compile")


def prepare() -> None:
    """Start that, once per process; not before CUDA is in use: making a context is left to the host."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        _start(torch.device("cuda", torch.cuda.current_device()))


@functools.cache
def _start(device: torch.device) -> threading.Thread:
    # not a daemon thread: that might be ended in the middle of compiling
    thread = threading.Thread(target=_work, args=(device,), name="fast_compile_ahead")
    thread.start()
    return thread


def _work(device: torch.device) -> None:
    start = time.perf_counter()
    leave_captures_alone()
    target = probe(device)
    with torch.cuda.device(device), torch.no_grad(), CompileOnly():
        for op, impl, arguments in _first_launches(device):
            try:
                wanted = next(found for found in all_ops()[op].impls if found.name == impl)
                if wanted.why_not(target, *arguments) is None:
                    wanted.launch(*arguments)
            except Exception as error:
                log.debug("%s.%s, ahead: %s", op, impl, error)
    for each in all_ops().values():
        for found in each.impls:
            with contextlib.suppress(ImportError):
                found.load()
    log.debug("libraries ready in %.2f s", time.perf_counter() - start)


def _first_launches(device: torch.device) -> list[tuple[str, str, tuple[Any, ...]]]:
    """A small call of each library that is slow to start."""

    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.float16, device=device)

    convolution = (zeros(1, 16, 8, 8), zeros(16, 16, 3, 3), zeros(16), 1, 1)
    return [
        ("conv2d_act", "torch_epilogue", convolution),
        ("conv2d_act", "cudnn", convolution),
    ]
