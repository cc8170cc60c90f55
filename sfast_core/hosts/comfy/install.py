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
from ...machine.forks import OwnLock
from ...reporting.report import Report, versions
from ..options import NAME, options_of
from ..states import States
from .events import status_of_this_node
from .gguf import with_patches_on_device
from .in_place import with_patches_in_place
from .state import HookedState, ModelState

log = logging.getLogger("fast_compile")
KEY = "fast_compile"


class FastCompileWrapper:
    """The APPLY_MODEL wrapper that the node adds. ComfyUI shares it between clones."""

    def __init__(self, config: CompileConfig, metadata: dict[str, Any] | None = None) -> None:
        self.config = config
        self.metadata = metadata
        self.status = status_of_this_node()
        self.note(None)

    def __call__(self, executor: Any, *args: Any, **kwargs: Any) -> Any:
        base_model = executor.class_obj
        model = getattr(base_model, "diffusion_model", None)
        state = state_of(base_model, self.config, lambda: ModelState(base_model, self.config))
        if not isinstance(state, ModelState) or model is None:
            return executor(*args, **kwargs)
        with self.status.watching(state.engine, options_of(args, kwargs)) if self.status else nullcontext():
            return state.through(model, args, kwargs, lambda: executor(*args, **kwargs))

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


@functools.cache
def table_lock() -> OwnLock:
    """Of the table of states."""
    return OwnLock()


def state_of(module: torch.nn.Module, config: CompileConfig, make: Callable[[], HookedState]) -> HookedState | None:
    """The state of this module under this config, made where there is none; None for a module that can't have one."""
    with table_lock().lock:
        before = _STATES.get(module)
        if before is not None and before.config == config:
            return before
        try:
            state = make()
            _STATES.put(module, state)
        except Exception as error:
            log.warning(
                "Fast Compile: a %s can't be compiled and runs as it was; please report it: %s: %s",
                type(module).__name__,
                type(error).__name__,
                error,
            )
            return None
    if before is not None:  # not under the lock: it waits for a call that may be running
        before.close()
    return state


def states() -> list[HookedState]:
    """The compiled state of every model and part that is alive."""
    with table_lock().lock:
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
    clone.add_wrapper_with_key(WrappersMP.APPLY_MODEL, KEY, FastCompileWrapper(config, metadata))
    clone.add_callback_with_key(CallbacksMP.ON_DETACH, KEY, on_detach)
    clone.add_callback_with_key(CallbacksMP.ON_PRE_RUN, KEY, on_pre_run)
    clone.add_callback_with_key(CallbacksMP.ON_CLEANUP, KEY, on_cleanup)
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
    """A clone of a patcher that tells the compiled states below its model when the host takes it off the GPU."""
    from comfy.patcher_extension import CallbacksMP

    clone = patcher.clone()
    clone.remove_callbacks_with_key(CallbacksMP.ON_DETACH, KEY)
    clone.add_callback_with_key(CallbacksMP.ON_DETACH, KEY, on_detach)
    return clone


def remove(model: Any) -> None:
    """Take our wrapper off a patcher that carries it."""
    from comfy.patcher_extension import CallbacksMP, WrappersMP

    model.remove_wrappers_with_key(WrappersMP.APPLY_MODEL, KEY)
    model.remove_callbacks_with_key(CallbacksMP.ON_DETACH, KEY)
    model.remove_callbacks_with_key(CallbacksMP.ON_PRE_RUN, KEY)
    model.remove_callbacks_with_key(CallbacksMP.ON_CLEANUP, KEY)


def on_detach(patcher: Any, unpatch_all: bool) -> None:
    """ComfyUI's callback ON_DETACH. Never raises: a host in the middle of unloading must get on with it."""
    try:
        for state in states():
            if state.base_model() is patcher.model:
                state.on_detach(unpatch_all)
    except Exception:
        log.debug("Fast Compile: on detach", exc_info=True)


def on_pre_run(patcher: Any) -> None:
    """ComfyUI's callback ON_PRE_RUN: a sampling begins, and each call of the model is to come through our wrapper.

    Never raises.
    """
    try:
        wrapper = next(iter(_wrappers_of(patcher)), None)
        base_model = patcher.model
        model = getattr(base_model, "diffusion_model", None)
        if wrapper is not None and isinstance(model, torch.nn.Module):
            state = state_of(base_model, wrapper.config, lambda: ModelState(base_model, wrapper.config))
            if isinstance(state, ModelState):
                state.expect(model, patcher.model_options.get(NAME) or {})
    except Exception:
        log.debug("Fast Compile: on pre run", exc_info=True)


def _wrappers_of(patcher: Any) -> list[FastCompileWrapper]:
    from comfy.patcher_extension import WrappersMP

    return [
        wrapper
        for wrapper in patcher.get_wrappers(WrappersMP.APPLY_MODEL, KEY)
        if isinstance(wrapper, FastCompileWrapper)
    ]


def on_cleanup(patcher: Any) -> None:
    """ComfyUI's callback ON_CLEANUP: a sampling is over. Never raises."""
    try:
        from comfy.model_management import processing_interrupted

        for wrapper in _wrappers_of(patcher):
            if wrapper.status is not None:
                wrapper.status.end(interrupted=processing_interrupted())
            state = _STATES.get(patcher.model)
            wrapper.note(state if isinstance(state, ModelState) else None)
        for state in states():  # ControlNets, too
            state.after_sampling()
    except Exception:
        log.debug("Fast Compile: on cleanup", exc_info=True)
