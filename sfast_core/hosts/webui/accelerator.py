"""Which UNet is accelerated, from when to when. One object per loaded extension; the webui generates one picture at a time."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch

from ... import ahead
from ...config import CompileConfig
from ...report import Report, read_while_counting, versions
from . import forge
from .hooks import Hook
from .room import decoding_bytes, make_room
from .state import UnetState
from .surroundings import obstacle

log = logging.getLogger("fast_compile")
T = TypeVar("T")


class Accelerator:
    """The compiled states of the webui's UNets, and the hook on the one that is sampling. Nothing but ``read`` raises into the webui."""

    def __init__(self) -> None:
        self._states: weakref.WeakKeyDictionary[torch.nn.Module, UnetState] = weakref.WeakKeyDictionary()
        self._hook: Hook | None = None
        self._config = CompileConfig()  # that the hook was put on with
        self._lock = threading.RLock()

    def begin(self, enabled: bool) -> None:
        """A generation begins. What an earlier one left behind, by ending in an exception, is taken off.

        Args:
            enabled: whether this one is to be accelerated. If not, weights and memory are given back.
        """
        self.end()
        if enabled:
            ahead.prepare()  # while the webui encodes the prompts
        else:
            self.free()

    def attach(self, sd_model: Any, config: CompileConfig) -> None:
        """A sampling begins: put the compiled forward under the UNet of ``sd_model``. Twice is the same as once.

        With ``--medvram`` there are no graphs: they would hold memory where the UNet has made room, and be captured again each time.
        """
        try:
            self.end()
            if getattr(sd_model, "lowvram", False):
                config = replace(config, cuda_graphs=False)
            is_forge = hasattr(sd_model, "forge_objects")
            unet = sd_model.forge_objects.unet.model.diffusion_model if is_forge else sd_model.model.diffusion_model
            state = self._state(unet, config, _name(sd_model, unet))
            state.prepare(unet, obstacle(unet) or (forge.obstacle(sd_model) if is_forge else None))
            if is_forge:
                forge.attach(sd_model, state.call)
            else:
                self._hook, self._config = Hook(unet, state.call), config
        except Exception as error:
            log.warning("Fast Compile: this picture is made as before: %s: %s", type(error).__name__, error, exc_info=True)

    def end(self) -> None:
        """The generation has ended: the forward that was there is put back."""
        hook, self._hook = self._hook, None
        if hook is not None:
            hook.remove()

    def before_decoding(self, latents: Any, dtype: torch.dtype | None = None) -> None:
        """Pictures are sampled and will be decoded: where memory is short, graphs go. They are captured again when they are wanted."""
        try:
            wanted = decoding_bytes(latents, dtype)
            for state in self.states():
                if state.engine.graphs is not None:
                    make_room(state.engine.graphs, state.engine.device, wanted)
        except Exception:
            log.debug("Fast Compile: no room was made before decoding", exc_info=True)

    def free(self) -> None:
        """Give all graphs' memory back, and the weights as they were laid out. The traces stay."""
        for state in self.states():
            try:
                state.restore()
            except Exception:
                log.warning("Fast Compile: %s couldn't get its plain weights back", state.engine.report.name, exc_info=True)

    def loaded(self, sd_model: Any) -> None:
        """A checkpoint was loaded, perhaps into modules that were there. In the middle of a sampling it is the refiner: hook it too."""
        self.drop()
        if self._hook is not None:
            self.attach(sd_model, self._config)

    def drop(self) -> None:
        """Forget everything about every UNet. A hook in use stays."""
        for state in self.states():
            try:
                state.close()
            except Exception:
                log.warning("Fast Compile: %s couldn't be left as it was", state.engine.report.name, exc_info=True)

    def states(self) -> list[UnetState]:
        """The compiled state of every UNet that is alive."""
        with self._lock:
            return list(self._states.values())

    def report(self) -> Report:
        """What happened to every UNet that is alive."""
        states = self.states()
        for state in states:
            state.engine.forget_evicted()
        return Report([state.engine.report for state in states], versions())

    def read(self, form: Callable[[Report], T]) -> T:
        """The report in a form of its own, taken while another thread may be making a picture."""
        return read_while_counting(lambda: form(self.report()))

    def _state(self, unet: torch.nn.Module, config: CompileConfig, name: str) -> UnetState:
        with self._lock:
            before = self._states.get(unet)
            if before is not None and before.config == config:
                return before
            if before is not None:
                before.close()
            state = self._states[unet] = UnetState(unet, config, name)
            return state


def _name(sd_model: Any, unet: torch.nn.Module) -> str:
    """What the report calls a UNet: the model's family, as far as the webui tells, and its class."""
    families = {"is_sdxl": "SDXL", "is_sd3": "SD3", "is_sd2": "SD2", "is_sd1": "SD1"}
    family = next((text for attribute, text in families.items() if getattr(sd_model, attribute, False) is True), "")
    return f"{family} {type(unet).__name__}".strip()
