"""Chooses the impl that computes each op call, once when a graph is lowered, so that nothing is dispatched later."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any

import torch
from torch.fx import Graph

from ..ops.spec import Arguments, Impl, Op
from ..target import Target
from .graph import metas


@dataclass
class Selection:
    """What was chosen: for each op how many calls each impl computes, and why other impls can't."""

    chosen: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    refused: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))


#: Elements, 16 bytes of halves: no impl asks for more alignment of where a tensor begins. So calls that differ only in
#: a multiple of it look the same; the prompt's keys and values begin at 140 places of one tensor (SDXL).
_ALIGNED = 8

#: A function of all op calls that returns the name of the impl to take for each.
Choose = Callable[[list["Call"]], list[str]]


@dataclass(frozen=True)
class Call:
    """One op call with the impls that can compute it; arguments as meta tensors."""

    op: Op
    impls: tuple[Impl, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def select_impls(
    graph: Graph, ops: Iterable[Op], target: Target, disabled: tuple[str, ...], choose: Choose | None
) -> Selection:
    """Replace each op's reference by the impl to run.

    Args:
        graph: its calls of ``op.reference`` and ``op.plain`` are changed in place; those without an impl call the
            reference.
        ops: the ops to look for.
        target: what the machine has.
        disabled: patterns of ``op.impl`` that the user turned off.
        choose: decides between several impls by measuring. None: the first that applies.
    """
    by_function = {function: op for op in ops for function in (op.reference, op.plain) if function is not None}
    selection, found = Selection(), []
    fitting = _Fitting(target, disabled, selection.refused)
    for node in graph.nodes:
        if (
            node.op == "call_function"
            and node.target in by_function
            and not (node.kwargs and node.target is by_function[node.target].plain)
        ):
            op, args, kwargs = by_function[node.target], metas(node.args), metas(node.kwargs)
            found.append((node, Call(op, fitting.impls(op, args, kwargs), args, kwargs)))
    names = _decide([call for _, call in found], choose)
    for (node, call), name in zip(found, names, strict=True):
        selection.chosen[call.op.name][name] += 1
        if name != "reference":
            node.target = next(impl for impl in call.impls if impl.name == name).launch
        elif node.target is call.op.plain:
            node.target = call.op.reference
    return selection


#: Former names of ops and impls, which saved settings may contain.
_FORMER = {
    "linear_act.triton": "linear.triton_act",
    "linear_act": "linear",
    "linear_geglu": "linear",
    "linear_add": "linear",
}


def known_patterns(disabled: Iterable[str], ops: Iterable[Op]) -> tuple[str, ...]:
    """The patterns of impls that the user turned off, with former names replaced.

    Raises:
        ValueError: a pattern fits no impl.
    """
    names = [f"{op.name}.{impl.name}" for op in ops for impl in op.impls]
    patterns = []
    for pattern in disabled:
        op, dot, impl = pattern.partition(".")
        patterns.append(_FORMER.get(pattern) or f"{_FORMER.get(op, op)}{dot}{impl}")
        if not any(fnmatch(name, patterns[-1]) for name in names):
            raise ValueError(
                f"disabled_impls: got {pattern!r}, which fits no kernel; known are {', '.join(sorted(names))}"
            )
    return tuple(patterns)


def has_impl(
    ops: Iterable[Op], target: Target, disabled: tuple[str, ...], refused: dict[str, dict[str, str]]
) -> Callable[..., bool]:
    """A function that tells passes whether a kernel can compute a call, by the op's reference and meta arguments.

    Args:
        ops: see :func:`select_impls`.
        target: see :func:`select_impls`.
        disabled: see :func:`select_impls`.
        refused: is filled with the reasons why impls can't, by op and impl.
    """
    by_reference = {op.reference: op for op in ops}
    fitting = _Fitting(target, disabled, refused)
    return lambda reference, *args: bool(fitting.impls(by_reference[reference], args, {}))


class _Fitting:
    """Finds the impls that can compute a call, once for all calls that look the same: SDXL's 1,147 have 91 looks."""

    def __init__(self, target: Target, disabled: tuple[str, ...], refused: dict[str, dict[str, str]]) -> None:
        """``refused`` is filled with the first reason why an impl can't compute a call."""
        self._target, self._disabled, self._refused = target, disabled, refused
        self._known: dict[Hashable, tuple[Impl, ...]] = {}

    def impls(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Impl, ...]:
        """The impls of ``op`` that can compute this call, in the op's order. Tensors are meta tensors."""
        look = (op.name, _look(args), _look(tuple(kwargs.items())))
        if look not in self._known:
            call = Arguments.of(op.reference, *args, **kwargs)
            fitting = [impl for impl in op.impls if self._fits(op, impl, call)]
            self._known[look] = tuple(impl for impl in fitting if not self._stands_behind(op, impl, fitting, call))
        return self._known[look]

    def _stands_behind(self, op: Op, impl: Impl, fitting: list[Impl], call: Arguments) -> bool:
        before = impl.superseded(fitting, call)
        if before is not None:
            self._refused.setdefault(op.name, {}).setdefault(impl.name, f"{impl.name}: {before} can do it")
        return before is not None

    def _fits(self, op: Op, impl: Impl, call: Arguments) -> bool:
        if any(fnmatch(f"{op.name}.{impl.name}", pattern) for pattern in self._disabled):
            reason: str | None = "turned off in the settings"
        elif not self._target.is_cuda:
            reason = "needs CUDA"
        else:
            reason = impl.against(self._target, call)
            reason = reason and f"{impl.name}: {reason}"
        if reason is not None:
            self._refused.setdefault(op.name, {}).setdefault(impl.name, reason)
        return reason is None


def _look(value: Any) -> Hashable:
    """All that an impl may ask: of a tensor shape, strides, dtype and alignment; of anything else type and value."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.stride(), value.storage_offset() % _ALIGNED
    if isinstance(value, (tuple, list)):
        return tuple(map(_look, value))
    return type(value), value


def _decide(calls: list[Call], choose: Choose | None) -> list[str]:
    if choose is not None:
        return choose(calls)
    return [call.impls[0].name if call.impls else "reference" for call in calls]
