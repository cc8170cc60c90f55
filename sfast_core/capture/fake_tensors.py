"""A torch function run on fake tensors: tensors without values, on the device that they stand for, that tell which
operators they meet.

Autocast takes them for tensors that are there, so what it does to them is what it does to those. Nothing is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

_AUTOCAST = {"cuda": torch._C.DispatchKey.AutocastCUDA, "cpu": torch._C.DispatchKey.AutocastCPU}
_BACKEND = {"cuda": torch._C.DispatchKey.CUDA, "cpu": torch._C.DispatchKey.CPU}
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_OPAQUE = (torch._C.DispatchKey.CompositeExplicitAutograd, torch._C.DispatchKey.CompositeExplicitAutogradNonFunctional)
#: Operators that hand values on as they are, besides those whose result may be a view of their argument.
_COPIES = frozenset(
    {"aten::clone", "aten::_to_copy", "aten::_unsafe_view", "aten::_reshape_copy", "aten::lift_fresh_copy"}
)

#: The device types that fake tensors can be on.
KINDS = frozenset(_AUTOCAST)


@contextmanager
def autocast_switched(kinds: Sequence[str], on: bool) -> Iterator[None]:
    """Autocast on or off for these device types, and afterwards as it was."""
    kinds = [kind for kind in kinds if torch.is_autocast_enabled(kind) != on]
    for kind in kinds:
        torch.set_autocast_enabled(kind, on)
    try:
        yield
    finally:
        for kind in kinds:
            torch.set_autocast_enabled(kind, not on)


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """``value`` with each leaf of its tuples, lists and dicts replaced.
    torch's own pytree takes several times as long.
    """
    if isinstance(value, (tuple, list)):
        if isinstance(value, list):
            return [mapped(function, item) for item in value]
        return tuple(mapped(function, item) for item in value)
    if isinstance(value, Mapping):
        return {name: mapped(function, item) for name, item in value.items()}
    return function(value)


def leaves(value: Any, *kinds: type) -> list[Any]:
    """The leaves of these classes in ``value``, in order."""
    found: list[Any] = []
    mapped(found.append, value)
    return [leaf for leaf in found if isinstance(leaf, kinds)]


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor in a run: the call's own tensors in order, then what the operators return. ``meta``:
    on the meta device.
    """

    number: int
    meta: torch.Tensor
    device: torch.device


@dataclass(frozen=True)
class Step:
    """An operator that was met, with a :class:`Value` for each tensor that it got or returned."""

    op: Any
    args: Any
    kwargs: Any
    result: Any


