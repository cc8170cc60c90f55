"""Which models are accelerated, from when to when.

One object per loaded extension; the webui generates one picture at a time.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch

from ...config import CompileConfig
from ...machine import ahead
from ...reporting.report import Report, read_while_counting, versions
from ..hook import Hook
from ..states import States, state_under
from . import forge
from .parts import Part, parts_of, unet_of
from .room import decoding_bytes, make_room
from .sampling import Sampling, was_ended
from .state import ModuleState, PartState, UnetState
from .status import LastPicture
from .surroundings import obstacle

log = logging.getLogger("fast_compile")
T = TypeVar("T")


class Accelerator:
    """The compiled states of the webui's models, and the hooks on those in use.

    Nothing but ``read`` raises into the webui.
    """

    def __init__(self) -> None:
        self._states: States[ModuleState] = States()
        self._unet: Hook | None = None
        self._sampling: Sampling | None = None
        self._parts: list[Hook] = []
        self._wanted: frozenset[str] = frozenset()  # the parts
        self._config = CompileConfig()  # that the hooks were put on with
        self._picture: LastPicture | None = None

    def begin(self, enabled: bool) -> None:
        """A generation begins. What an earlier one left behind, by ending in an exception, is taken off.

        Args:
            enabled: whether this one is to be accelerated. If not, weights and memory are given back.
        """
        if self._sampling is not None:
            self._sampling.end()
        self._sampling = None
        self.end()
        self._picture = LastPicture(enabled, self.report().modules)
        if enabled:
            ahead.prepare()  # while the webui encodes the prompts
        else:
            self.free()

    def attach_parts(self, sd_model: Any, config: CompileConfig, wanted: frozenset[str]) -> None:
        """For the rest of the generation put compiled forwards under VAE and text encoders.

        Parts that aren't wanted get back what they had.

        Args:
            sd_model: the webui's model.
            config: how; the same for all parts.
            wanted: which: ``parts.VAE``, ``parts.TEXT_ENCODER``.
        """
        try:
            self._remove_parts()
            self._config, self._wanted = config, wanted
            for switch, part in parts_of(sd_model):
                if switch in wanted:
                    self._attach_part(part, _on_this(sd_model, config))
                elif (state := self._states.get(part.module)) is not None:
                    state.restore()
        except Exception as error:
            log.warning(
                "Fast Compile: VAE and text encoders run as before: %s: %s", type(error).__name__, error, exc_info=True
            )

    def _attach_part(self, part: Part, config: CompileConfig) -> None:
        state = state_under(self._states, part.module, config, lambda: PartState(part, config))
        assert isinstance(state, PartState)
        state.prepare_later()
        self._parts.append(Hook(part.module, state.call, part.method).put())

    def attach(self, sd_model: Any, config: CompileConfig) -> None:
        """A sampling begins: put the compiled forward under the UNet of ``sd_model``. Twice is the same as once."""
        try:
            self._sampled()
            self._remove_unet()
            self._config = config
            unet, is_forge = unet_of(sd_model), hasattr(sd_model, "forge_objects")
            on_this = _on_this(sd_model, config)
            state = state_under(self._states, unet, on_this, lambda: UnetState(on_this, _name(sd_model, unet)))
            state.prepare(obstacle() or (forge.obstacle(sd_model) if is_forge else None))
            if is_forge:
                forge.attach(sd_model, state.call)
            else:
                self._unet = Hook(unet, state.call).put()
            assert isinstance(state, UnetState)
            self._sampling = Sampling(sd_model, unet, state)
        except Exception as error:
            log.warning(
                "Fast Compile: this picture is made as before: %s: %s", type(error).__name__, error, exc_info=True
            )

    def before_step(self, steps: int | None = None) -> None:
        """The webui is about to call the model.

        Where the step before went past our forward, this is put over what came in between.

        Args:
            steps: how many the sampling has, where the webui says so.
        """
        try:
            sampling = self._sampling
            if sampling is None:
                return
            if sampling.missed() and sampling.sd_model is not None:
                self.attach(sampling.sd_model, self._config)
            if self._sampling is not None:
                self._sampling.step(steps)
        except Exception:
            log.debug("Fast Compile: before a step", exc_info=True)

    def _sampled(self) -> None:
        """The sampling before is over: where no step of it came here, that is said."""
        sampling, self._sampling = self._sampling, None
        if sampling is not None:
            sampling.end()
            if sampling.missed() and not was_ended():
                sampling.say()

    def end(self) -> None:
        """The generation has ended: the forwards that were there are put back."""
        try:
            self._sampled()
        except Exception:
            log.debug("Fast Compile: at the end of a sampling", exc_info=True)
        self._remove_unet()
        self._remove_parts()
        self._wanted = frozenset()
        self._leave_plain()

    def _leave_plain(self) -> None:
        """Other extensions shall find weights that lie as the webui's do, until the next generation."""
        for state in self.states():
            try:
                for engine in state.engines():
                    engine.lay_plain()
            except Exception:
                log.debug("Fast Compile: weights stay as they lie", exc_info=True)

    def _remove_unet(self) -> None:
        hook, self._unet = self._unet, None
        if hook is not None:
            hook.remove()

    def _remove_parts(self) -> None:
        hooks, self._parts = self._parts, []
        for hook in reversed(hooks):
            hook.remove()

    def before_decoding(self, latents: Any, dtype: torch.dtype | None = None) -> None:
        """Pictures are sampled and will be decoded: where memory is short, graphs go.

        They are captured again when they are wanted.
        """
        try:
            wanted = decoding_bytes(latents, dtype)
            for engine in (engine for state in self.states() for engine in state.engines()):
                if engine.graphs is not None:
                    make_room(engine.graphs, engine.device, wanted)
        except Exception:
            log.debug("Fast Compile: no room was made before decoding", exc_info=True)

    def free(self) -> None:
        """Give all graphs' memory back, and the weights as they were laid out. The traces stay."""
        for state in self.states():
            try:
                state.restore()
            except Exception:
                log.warning(
                    "Fast Compile: %s couldn't get its plain weights back", state.engine.report.name, exc_info=True
                )

    def loaded(self, sd_model: Any) -> None:
        """A checkpoint or a VAE was loaded, perhaps into modules that were there.

        In the middle of a generation it is hooked too.
        """
        self.drop()
        if self._wanted:
            self.attach_parts(sd_model, self._config, self._wanted)
        if self._unet is not None:
            self.attach(sd_model, self._config)

    def last_picture(self) -> str:
        """What happened to the last generation, or to the one that is being made; empty before the first."""
        picture = self._picture
        return "" if picture is None else self.read(lambda report: picture.text(report.modules))

    def drop(self) -> None:
        """Forget everything about every model. A hook in use stays."""
        for state in self.states():
            try:
                state.close()
            except Exception:
                log.warning("Fast Compile: %s couldn't be left as it was", state.engine.report.name, exc_info=True)

    def states(self) -> list[ModuleState]:
        """The compiled state of every model that is alive, UNets first."""
        return sorted(self._states.all(), key=lambda state: not isinstance(state, UnetState))

    def report(self) -> Report:
        """What happened to every model that is alive."""
        states = self.states()
        for engine in (engine for state in states for engine in state.engines()):
            engine.forget_evicted()
        return Report([report for state in states for report in state.reports()], versions() | _host_version())

    def read(self, form: Callable[[Report], T]) -> T:
        """The report in a form of its own, taken while another thread may be making a picture."""
        return read_while_counting(lambda: form(self.report()))


def _on_this(sd_model: Any, config: CompileConfig) -> CompileConfig:
    """With ``--medvram`` there are no graphs: they would hold memory where a model has made room, and be captured again
    each time.
    """
    return replace(config, cuda_graphs=False) if getattr(sd_model, "lowvram", False) else config


def _name(sd_model: Any, unet: torch.nn.Module) -> str:
    """What the report calls a UNet: the model's family, as far as the webui tells, and its class."""
    families = {"is_sdxl": "SDXL", "is_sd3": "SD3", "is_sd2": "SD2", "is_sd1": "SD1"}
    family = next((text for attribute, text in families.items() if getattr(sd_model, attribute, False) is True), "")
    return f"{family} {type(unet).__name__}".strip()


def _host_version() -> dict[str, str]:
    """What the webui calls itself at the foot of its page, found out once; none where it is built otherwise."""
    try:
        return {"webui": str(sys.modules["modules.launch_utils"].git_tag())}
    except Exception:
        return {}
