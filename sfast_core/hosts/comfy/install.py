"""``apply``: a clone of a ComfyUI model patcher that samples through the compiled forward.

And which module has what compiled state.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from ...config import CompileConfig
from ...machine.ahead import prepare
from ...reporting.report import Report, versions
from ..options import NAME, options_of
from ..states import States, state_under
from .events import status_of_this_node
from .gguf import with_patches_on_device
from .in_place import with_patches_in_place
from .state import HookedState, ModelState
from .uploads import Uploads

log = logging.getLogger("fast_compile")
KEY = "fast_compile"


class FastCompileWrapper:
    """The APPLY_MODEL wrapper that the node adds. ComfyUI shares it between clones."""

    def __init__(self, config: CompileConfig, metadata: dict[str, Any] | None = None) -> None:
        self.config = config
        self.metadata = metadata
        self.status = status_of_this_node()
        self._uploads = Uploads()
        self.note(None)

    def __call__(self, executor: Any, *args: Any, **kwargs: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            return self.through(executor.class_obj, args, kwargs, lambda: executor(*args, **kwargs))

        return self._uploads.through(args, kwargs, call)

    def through(self, base_model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], call: Callable[[], Any]) -> Any:
        """What ``call`` returns, which leads to the forward of ``base_model``'s diffusion model with these arguments of
        ``apply_model``.
        """
        model = getattr(base_model, "diffusion_model", None)
        state = state_of(base_model, self.config, lambda: ModelState(base_model, self.config))
        if not isinstance(state, ModelState) or model is None:
            return call()
        with self.status.watching(state.engine, options_of(args, kwargs)) if self.status else nullcontext():
            return state.through(model, args, kwargs, call)

    def note(self, state: ModelState | None) -> None:
        """Write into the metadata of the prompt's pictures which quality is set and, where there is a state, what was
        done for it.
        """
        if self.metadata is not None:
            reports = [] if state is None else state.reports()
            done = [clause for report in reports for signature in report.signatures for clause in signature.lossy]
            self.metadata[KEY] = {"quality": self.config.quality, "done": list(dict.fromkeys(done))}


#: One state per BaseModel, and per part of other objects, whatever number of nodes and clones lead to it; gone with the
#: module.
_STATES: States[HookedState] = States()


def state_of(module: torch.nn.Module, config: CompileConfig, make: Callable[[], HookedState]) -> HookedState | None:
    """The state of this module under this config, made where there is none; None for a module that can't have one."""
    try:
        return state_under(_STATES, module, config, make)
    except Exception as error:
        log.warning(
            "Fast Compile: a %s can't be compiled and runs as it was; please report it: %s: %s",
            type(module).__name__,
            type(error).__name__,
            error,
        )
        return None


def states() -> list[HookedState]:
    """The compiled state of every model and part that is alive."""
    return _STATES.all()


def report(of: Sequence[HookedState] | None = None) -> Report:
    """What happened to the models of these states; None: to every model that is alive."""
    found = states() if of is None else of
    for state in found:
        for engine in state.engines():
            engine.forget_evicted()
    return Report([report for state in found for report in state.reports()], versions() | _host_version())


def _host_version() -> dict[str, str]:
    version = getattr(sys.modules.get("comfyui_version"), "__version__", None)
    return {} if version is None else {"comfyui": str(version)}


def apply(model: Any, config: CompileConfig | None = None, metadata: dict[str, Any] | None = None) -> Any:
    """A clone of a ModelPatcher that samples through the compiled forward. The incoming patcher stays as it was.

    Args:
        model: a ``comfy.model_patcher.ModelPatcher``.
        config: None for the defaults.
        metadata: of the prompt's pictures, which is told what isn't exact.

    Raises:
        TypeError: ``model`` is no ModelPatcher, or this ComfyUI has no wrappers.
    """
    if not hasattr(model, "add_wrapper_with_key") or not hasattr(model, "clone"):
        raise TypeError(f"apply(model): got a {type(model).__name__}, needs a ComfyUI model (ComfyUI 0.3.64 or newer)")
    from comfy.patcher_extension import CallbacksMP, WrappersMP

    prepare()
    clone = with_patches_on_device(with_patches_in_place(model.clone()))
    config = config or CompileConfig()
    if config.devices is None:  # a node before this one may have named some
        config = config.replace(devices=next((wrapper.config.devices for wrapper in _wrappers_of(clone)), None))
    remove(clone)
    wrapper = FastCompileWrapper(config, metadata)
    clone.add_wrapper_with_key(WrappersMP.APPLY_MODEL, KEY, wrapper)
    _watch(clone)
    # these hold it, since a node behind this one may put wrappers of its own in the place of all others
    clone.add_callback_with_key(CallbacksMP.ON_PRE_RUN, KEY, functools.partial(on_pre_run, wrapper))
    clone.add_callback_with_key(CallbacksMP.ON_CLEANUP, KEY, functools.partial(on_cleanup, wrapper))
    return clone


