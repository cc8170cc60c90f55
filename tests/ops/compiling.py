"""Compiles the Triton kernels of some ops for a GPU that need not be there, and prints which failed, which take more
shared memory than it has, and how many launches there were.

``python -m tests.ops.compiling GPU OP ...``, in a process without Triton's interpreter, which takes what the compiler
refuses. Launches compile and run nothing; what an impl makes of a kernel's results is of no use.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
from typing import Any

import torch

from sfast_core.target import Target
from tests import targets

GPUS = {"H100": targets.H100, "RTX 4090": targets.RTX_4090}


class Driver:
    """In the place of Triton's driver, as far as compiling asks for one."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        major, minor = self._target.capability
        return GPUTarget("cuda", 10 * major + minor, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def prepare(target: Target) -> None:
    """Let every launch of this process compile for a GPU, and raise where that lacks the memory, as Triton does."""
    os.environ.pop("TRITON_INTERPRET", None)
    import triton
    from triton.runtime.errors import OutOfResources

    from sfast_core.ops import triton_launch

    def compile_only(kernel: Any, grid: Any, *args: Any, **constants: Any) -> None:
        compiled = kernel.warmup(*args, grid=grid, **constants)
        compiled = compiled.result() if hasattr(compiled, "result") else compiled
        if compiled.metadata.shared > target.shared_memory_bytes:
            raise OutOfResources(compiled.metadata.shared, target.shared_memory_bytes, "shared memory")

    triton.runtime.driver.set_active(Driver(target))
    triton_launch.launcher = lambda kernel, grid: functools.partial(compile_only, kernel, grid)
    triton_launch.capacity = lambda device: (target.sm_count, target.shared_memory_bytes)


def failures(name: str, target: Target) -> tuple[list[str], int]:
    """What failed of an op's impls, each at its first case and its first of real size, and how many launches were tried.

    A compilation takes half a second, and what the compiler refuses it nearly always refuses in all; tiles are chosen by
    sizes.
    """
    from sfast_core.ops import all_ops

    failed, tried = [], 0
    file = importlib.import_module(f"tests.ops.cases.{name}")
    for impl in [each for each in all_ops()[name].impls if each.name.startswith("triton")]:
        for cases in (file.CASES, getattr(file, "GPU_CASES", ())):
            for case in cases:
                args, kwargs = case.make(torch.float16, torch.device("meta"))
                if impl.why_not(target, *args, **kwargs):
                    continue
                tried += 1
                try:
                    impl.launch(*args, **kwargs)
                except Exception as error:
                    failed.append(
                        f"{name}.{impl.name}, {case.id}: {type(error).__name__}: {error.__cause__ or error}"[:2000]
                    )
                break
    return failed, tried


if __name__ == "__main__":
    gpu, names = GPUS[sys.argv[1]], sys.argv[2:]
    prepare(gpu)
    found = [failures(name, gpu) for name in names]
    print(
        json.dumps(
            {"failed": [each for failed, _ in found for each in failed], "tried": sum(tried for _, tried in found)}
        )
    )
