"""One sampling, from where our forward is put in to its end: whether its steps get there."""

from __future__ import annotations

import sys
import weakref
from typing import Any

import torch

from ...reporting.reasons.hosts import WENT_PAST
from .forge import FunctionWrapper, wrapper_of
from .parts import unet_of
from .state import UnetState


class Sampling:
    """Counts the steps that a webui begins, beside the calls that reach a UNet's state.

    Args:
        sd_model: the webui's model, as our forward was put into it. Held weakly, and so are the others.
        unet: its UNet.
        state: of that.
    """

    def __init__(self, sd_model: Any, unet: torch.nn.Module, state: UnetState) -> None:
        self._sd_model = weakref.ref(sd_model)
        self._unet = weakref.ref(unet)
        self._state = weakref.ref(state)
        self._before = state.calls
        self._steps = 0

    def step(self, steps: int | None) -> None:
        """The webui is about to call the model, which lies with its LoRAs where it is to lie.

        ``steps``: how many the sampling has, if that is known.
        """
        state = self._state()
        if state is not None and self._steps == 0:
            state.begin_sampling(steps)
        self._steps += 1

    def end(self) -> None:
        """It is over."""
        state = self._state()
        if state is not None:
            state.end_sampling()

    def missed(self) -> bool:
        """Whether steps were begun, and no call came."""
        state = self._state()
        return self._steps > 0 and (state is None or state.calls == self._before)

    @property
    def sd_model(self) -> Any:
        """The webui's model, or None where it is gone."""
        return self._sd_model()

    def say(self) -> None:
        """Count those steps in the report, with who came in between."""
        state = self._state()
        if state is not None and self.sd_model is not None:
            for _ in range(self._steps):
                state.engine.reporter.ran_eager(WENT_PAST(who=self._who()))

    def _who(self) -> str:
        unet = unet_of(self.sd_model)
        if unet is not self._unet():
            return f"another extension has put another UNet in its place ({type(unet).__module__})"
        if hasattr(self.sd_model, "forge_objects"):
            wrapper = wrapper_of(self.sd_model)
            if not isinstance(wrapper, FunctionWrapper):
                return f"another extension has put a wrapper over ours that doesn't call it ({_module(wrapper)})"
        else:
            forward = vars(unet).get("forward")
            if forward is not None:
                return f"another extension has put a forward over ours that doesn't call it ({_module(forward)})"
        return "what ran in its place isn't known"


def was_ended() -> bool:
    """Whether the user has ended a sampling before it was over."""
    state = getattr(sys.modules.get("modules.shared"), "state", None)
    return any(getattr(state, name, False) for name in ("interrupted", "skipped", "stopping_generation"))


def _module(value: Any) -> str:
    return str(getattr(value, "__module__", "") or type(value).__module__).partition(".")[0]