def apply_devices(model: Any, devices: str | int | Sequence[str]) -> Any:
    """A clone of a ModelPatcher that computes batches on several GPUs: compiled as it was, or by the defaults where it
    wasn't.

    Args:
        model: a ``comfy.model_patcher.ModelPatcher``.
        devices: as :class:`CompileConfig` has it.

    Raises:
        TypeError: as :func:`apply`.
        ValueError: there are no such devices.
    """
    before = next(iter(_wrappers_of(model)), None) if hasattr(model, "get_wrappers") else None
    config = before.config if before is not None else CompileConfig()
    return apply(model, config.replace(devices=devices), before.metadata if before is not None else None)


def watched_clone(patcher: Any) -> Any:
    """A clone of a patcher that tells the compiled states below its model when the host brings it and when it takes it
    off the GPU.
    """
    clone = patcher.clone()
    _watch(clone)
    return clone


def _watch(patcher: Any) -> None:
    from comfy.patcher_extension import CallbacksMP

    for kind, callback in ((CallbacksMP.ON_LOAD, on_load), (CallbacksMP.ON_DETACH, on_detach)):
        patcher.remove_callbacks_with_key(kind, KEY)
        patcher.add_callback_with_key(kind, KEY, callback)


def remove(model: Any) -> None:
    """Take our wrapper off a patcher that carries it."""
    from comfy.patcher_extension import CallbacksMP, WrappersMP

    model.remove_wrappers_with_key(WrappersMP.APPLY_MODEL, KEY)
    for kind in (CallbacksMP.ON_LOAD, CallbacksMP.ON_DETACH, CallbacksMP.ON_PRE_RUN, CallbacksMP.ON_CLEANUP):
        model.remove_callbacks_with_key(kind, KEY)


def on_load(patcher: Any, *_: Any) -> None:
    """ComfyUI's callback ON_LOAD: a sampling, prompts or pictures are next. Never raises."""
    try:
        for state in _states_of(patcher):
            state.on_load()
    except Exception:
        log.debug("Fast Compile: on load", exc_info=True)


def on_detach(patcher: Any, unpatch_all: bool) -> None:
    """ComfyUI's callback ON_DETACH. Never raises: a host in the middle of unloading must get on with it."""
    try:
        for state in _states_of(patcher):
            state.on_detach(unpatch_all)
    except Exception:
        log.debug("Fast Compile: on detach", exc_info=True)


def _states_of(patcher: Any) -> list[HookedState]:
    return [state for state in states() if state.base_model() is patcher.model]


def on_pre_run(wrapper: FastCompileWrapper, patcher: Any) -> None:
    """ComfyUI's callback ON_PRE_RUN: a sampling begins, and each call of the model is to come through our wrapper.

    Never raises.
    """
    try:
        base_model = patcher.model
        model = getattr(base_model, "diffusion_model", None)
        if isinstance(model, torch.nn.Module):
            state = state_of(base_model, wrapper.config, lambda: ModelState(base_model, wrapper.config))
            if isinstance(state, ModelState):
                state.expect(model, patcher.model_options.get(NAME) or {}, wrapper.through)
    except Exception:
        log.debug("Fast Compile: on pre run", exc_info=True)


def _wrappers_of(patcher: Any) -> list[FastCompileWrapper]:
    from comfy.patcher_extension import WrappersMP

    return [
        wrapper
        for wrapper in patcher.get_wrappers(WrappersMP.APPLY_MODEL, KEY)
        if isinstance(wrapper, FastCompileWrapper)
    ]


def on_cleanup(wrapper: FastCompileWrapper, patcher: Any) -> None:
    """ComfyUI's callback ON_CLEANUP: a sampling is over. Never raises."""
    try:
        from comfy.model_management import processing_interrupted

        if wrapper.status is not None:
            wrapper.status.end(interrupted=processing_interrupted())
        state = _STATES.get(patcher.model)
        wrapper.note(state if isinstance(state, ModelState) else None)
        for state in states():  # ControlNets, too
            state.after_sampling()
    except Exception:
        log.debug("Fast Compile: on cleanup", exc_info=True)
