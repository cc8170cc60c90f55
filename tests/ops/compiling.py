"""Compiles the Triton kernels of some ops for an H100, on any machine, and prints which failed and how many there were.

``python -m tests.ops.compiling OP ...``, in a process without Triton's interpreter, which takes what the compiler
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


class Driver:
    """In the place of Triton's driver, as far as compiling asks for one."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def prepare() -> None:
    """Let every launch of this process compile for an H100."""
    os.environ.pop("TRITON_INTERPRET", None)
    import triton

    from sfast_core.ops import triton_launch

    triton.runtime.driver.set_active(Driver())
    triton_launch.launcher = lambda kernel, grid: functools.partial(kernel.warmup, grid=grid)


def failures(name: str) -> tuple[list[str], int]:
    """What failed of an op's impls, each at its first case, and how many launches were tried.

    A compilation takes half a second, and what the compiler refuses it nearly always refuses in all.
    """
    from sfast_core.ops import all_ops
    from tests.ops.test_ops import map_tensors, on_meta
    from tests.targets import H100

    failed, tried = [], 0
    cases = importlib.import_module(f"tests.ops.cases.{name}").CASES
    for impl in [each for each in all_ops()[name].impls if each.name.startswith("triton")]:
        for case in cases:
            args, kwargs = case.make(torch.float16, torch.device("cpu"))
            if case.slow or impl.why_not(H100, *map_tensors(args, on_meta), **map_tensors(kwargs, on_meta)):
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
    prepare()
    found = [failures(name) for name in sys.argv[1:]]
    print(
        json.dumps(
            {"failed": [each for failed, _ in found for each in failed], "tried": sum(tried for _, tried in found)}
        )
    )
