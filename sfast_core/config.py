"""What a user may choose. Every field has a default that needs no thought, and every default is exact."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Any

CPU_SWITCH = "FAST_COMPILE_CPU"


@dataclass(frozen=True)
class CompileConfig:
    """How a module is compiled. Equal configs compile equally, so a config may be part of a cache key.

    Raises:
        ValueError: a field is out of its range; the message names the field, what came and what is needed.
    """

    cuda_graphs: bool = True
    """Replay captured CUDA graphs. Off: the fused kernels are launched one by one, which uses less memory and more CPU."""

    capture_after: int = 2
    """The call of one signature at which its graph is captured, 2 or more: the first call traces."""

    graph_budget_bytes: int | None = None
    """The most GPU memory that captured graphs may hold. None: at each capture, what they hold and a third of what is free."""

    stream_budget_bytes: int | None = None
    """The most GPU memory for weights on their way from main memory, where a part of the model isn't on the GPU. None: a quarter of what is
    free, at most 2 GiB. What one layer reads, twice, is taken in any case."""

    max_signatures: int = 64
    """How many input signatures are kept per module; the least recently used one goes first."""

    disabled_passes: tuple[str, ...] = ()
    """Names of rewrites to leave out, as the report lists them."""

    disabled_impls: tuple[str, ...] = ()
    """Names of impls to leave out, as ``op.impl``, ``op.*`` or ``*.impl``."""

    adopt_weights: bool = True
    """Let packed and channels_last storage become the storage of the module's own parameters (their values never change).
    Off: weights stay untouched, and the rewrites that need packed weights are left out."""

    measure: bool = True
    """Time the impls of an op on its shape once and keep the choice on disk. Off: take the first that applies."""

    tolerance: float | None = None
    """Largest relative L2 distance to eager at which a new trace is trusted. None: 2e-2 in float16, 8e-2 in bfloat16, 1e-3 else."""

    allow_cpu: bool | None = None
    """Trace and rewrite on a CPU too, with the reference impls: for tests, not faster. None: ask the environment's FAST_COMPILE_CPU."""

    def __post_init__(self) -> None:
        if self.capture_after < 2:
            raise ValueError(f"CompileConfig.capture_after: got {self.capture_after}, needs 2 or more (the first call traces)")
        if self.max_signatures < 1:
            raise ValueError(f"CompileConfig.max_signatures: got {self.max_signatures}, needs 1 or more")
        if self.graph_budget_bytes is not None and self.graph_budget_bytes < 0:
            raise ValueError(f"CompileConfig.graph_budget_bytes: got {self.graph_budget_bytes}, needs 0 or more, or None")
        if self.stream_budget_bytes is not None and self.stream_budget_bytes < 0:
            raise ValueError(f"CompileConfig.stream_budget_bytes: got {self.stream_budget_bytes}, needs 0 or more, or None")
        for name in ("disabled_passes", "disabled_impls"):
            if isinstance(getattr(self, name), str):
                raise ValueError(f"CompileConfig.{name}: got one string, needs a tuple of names")
            object.__setattr__(self, name, tuple(getattr(self, name)))

    def cpu_allowed(self) -> bool:
        """Whether a module on a CPU is traced rather than run as it is."""
        return os.environ.get(CPU_SWITCH, "") not in ("", "0") if self.allow_cpu is None else self.allow_cpu

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of all fields."""
        return tuple(field.name for field in fields(cls))

    def settings(self) -> dict[str, Any]:
        """Each setting by its name, for a report."""
        return {key: getattr(self, key) for key in self.names()}
