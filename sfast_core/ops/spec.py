"""What an op is: a meaning in plain PyTorch, and kernels that may stand in for it.

``reference`` is the meaning: passes put it into the graph as it is, tests compare every impl with it, and run on meta
tensors it tells the shape, dtype and strides of the result. An impl lives in a module of its own that is imported only
when lowering asks for it, so that a machine without Triton or cuDNN never imports them. The module has

``launch(...)``, which computes the result, with the reference's parameters, defaults and all: that they are the same is
looked at when it is taken. Their types stand with the reference alone. ``why_not(target, call)``, where
:class:`.needs.Needs` doesn't say all: a reason in words or None. It looks at the call's arguments by name, tensors on
the meta device, and reads no environment.
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
    """A call's arguments by the names of the reference's parameters, what it leaves out by default."""

    @classmethod
    def of(cls, reference: Callable[..., Any], *args: Any, **kwargs: Any) -> Arguments:
        """Those of a call of ``reference``.

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
    """Whether a launch has the reference's parameters, in their order and with their defaults.

    Others may be given by name, for tests say.
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

    Another ``module`` may hold several impls that differ in their ``launch`` alone; ``function`` names it. Where
    ``carries_over`` is False, that it was the fastest at one size says nothing about another. ``per_thread``: what its
    first launch prepares is of use to that thread alone. ``superseded_by`` names impls of the same op: where one of
    them can compute a call, this one is left out, not even measured; of those calls only for which ``superseded_if`` is
    true, where there is one. ``needs`` is what it needs that a table can say. ``reference`` is the op's, which it is
    part of.
    """

    name: str
    module: str = ""
    function: str = "launch"
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
        """The name of the first of ``fitting``, which all can compute this call, that this impl is left out for, or
        None.
        """
        before = next((impl.name for impl in fitting if impl.name in self.superseded_by), None)
        return before if self.superseded_if is None or self.superseded_if(call) else None

    @property
    def launch(self) -> Callable[..., Any]:
        """The function that computes the op.

        Raises:
            TypeError: it has other parameters than the op's reference.
        """
        launch: Callable[..., Any] = getattr(self.load(), self.function)
        if self.reference is not None and (reason := _why_not_alike(self.reference, launch)):
            raise TypeError(f"{self.reference.__name__}.{self.name}: {reason}")
        return launch


def ranked(launch: Callable[..., Any], rank: int, name: str, module: str = "", **more: Any) -> Callable[..., Any]:
    """``launch(rank, ..., **more)`` as a launch of its own: ``name`` of ``module``, or of launch's, as FX prints a node
    that calls it.

    What a library proposes next.
    """

    def at_rank(*args: Any, **kwargs: Any) -> Any:
        return launch(rank, *args, **kwargs, **more)

    at_rank.__name__ = at_rank.__qualname__ = name
    at_rank.__module__ = module or launch.__module__
    at_rank.__signature__ = inspect.signature(functools.partial(launch, rank))  # type: ignore[attr-defined]
    return at_rank


@dataclass(frozen=True)
class Op:
    """A fused operator.

    ``impls`` are in order of preference. Where ``measured`` is set the order is only a hint: lowering times those that
    apply to the shape at hand, with the reference among them, and keeps the choice on disk.
    """

    name: str
    reference: Callable[..., Any]
    impls: tuple[Impl, ...] = ()
    measured: bool = False
    family: Callable[[Arguments], tuple[str, int]] | None = None
    """Of a measured op: what decides which impl is fastest besides the size, and the size.

    A call takes over the choice of the nearest of its family, where it carries over and little is at stake, instead of
    being measured: a new resolution then costs little measuring.
    """
    #: PyTorch's own function whose calls are calls of the op, too, with arguments by position
    plain: Callable[..., Any] | None = None
    reference_competes: bool | Callable[[Arguments], bool] = True
    """Whether the reference is measured beside the impls.

    Not where it is never the fastest, nor where it doesn't give the same bits at every run, which PyTorch's
    convolutions promise only where all of PyTorch is told to: then it runs only where no impl can.
    """
    optional: bool = False  #: passes make it only where an impl can compute it: without one a graph stays as it is
    channels_last: bool = False  #: its 4-D and 5-D tensors have their channels innermost inside the traced model

    def __post_init__(self) -> None:
        object.__setattr__(self, "impls", tuple(replace(impl, reference=self.reference) for impl in self.impls))
