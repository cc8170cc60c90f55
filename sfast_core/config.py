"""The settings of a compiled module. Every field has a default that suits most users, and no default is lossy."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from .quality.levels import EXACT, FAST, PARTS, QUALITIES

CPU_SWITCH = "FAST_COMPILE_CPU"


@dataclass(frozen=True)
class CompileConfig:
    """How a module is compiled.

    A config can't be changed (:meth:`replace` makes another one), and equal configs compile alike, so one may be part
    of a cache key.

    Attributes:
        cuda_graphs: capture the fused program into a CUDA graph and replay that. False: its kernels are launched one by
            one, which needs less memory and more of the CPU's time.
        capture_after: the number of the call of a signature that captures its graph, 2 or more: the first call traces.
        graph_budget_bytes: the most GPU memory that captured graphs may hold. None: at each capture, what graphs hold
            already and a third of what is free.
        graph_pixels: the largest input, in pixels of all its images and frames together, for which a graph is captured;
            larger ones run their kernels one by one. The first image or video among a call's inputs counts. None: no
            limit.
        stream_budget_bytes: the most GPU memory for weights that are copied from main memory during a call, where a
            part of the model isn't on the GPU. None: a quarter of what is free, at most 2 GiB. Twice the weights of the
            largest layer is the least that is taken.
        max_signatures: how many input signatures are kept per module, 1 or more; the least recently used one is dropped
            first.
        disabled_passes: names of rewrites to leave out, as the report lists them.
        disabled_impls: names of kernels to leave out, as ``op.impl``, ``op.*`` or ``*.impl``.
        adopt_weights: let the module's parameters be views of packed and channels_last memory, so that weights are held
            once; their values never change. False: weights stay as they are, and the rewrites that need packed weights
            are left out.
        measure: time the kernels of an op on its shape once and keep the choice on disk. False: take the first that
            applies.
        tolerance: the largest relative L2 distance to eager at which a new trace is trusted, 0 or more. None: 2e-2 in
            float16, 8e-2 in bfloat16, 1e-2 in float32 where TF32 is allowed, and 1e-3 otherwise.
        allow_cpu: trace and rewrite on a CPU too, where there are no kernels and nothing gets faster: for tests. None:
            as the environment variable FAST_COMPILE_CPU says.
        quality: "exact" changes nothing but rounding. "near-exact" computes layers in 8 bits as long as the result
            stays within a budget, measured on this model and its inputs; "fast" does the same within a larger one
            (docs/quality.md).
        quality_parts: which of the things that ``quality`` allows are used: "products" (layers in 8 bits),
            "fp16_accumulation", "reuse" (a step reuses what an earlier one computed in the model's deep layers). None:
            all but "reuse", which has to be named.
        quality_layers: patterns of the names of layers that may compute in 8 bits; ``*`` stands for anything, and a
            ``!`` in front excludes what it matches. Empty: all layers may.
        quality_budget: the largest relative L2 distance of a result to the exact one, more than 0. None: 1e-2 for
            near-exact and 3e-2 for fast, twice that in bfloat16; 0.1 for a step that reuses another's deep layers.
        devices: the GPUs that may share the computation of one call: "all" (those that are as large and as new as the
            module's own), how many in all, or their names besides the module's own. None: the module's own alone
            (docs/several-gpus.md).

    Raises:
        ValueError: a field is of another type, out of its range or names what doesn't exist; the message names the
            field, what came and what is needed.
    """

    cuda_graphs: bool = True
    capture_after: int = 2
    graph_budget_bytes: int | None = None
    graph_pixels: int | None = None
    stream_budget_bytes: int | None = None
    max_signatures: int = 64
    disabled_passes: tuple[str, ...] = ()
    disabled_impls: tuple[str, ...] = ()
    adopt_weights: bool = True
    measure: bool = True
    tolerance: float | None = None
    allow_cpu: bool | None = None
    quality: str = EXACT
    quality_parts: tuple[str, ...] | None = None
    quality_layers: tuple[str, ...] = ()
    quality_budget: float | None = None
    devices: str | int | tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("cuda_graphs", "adopt_weights", "measure"):
            self._check(name, isinstance(getattr(self, name), bool), "True or False")
        self._check("allow_cpu", self.allow_cpu is None or isinstance(self.allow_cpu, bool), "True, False or None")
        self._check("capture_after", _is_whole(self.capture_after, 2), "2 or more (the first call traces)")
        self._check("max_signatures", _is_whole(self.max_signatures, 1), "1 or more")
        for name in ("graph_budget_bytes", "graph_pixels", "stream_budget_bytes"):
            most = getattr(self, name)
            self._check(name, most is None or _is_whole(most, 0), "0 or more, or None")
        self._check("tolerance", self.tolerance is None or _is_distance(self.tolerance), "0 or more, or None")
        self._check("quality", self.quality in QUALITIES, f"one of {', '.join(QUALITIES)}")
        budget = self.quality_budget
        self._check("quality_budget", budget is None or (_is_distance(budget) and budget > 0), "more than 0, or None")
        for name in ("disabled_passes", "disabled_impls", "quality_layers", "quality_parts"):
            given: Any = getattr(self, name)
            if given is None and name == "quality_parts":
                continue
            names = isinstance(given, (tuple, list, set, frozenset)) and all(isinstance(each, str) for each in given)
            self._check(name, names, "a tuple of names")
            object.__setattr__(self, name, tuple(given if isinstance(given, (tuple, list)) else sorted(given)))
        self._check(
            "quality_parts",
            set(self.quality_parts or ()) <= set(PARTS[FAST]),
            f"names of {', '.join(PARTS[FAST])}, or None",
        )
        self._check_names()
        self._check_devices()

    def _check_devices(self) -> None:
        """One name stands for a list of one. Names are kept as PyTorch spells them."""
        given: Any = self.devices
        if given is None or given == "all" or _is_whole(given, 1):
            return
        listed = [given] if isinstance(given, (str, torch.device)) else given
        try:
            named = tuple(str(torch.device(each)) for each in listed)
        except (RuntimeError, TypeError):
            named = ()
        self._check("devices", bool(named), '"all", a number of GPUs, a list of devices such as "cuda:1", or None')
        object.__setattr__(self, "devices", named)

    def _check(self, name: str, good: bool, needs: str) -> None:
        if not good:
            raise ValueError(f"CompileConfig.{name}: got {getattr(self, name)!r}, needs {needs}")

    def _check_names(self) -> None:
        try:
            if self.disabled_passes:
                from .rewrite.pipeline import known_passes

                known_passes(self.disabled_passes)
            if self.disabled_impls:
                from .ops import all_ops
                from .rewrite.select_impls import known_patterns

                known_patterns(self.disabled_impls, all_ops().values())
        except ValueError as error:
            raise ValueError(f"CompileConfig.{error}") from None

    def replace(self, **changes: Any) -> CompileConfig:
        """The same config with other values in the fields that are named."""
        return replace(self, **changes)

    def cpu_allowed(self) -> bool:
        """Whether a module on a CPU is traced, too, and not only run as it is."""
        return os.environ.get(CPU_SWITCH, "") not in ("", "0") if self.allow_cpu is None else self.allow_cpu

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of all fields."""
        return tuple(field.name for field in fields(cls))

    def settings(self) -> dict[str, Any]:
        """Each setting by its name, for a report."""
        return {key: getattr(self, key) for key in self.names()}


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_distance(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value) and value >= 0
