"""How every Triton kernel here is launched: as ``kernel[grid](...)``, on its tensors' device, from several threads at
once and inside a capture under cudaMallocAsync.

Threads that launch one kernel for the first time together would each compile it (9 of SD1.5's 45 compilations were
such): the first compiles, the others wait.

Under cudaMallocAsync, memory that was allocated within the capture doesn't exist before the first replay. Triton's
launcher asks the driver whether a tensor's address is valid, is told that it isn't, and raises. It takes integers
unasked, so under that allocator the compiled kernel gets addresses instead of tensors.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable
from typing import Any

import torch

from ..target import probed


def launcher(kernel: Any, grid: tuple[int, ...]) -> Callable[..., Any]:
    """What ``kernel[grid]`` is: call it with the kernel's arguments. It runs on the device of the first tensor."""
    return functools.partial(_launch, kernel, grid)


def _launch(kernel: Any, grid: tuple[int, ...], *args: Any, **kwargs: Any) -> None:
    with torch.cuda.device_of(next(arg for arg in args if isinstance(arg, torch.Tensor))):
        if _asynchronous_allocator() and torch.cuda.is_current_stream_capturing():
            _launch_by_address(kernel, grid, *args, **kwargs)
        else:
            _compilations().launch(kernel, kernel[grid], *args, **kwargs)


def capacity(device: torch.device) -> tuple[int, int]:
    """Multiprocessors, and bytes of shared memory per block; few in Triton's interpreter, for several tiles each."""
    if device.type != "cuda":
        return 2, 232448
    target = probed(device)
    return target.sm_count, target.shared_memory_bytes


class _Compilations:
    """Which kernels are compiled, each by one thread."""

    def __init__(self) -> None:
        self._done: set[Hashable] = set()
        self._locks: dict[Hashable, threading.Lock] = {}

    def launch(self, kernel: Any, launch: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """``launch(*args, **kwargs)``, which may compile ``kernel``."""
        key = (id(kernel), *map(_kind, args), *kwargs.items())
        if key in self._done:
            launch(*args, **kwargs)
            return
        with self._locks.setdefault(key, threading.Lock()):
            launch(*args, **kwargs)
        self._done.add(key)


@functools.cache
def _compilations() -> _Compilations:
    return _Compilations()


def _kind(arg: Any) -> Any:
    """What a positional argument means for the compilation; constants are given by keyword."""
    return arg.dtype if isinstance(arg, torch.Tensor) else type(arg)


@functools.cache
def _asynchronous_allocator() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_allocator_backend() == "cudaMallocAsync"


def _launch_by_address(kernel: Any, grid: tuple[int, ...], *args: Any, **kwargs: Any) -> None:
    compiled = kernel.run(*args, grid=grid, warmup=True, **kwargs)  # from its cache: the warm-up has compiled it
    if hasattr(compiled, "result"):
        compiled = compiled.result()
    bound = {name: parameter.default for name, parameter in kernel.signature.parameters.items()}
    bound.update(zip(bound, args, strict=False))
    bound.update({name: value for name, value in kwargs.items() if name in bound})
    # Since Triton 3.3 the launcher takes constants too, marked so in the signature; before, they were left out of both.
    values = [bound[name] for name in bound if name in compiled.src.signature]
    compiled[(*grid, 1, 1)[:3]](*(value.data_ptr() if isinstance(value, torch.Tensor) else value for value in values))
