"""What an op is: a meaning in plain PyTorch (the reference), and kernels that may stand in for it (impls).

Passes put the reference itself into the graph, tests compare every impl with it, and run on meta tensors it tells the
shape, dtype and strides of the result. Each impl is in a module of its own, imported only when lowering asks for it: a
machine without Triton or cuDNN never imports them. That module has

- ``launch(...)``, which computes the result. Its parameters and defaults are the reference's, which is checked when the
  impl is chosen; their types are written with the reference alone. It raises what its library does, the CUDA extension
  what :func:`..native.load.launch` says.
- ``why_not(target, call)``, where :class:`.needs.Needs` can't say everything: why the impl can't compute a call, or
  None. ``call`` has the arguments by name, tensors on the meta device. It reads no environment.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from types import ModuleType, SimpleNamespace
from typing import Any

from .needs import Needs


class Arguments(SimpleNamespace):
    """A call's arguments by the names of the reference's parameters, with the defaults of those that it leaves out."""

    @classmethod
    def of(cls, reference: Callable[..., Any], *args: Any, **kwargs: Any) -> Arguments:
        """The arguments of ``reference(*args, **kwargs)``.

        Raises:
            TypeError: it has no such parameters.
        """
        bound = _signature(reference).bind(*args, **kwargs)
        bound.apply_defaults()
        return cls(**bound.arguments)


@functools.cache
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


@functools.cache
def _why_not_alike(reference: Callable[..., Any], launch: Callable[..., Any]) -> str | None:
    """Why a launch hasn't the reference's parameters, in order and with their defaults, or None. It may have further
    ones that are given by name only, for tests.
    """
    mine, theirs = (
        [(name, p.default) for name, p in _signature(function).parameters.items() if p.kind is not p.KEYWORD_ONLY]
        for function in (launch, reference)
    )
    if mine == theirs:
        return None
    return f"launch{_signature(launch)} has not the parameters of {reference.__name__}{_signature(reference)}"


@dataclass(frozen=True)
class Impl:
    """One kernel for an op, in a module of the op's folder: ``Impl("triton")`` is in ``triton_impl.py``.

    Attributes:
        name: of the impl.
        module: the module, where it isn't named after the impl: several impls may differ in their rank alone.
        rank: which of several ways that a library proposes, or that a kernel is cut in; ``launch`` takes it by name.
        carries_over: False where being the fastest at one size says nothing about another.
        per_thread: whether what the first launch prepares helps only the thread that launched it.
        superseded_by: names of impls of the same op. Where one of them can compute a call, this one isn't even
        measured.
        superseded_if: if given, that is so only for calls for which this is true.
        needs: what it needs of the machine and the call, as far as a table can say that.
        reference: the op's; filled in by the op.
    """

    name: str
    module: str = ""
    rank: int = 0
    carries_over: bool = True
    per_thread: bool = False
    superseded_by: tuple[str, ...] = ()
    superseded_if: Callable[[Arguments], bool] | None = None
    needs: Needs = Needs()
    reference: Callable[..., Any] | None = None

    def load(self) -> ModuleType:
        """Import the impl's module.

        Raises:
            ImportError: the library that it is written in is not installed.
        """
        folder = getattr(self.reference, "__module__", "").rpartition(".")[0]
        return importlib.import_module(f"{folder}.{self.module or f'{self.name}_impl'}")

    def why_not(self, target: Any, *args: Any, **kwargs: Any) -> str | None:
        """The reason why this impl can't compute the op for these arguments on ``target``, or None."""
        reason = (
            self.against(target, Arguments.of(self.reference, *args, **kwargs))
            if self.reference
            else "it is part of no op"
        )
        return f"{self.name}: {reason}" if reason else None

    def against(self, target: Any, call: Arguments) -> str | None:
        """As :meth:`why_not`, without the impl's name in front."""
        try:
            own: Callable[..., str | None] | None = getattr(self.load(), "why_not", None)
        except ImportError as error:
            return str(error)
        return (
            self.needs.why_not(target, vars(call)) or (own and own(target, call)) or self.needs.why_no_extension(target)
        )

    def superseded(self, fitting: Iterable[Impl], call: Arguments) -> str | None:
        """The name of the impl for which this one is left out, or None.

        ``fitting``: the impls that can compute this call.
        """
        before = next((impl.name for impl in fitting if impl.name in self.superseded_by), None)
        return before if self.superseded_if is None or self.superseded_if(call) else None

    @property
    def launch(self) -> Callable[..., Any]:
        """The function that computes the op.

        Raises:
            TypeError: it has other parameters than the op's reference.
        """
        launch: Callable[..., Any] = self.load().launch
        if self.reference is not None and (reason := _why_not_alike(self.reference, launch)):
            raise TypeError(f"{self.reference.__name__}.{self.name}: {reason}")
        return _at_rank(launch, self.rank) if self.rank else launch


@functools.cache
def _at_rank(launch: Callable[..., Any], rank: int) -> Callable[..., Any]:
    """``launch`` at this rank: the same object each time, with the name that FX prints for a node that calls it."""
    return functools.wraps(launch)(functools.partial(launch, rank=rank))


@dataclass(frozen=True)
class Op:
    """A fused operator.

    Attributes:
        name: of the op.
        reference: its meaning in plain PyTorch.
        impls: in order of preference.
        measured: the order is only a hint: lowering times the impls that can compute a call, and the reference, and
            keeps the choice on disk.
        family: of a measured op: what decides which impl is fastest besides the size, and the size. A call may take
            over the choice of another size of its family, so that a new resolution needs little measuring.
        plain: PyTorch's own function whose calls, with arguments by position, are calls of the op, too.
        reference_competes: whether the reference is measured beside the impls. It isn't where it is never the fastest,
            or doesn't give the same bits at every run (PyTorch's convolutions do only under deterministic algorithms):
            then it runs where no impl can.
        optional: passes make the op only where an impl can compute it; without one the graph stays as it is.
        channels_last: whether its 4-D and 5-D tensors have their channels innermost.
    """

    name: str
    reference: Callable[..., Any]
    impls: tuple[Impl, ...] = ()
    measured: bool = False
    family: Callable[[Arguments], tuple[str, int]] | None = None
    plain: Callable[..., Any] | None = None
    reference_competes: bool | Callable[[Arguments], bool] = True
    optional: bool = False
    channels_last: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "impls", tuple(replace(impl, reference=self.reference) for impl in self.impls))
