"""The compiled state of one UNet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...config import CompileConfig
from ...engine import Engine
from ..comfy.options import steering
from ..shield import shielded
from .lora import LazyLoras
from .surroundings import surroundings


class UnetState:
    """The compiled state of one UNet. Lives as long as that does and holds nothing of it."""

    def __init__(self, unet: torch.nn.Module, config: CompileConfig, name: str) -> None:
        self.config = config
        self.engine = Engine(unet, name, config)
        self._surroundings: tuple[Any, ...] | None = None
        self._loras = LazyLoras()
        self._obstacle: str | None = None

    def prepare(self, unet: torch.nn.Module, obstacle: str | None) -> None:
        """Before each sampling: trace again where what steers the forward has changed.

        Args:
            unet: the UNet.
            obstacle: why this sampling can't be accelerated, or None.
        """
        self._obstacle = obstacle
        self._loras.forget()  # pictures made with the toggle off have changed the weights too
        now = surroundings(unet)
        if self._surroundings is not None and now != self._surroundings:
            self.engine.reset()
        self._surroundings = now

    def call(
        self, unet: torch.nn.Module, original: Callable[..., Any], foreign: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """One call of the UNet, by the fastest way that is known to be right.

        Args:
            unet: the UNet.
            original: its forward as it was.
            foreign: why that forward must not be traced, or None.
            args: the call's arguments.
            kwargs: its keyword arguments.
        """

        def eager() -> Any:
            return original(*args, **kwargs)

        def attempt(eager: Callable[[], Any]) -> Any:
            reason = foreign or self._obstacle or self._loras.why_not()
            if reason is not None:
                return self.engine.run_eager(reason, eager)
            self._loras.apply(unet)
            call = steering(args, kwargs, "another extension")
            return self.engine.call(unet, call.completed(original), call.args, call.kwargs, eager)

        return shielded(self.engine, attempt, eager)

    def restore(self) -> None:
        """Give the UNet its weights back as they were laid out, and the graphs' memory; the traces stay."""
        self.engine.restore()

    def close(self) -> None:
        """Leave the UNet as it was found, and know nothing of it any more."""
        self.engine.restore()
        self.engine.reset()
        self._loras.forget()
        self._surroundings = None
