"""The compiled state of a UNet, of a VAE's half, of a text encoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ...config import CompileConfig
from ...engine import Engine
from ..live import LiveCalls
from ..options import Steering
from ..parts import PartCalls
from ..shield import shielded
from .lora import LazyLoras
from .parts import Part
from .results import Opened
from .surroundings import surroundings

#: What VAEs note down about a call and nobody reads. A trace would be bound to it.
_NOTES = ("last_z_shape",)


class ModuleState:
    """The compiled state of one module. Lives as long as that does and holds nothing of it."""

    def __init__(self, config: CompileConfig, name: str) -> None:
        self.config = config
        self.engine = Engine(name, config)
        self._surroundings: tuple[Any, ...] | None = None
        self._loras = LazyLoras()
        self._obstacle: str | None = None

    def prepare(self, obstacle: str | None) -> None:
        """Before each sampling: trace again where what steers the forward has changed.

        Args:
            obstacle: why this sampling can't be accelerated, or None.
        """
        self._obstacle = obstacle
        self._loras.forget()  # pictures made with the toggle off have changed the weights too
        now = surroundings()
        if self._surroundings is not None and now != self._surroundings:
            self.engine.reset()
        self._surroundings = now

    def call(
        self, module: torch.nn.Module, original: Callable[..., Any], foreign: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """One call of the module, by the fastest way that is known to be right.

        Args:
            module: the module.
            original: its method as it was.
            foreign: why that method must not be traced, or None.
            args: the call's arguments.
            kwargs: its keyword arguments.
        """

        def eager() -> Any:
            return original(*args, **kwargs)

        def attempt(eager: Callable[[], Any]) -> Any:
            self._before_call(module)
            reason = foreign or self._obstacle or self._loras.why_not()
            if reason is not None:
                return self.engine.run_eager(reason, eager)
            self._loras.apply(module)
            return self._compute(module, original, args, kwargs, eager)

        return shielded(self.engine, attempt, eager)

    def _before_call(self, module: torch.nn.Module) -> None:
        """What a kind of module needs first."""

    def _compute(
        self, module: torch.nn.Module, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], eager: Callable[[], Any]
    ) -> Any:
        raise NotImplementedError

    def restore(self) -> None:
        """Give the module its weights back as they were laid out, and the graphs' memory; the traces stay."""
        self.engine.restore()

    def close(self) -> None:
        """Leave the module as it was found, and know nothing of it any more."""
        self.engine.restore()
        self.engine.reset()
        self._loras.forget()
        self._surroundings = None


class UnetState(ModuleState):
    """A UNet's: other extensions may steer it by options, and put functions into these."""

    def __init__(self, config: CompileConfig, name: str) -> None:
        super().__init__(config, name)
        self._live = LiveCalls(self.engine)

    def _compute(
        self, module: torch.nn.Module, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], eager: Callable[[], Any]
    ) -> Any:
        def compute(traced: Callable[..., Any], call: Steering) -> Any:
            return self.engine.call(module, traced, call.args, call.kwargs, eager, call.around)

        return self._live(module, original, args, kwargs, compute)


class PartState(ModuleState):
    """Another part's. Its first call in a generation prepares it, when all extensions have done theirs."""

    def __init__(self, part: Part, config: CompileConfig) -> None:
        super().__init__(config, part.name)
        self._calls = PartCalls(self.engine, part.kind, config)
        self._opened = Opened()
        self._passing = (*_NOTES, *({part.method} - {"forward"}))
        self._why_not: Callable[[torch.nn.Module], str | None] | None = None

    def prepare_later(self, why_not: Callable[[torch.nn.Module], str | None]) -> None:
        """Have :meth:`prepare` done at the next call.

        Args:
            why_not: why this module can't be accelerated in this generation, or None.
        """
        self._why_not = why_not

    def _before_call(self, module: torch.nn.Module) -> None:
        why_not, self._why_not = self._why_not, None
        if why_not is not None:
            self.prepare(why_not(module))

    def _compute(
        self, module: torch.nn.Module, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], eager: Callable[[], Any]
    ) -> Any:
        def traced(*args: Any, **kwargs: Any) -> Any:
            with _without(self._passing, module):
                return original(*args, **kwargs)

        with _without(self._passing, module):
            return self._opened.closed(self._calls(module, self._opened.inside(traced), args, kwargs, eager))


@contextmanager
def _without(names: tuple[str, ...], module: torch.nn.Module) -> Iterator[None]:
    """For the length of the block the module has no attributes of these names of its own, and afterwards those from before.

    A method of ours is one of them: another than ``forward`` would be taken for a change of the module's.
    """
    own = module.__dict__
    before = {name: own[name] for name in names if name in own}
    try:
        for name in before:
            del own[name]
        yield
    finally:
        for name in names:
            own.pop(name, None)
        own.update(before)
