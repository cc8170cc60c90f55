"""One recorded call of a module: its graph, how its result is put together, and the result itself."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree

from .as_written import as_written
from .errors import CaptureError
from .recorder import Recorder
from .weights import WeightTable

LeafScope = Callable[[Recorder], AbstractContextManager[Any]]


@dataclass(frozen=True)
class OutputSpec:
    """How to build a call's result from the graph's tensors."""

    tree: _pytree.TreeSpec
    leaves: tuple[Any, ...]  #: non-tensor leaves as they are, tensors as their index in a :class:`_Slot`

    def build(self, tensors: list[torch.Tensor]) -> Any:
        """The result with ``tensors`` in it."""
        return _pytree.tree_unflatten([tensors[leaf.index] if isinstance(leaf, _Slot) else leaf for leaf in self.leaves], self.tree)


@dataclass(frozen=True)
class _Slot:
    index: int


@dataclass(frozen=True)
class Trace:
    """A recorded call.

    Attributes:
        graph: placeholders for the signature's tensors, then for the weights (``meta["source"]``). It is to run with autocast off.
        outputs: how its results make the call's.
        seconds: what recording took, with the call.
        computed_in: the dtypes that autocast was to compute in.
    """

    graph: torch.fx.Graph
    outputs: OutputSpec
    seconds: float
    computed_in: frozenset[torch.dtype] = frozenset()


@dataclass(frozen=True)
class Untraceable:
    """Why a call left no trace. ``passing``: another call of the same signature may leave one."""

    reason: str
    passing: bool = False


def split_result(result: Any) -> tuple[OutputSpec, list[torch.Tensor]]:
    """Take a call's result apart.

    Raises:
        CaptureError: it holds an object of an unknown class.
    """
    leaves, tree = _pytree.tree_flatten(result)
    tensors: list[torch.Tensor] = []
    kept: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            kept.append(_Slot(len(tensors)))
            tensors.append(leaf)
        elif leaf is None or isinstance(leaf, (bool, int, float, str)):
            kept.append(leaf)
        else:
            raise CaptureError(f"the result holds a {type(leaf).__name__}")
    if not tensors:
        raise CaptureError("the result holds no tensor")
    return OutputSpec(tree, tuple(kept)), tensors


def _random_state(device: torch.device) -> list[torch.Tensor]:
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states


def _foreign_random_state() -> list[Any]:
    """Python's and NumPy's, as far as they are the whole process's."""
    states: list[Any] = [random.getstate()]
    if "numpy" in sys.modules:
        name, keys, *rest = sys.modules["numpy"].random.get_state()
        states.append((name, keys.tolist(), *rest))
    return states


def record(
    call: Callable[[], Any], inputs: list[torch.Tensor], root: torch.nn.Module, device: torch.device, leaf_scope: LeafScope | None = None
) -> tuple[Any, Trace | Untraceable]:
    """Run ``call()`` once and record it.

    Args:
        call: runs ``root``'s original forward on ``inputs``.
        inputs: the signature's tensors; they become the graph's first placeholders.
        root: where weights are looked up.
        device: whose random numbers must not move.
        leaf_scope: a host's context around the call, for leaves that resolve their weights in a way of their own.

    Returns:
        the call's own result, and a :class:`Trace` or why there is none.

    Raises:
        CaptureError: a torch function failed; its error is the cause. It may be that only the recording made it fail.
        Exception: the module's own code raised this (a host's way to stop it, say).
    """
    start = time.perf_counter()
    state, foreign_state = _random_state(device), _foreign_random_state()
    recorder = Recorder(inputs, WeightTable(root))
    with leaf_scope(recorder) if leaf_scope else nullcontext(), as_written(), recorder:
        try:
            result = call()
        except Exception as error:
            if id(error) == recorder.raised:
                raise CaptureError(f"it failed while it was recorded: {type(error).__name__}: {error}") from error
            raise
    if any(not torch.equal(a, b) for a, b in zip(state, _random_state(device), strict=True)):
        return result, Untraceable("it draws random numbers")
    if _foreign_random_state() != foreign_state:  # by this call, or meanwhile by another thread: then not the next time
        return result, Untraceable("Python's or NumPy's random numbers were drawn meanwhile", passing=True)
    try:
        spec, tensors = split_result(result)
    except CaptureError as error:
        return result, Untraceable(str(error))
    graph = recorder.finish(tensors)
    if graph is None:
        return result, Untraceable(str(recorder.failure), recorder.passing)
    return result, Trace(graph, spec, time.perf_counter() - start, frozenset(recorder.autocast.computed_in))
