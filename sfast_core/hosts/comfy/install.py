"""Puts a compiled forward under a ComfyUI model for the length of each call, and takes it off again."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ...capture import CaptureError, snapshot
from ...config import CompileConfig
from ...engine import Engine, Forward
from ...report import Report, versions
from .leaves import casting_leaves
from .options import steering_options

KEY = "fast_compile"
_POSITIONAL_OPTIONS = 5  # UNetModel._forward and its likes: x, timesteps, context, y, control, transformer_options


class ModelState:
    """The compiled state of one BaseModel. Lives as long as that does; the registry below holds it by a weak key."""

    def __init__(self, base_model: torch.nn.Module, config: CompileConfig) -> None:
        model: torch.nn.Module = base_model.diffusion_model  # type: ignore[assignment]
        self.config = config
        self.engine = Engine(model, type(base_model).__name__, config, casting_leaves)
        self._attribute = "_forward" if hasattr(type(model), "_forward") else "forward"
        self._active = False
        self._watch: Any = None

    @contextmanager
    def installed(self, model: torch.nn.Module) -> Iterator[None]:
        """For this call, let ``model`` compute its forward by the engine."""
        if self._active:  # a wrapper below ours calls the model again: it is in place already
            yield
            return
        original: Forward = getattr(model, self._attribute)
        own = self._attribute in model.__dict__
        if self._watch is None:
            self._watch = model.register_forward_pre_hook(self._restore_for_others)

        def forward(*args: Any, **kwargs: Any) -> Any:
            return self._call(model, original, args, kwargs)

        model.__dict__[self._attribute] = forward
        self._active = True
        try:
            yield
        finally:
            self._active = False
            if own:
                model.__dict__[self._attribute] = original
            else:
                model.__dict__.pop(self._attribute, None)

    def _call(self, model: torch.nn.Module, original: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        _stop_if_interrupted()
        try:
            fast_args, fast_kwargs = _steering(args, kwargs)
        except CaptureError as error:
            return self.engine.run_eager(str(error), lambda: original(*args, **kwargs))
        return self.engine.call(model, original, fast_args, fast_kwargs, lambda: original(*args, **kwargs))

    def _restore_for_others(self, module: torch.nn.Module, args: Any) -> None:
        """Somebody runs the model without our node: give it the very weights that it had, and our graphs' memory."""
        if not self._active and self._watch is not None:
            self._watch.remove()
            self._watch = None
            self.engine.restore()

    def on_detach(self, unload: bool) -> None:
        """The host takes the model off the GPU (``unload``), or only this patcher off the model."""
        if unload:
            self.engine.release_graphs()


class FastCompileWrapper:
    """The APPLY_MODEL wrapper that the node adds. ComfyUI shares it between clones."""

    def __init__(self, config: CompileConfig) -> None:
        self.config = config

    def __call__(self, executor: Any, *args: Any, **kwargs: Any) -> Any:
        base_model = executor.class_obj
        state = _state(base_model, self.config)
        with state.installed(base_model.diffusion_model):
            return executor(*args, **kwargs)


#: One state per BaseModel, whatever number of nodes and clones lead to it; gone with the model.
_STATES: weakref.WeakKeyDictionary[Any, ModelState] = weakref.WeakKeyDictionary()


def _state(base_model: Any, config: CompileConfig) -> ModelState:
    state = _STATES.get(base_model)
    if state is None or state.config != config:
        if state is not None:
            state.engine.restore()
        state = _STATES[base_model] = ModelState(base_model, config)
    return state


def states() -> list[ModelState]:
    """The compiled state of every model that is alive."""
    return list(_STATES.values())


def report() -> Report:
    """What happened to every model that is alive."""
    return Report([state.engine.report for state in states()], versions())


def apply(model: Any, config: CompileConfig | None = None) -> Any:
    """A clone of a ModelPatcher that samples through the compiled forward. The incoming patcher stays as it was.

    Args:
        model: a ``comfy.model_patcher.ModelPatcher``.
        config: None for the defaults.

    Raises:
        TypeError: ``model`` is no ModelPatcher, or this ComfyUI has no wrappers.
    """
    if not hasattr(model, "add_wrapper_with_key") or not hasattr(model, "clone"):
        raise TypeError(f"apply(model): got a {type(model).__name__}, needs a ComfyUI model (ComfyUI 0.3.64 or newer)")
    from comfy.patcher_extension import CallbacksMP, WrappersMP

    clone = model.clone()
    remove(clone)
    clone.add_wrapper_with_key(WrappersMP.APPLY_MODEL, KEY, FastCompileWrapper(config or CompileConfig()))
    clone.add_callback_with_key(CallbacksMP.ON_DETACH, KEY, _on_detach)
    return clone


def remove(model: Any) -> None:
    """Take our wrapper off a patcher that carries it."""
    from comfy.patcher_extension import CallbacksMP, WrappersMP

    model.remove_wrappers_with_key(WrappersMP.APPLY_MODEL, KEY)
    model.remove_callbacks_with_key(CallbacksMP.ON_DETACH, KEY)


def _on_detach(patcher: Any, unpatch_all: bool) -> None:
    state = _STATES.get(patcher.model)
    if state is not None:
        state.on_detach(unpatch_all)


def _steering(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call's arguments as a trace may see them: own containers (forwards pop ``control`` empty), options that steer."""
    args, kwargs = snapshot(args), snapshot(kwargs)
    if "transformer_options" in kwargs:
        kwargs["transformer_options"] = steering_options(kwargs["transformer_options"])
    elif len(args) > _POSITIONAL_OPTIONS and isinstance(args[-1], dict):
        args = (*args[:-1], steering_options(args[-1]))
    return args, kwargs


def _stop_if_interrupted() -> None:
    """The host looks for the user's Cancel inside each layer; a replay has no layers."""
    import comfy.model_management

    comfy.model_management.throw_exception_if_processing_interrupted()