class Run:
    """One run of a function on fake tensors.

    Attributes:
        met: the operators that compute something, each with the dtypes and the values that it got.
        dtypes: of the tensors that the function returned.
        steps: all operators.
        result: what the function returned, with a :class:`Value` for each tensor.
        opaque: an operator calls others in a way that doesn't show, and autocast may do something to those.
        random: an operator draws random numbers.
        guessed: ``known`` was taken for what the first operator returns.
    """

    def __init__(self, kinds: Sequence[str], known: Any = None) -> None:
        """``kinds``: the device types that autocast is on for.

        ``known``: what the function returns for real tensors, if that is to help.
        """
        self.met: list[Hashable] = []
        self.dtypes: list[torch.dtype] = []
        self.steps: list[Step] = []
        self.result: Any = None
        self.opaque = self.random = self.guessed = False
        self._known = known
        self._kinds = kinds
        self._autocast = any(map(torch.is_autocast_enabled, kinds))
        self._taken_apart = 0
        self._count = 0

    def __call__(
        self,
        func: Callable[..., Any],
        args: Any,
        kwargs: Mapping[str, Any],
        dtype: Callable[[torch.Tensor], torch.dtype],
    ) -> bool:
        """Call ``func`` on fake tensors, each of the dtype that ``dtype`` gives for its tensor.

        Returns:
            whether the guess, if there was one, is right: the function returned just that.
        """
        fake = lambda x: self._new(_hollow(x, dtype(x)), x.device) if isinstance(x, torch.Tensor) else x  # noqa: E731
        # an operator is met whole here, before it is taken apart into those that it is made of
        with torch.inference_mode():
            args, kwargs = mapped(fake, (args, kwargs))
            returned = func(*args, **kwargs)
        self.result = mapped(_value, returned)
        values = leaves(self.result, Value)
        self.dtypes = [value.meta.dtype for value in values]
        return not self.guessed or (len(self.met) == 1 and set(values) <= set(leaves(self.steps[-1].result, Value)))

    def meet(self, op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """What the operator returns, as fake tensors."""
        computes = not _hands_on(op)
        listed = computes and any(_has_kernel(op, _AUTOCAST[kind]) for kind in self._kinds)
        if computes and not listed and _has_kernel(op, _COMPOSITE):
            return self._take_apart(op, args, kwargs)
        if computes:
            self.opaque |= not listed and _is_opaque(op, self._kinds)
            self.random |= torch.Tag.nondeterministic_seeded in op.tags
            self.met.append((op, *map(_seen, leaves((args, kwargs), object))))
        if computes and not self._taken_apart and not self.guessed and _may_return(op, self._known):
            self.guessed = True
            result = mapped(lambda x: self._new(_hollow(x), x.device), self._known)
        else:
            result = self._worked_out(op, args, kwargs)
        self.steps.append(Step(op, *mapped(_value, (args, kwargs, result))))
        return result

    def _take_apart(self, op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operator that is made of others, and that autocast lets through to them."""
        self._taken_apart += 1
        try:
            with autocast_switched(self._kinds, self._autocast):  # a fake tensor is asked with autocast off
                return op._op_dk(_COMPOSITE, *args, **kwargs)
        finally:
            self._taken_apart -= 1

    def _worked_out(self, op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        given = [x.device for x in leaves((args, kwargs), torch.Tensor)]
        wanted = leaves((args, kwargs), torch.device)  # where the result is to be
        device = (wanted or [found for found in given if found.type != "cpu"] or given)[0]
        args, kwargs = mapped(_on_meta, (args, kwargs))
        return mapped(lambda x: self._new(x, device) if isinstance(x, torch.Tensor) else x, op(*args, **kwargs))

    def _new(self, meta: torch.Tensor, device: torch.device) -> FakeTensor:
        self._count += 1
        return FakeTensor(self, Value(self._count - 1, meta, device))


class FakeTensor(torch.Tensor):
    """A tensor without values that tells its run which operators it meets."""

    run: Run
    value: Value

    @staticmethod
    def __new__(cls, run: Run, value: Value) -> FakeTensor:
        meta = value.meta
        self: FakeTensor = torch.Tensor._make_wrapper_subclass(
            cls, meta.shape, strides=meta.stride(), dtype=meta.dtype, device=value.device
        )
        self.run, self.value = run, value
        return self

    __torch_function__ = torch._C._disabled_torch_function_impl

    # torch's own asks for values, and where that fails leaves autocast off
    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"{self.dtype}{list(self.shape)}"

    @classmethod
    def __torch_dispatch__(
        cls, op: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        return leaves((args, kwargs), FakeTensor)[0].run.meet(op, args, kwargs)


def _has_kernel(op: Any, key: Any) -> bool:
    """Whether the dispatcher has a kernel.

    The operator itself also counts decompositions in Python, which nothing runs but tracers.
    """
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key))


def _hands_on(op: Any) -> bool:
    """Whether an operator gives the values of its argument, unchanged: a view, a copy, a cast."""
    returns = [returned.alias_info for returned in op._schema.returns]
    return op._schema.name in _COPIES or (
        bool(returns) and all(alias is not None and not alias.is_write for alias in returns)
    )


def _is_opaque(op: Any, kinds: Sequence[str]) -> bool:
    """Whether an operator may call others below the place where it is met.

    None of those that work in place calls one that is listed.
    """
    return (
        any(_has_kernel(op, key) for key in _OPAQUE)
        and not any(_has_kernel(op, _BACKEND[kind]) for kind in kinds)
        and not op._schema.is_mutable
        and not op._schema.name.startswith(("aten::empty", "aten::new_empty"))
    )


def _may_return(op: Any, result: Any) -> bool:
    """Whether ``result`` is built as what the operator returns: a tensor, or several."""
    results = [result] if isinstance(result, torch.Tensor) else result
    return (
        isinstance(results, (tuple, list))
        and len(results) == len(op._schema.returns)
        and all(isinstance(item, torch.Tensor) for item in results)
        and all(isinstance(returned.type, torch.TensorType) for returned in op._schema.returns)
    )


def _hollow(x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=dtype or x.dtype, device="meta")


def _on_meta(leaf: Any) -> Any:
    if isinstance(leaf, torch.device):
        return torch.device("meta")
    if isinstance(leaf, torch.Tensor):
        return leaf.value.meta if isinstance(leaf, FakeTensor) else _hollow(leaf)
    return leaf


def _value(leaf: Any) -> Any:
    return leaf.value if isinstance(leaf, FakeTensor) else leaf


def _seen(leaf: Any) -> Hashable:
    return leaf.dtype if isinstance(leaf, torch.Tensor) else repr(leaf)
