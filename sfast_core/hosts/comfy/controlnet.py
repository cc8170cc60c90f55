"""``apply_controlnet``: a copy of a ControlNet or a T2I-Adapter whose model is compiled, with what it is chained to."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from ...config import CompileConfig
from ...machine.ahead import prepare
from ...reporting.reasons.hosts import CONTROL_LORA, OTHER_MODEL
from ..parts import Kind
from .install import watched_clone
from .parts import Part
from .proxy import ModuleProxy, behind, through

_ADAPTER = "its weights come to the GPU for this one call at each sampling: a graph would be captured anew each time"
#: The attribute with a ControlNet's model, what the report calls it, and its kind.
_MODELS = {
    "control_model": ("ControlNet", Kind()),
    "t2i_model": ("T2I-Adapter", Kind(why_no_graph=lambda args: _ADAPTER)),
}


def apply_controlnet(control_net: Any, config: CompileConfig | None = None) -> Any:
    """A copy of a ControlNet that runs through compiled forwards. The incoming one stays as it was.

    Args:
        control_net: a ``comfy.controlnet.ControlBase``.
        config: None for the defaults.

    Raises:
        TypeError: ``control_net`` is no ControlNet.
    """
    if not all(hasattr(control_net, name) for name in ("copy", "get_control", "previous_controlnet")):
        raise TypeError(f"control_net: got a {type(control_net).__name__}, needs a ComfyUI ControlNet")
    prepare()
    config = config or CompileConfig()
    fast = control_net.copy()
    if control_net.previous_controlnet is not None:
        fast.set_previous_controlnet(apply_controlnet(control_net.previous_controlnet, config))
    for attribute, (name, kind) in _MODELS.items():
        model = behind(getattr(fast, attribute, None))
        if isinstance(model, torch.nn.Module):
            patcher = getattr(fast, "control_model_wrapped", None)
            if patcher is not None:
                patcher = fast.control_model_wrapped = watched_clone(patcher)
            setattr(fast, attribute, ModuleProxy(model, partial(_parts, name, kind, patcher), config, ("__call__",)))
            return fast
    return _counted(fast, config)


def _parts(name: str, kind: Kind, patcher: Any, model: torch.nn.Module) -> Iterator[Part]:
    shown = type(model).__name__
    yield Part(model, name if shown == name else f"{name} ({shown})", model, kind, patcher)


class _LeftAlone(torch.nn.Module):
    """Stands in the report for a model, where there is none by which calls could be counted."""


def _counted(control_net: Any, config: CompileConfig) -> Any:
    """``control_net``, which runs as it was, with its calls counted in the report."""
    kind = type(control_net)
    name = "ControlNet" if kind.__name__ == "ControlNet" else f"ControlNet ({kind.__name__})"
    reason = CONTROL_LORA() if hasattr(control_net, "control_weights") else OTHER_MODEL(what="its model")

    def parts(model: torch.nn.Module) -> Iterator[Part]:
        yield Part(model, name, model, left_alone=reason)

    return _counting(control_net, ModuleProxy(_LeftAlone(), parts, config, ()))


def _counting(control_net: Any, proxy: ModuleProxy) -> Any:
    kind: Any = type(control_net)
    if not hasattr(kind, "fast_compile_proxy"):
        control_net.__class__ = _counting_class(kind)
    control_net.fast_compile_proxy = proxy
    return control_net


@functools.cache
def _counting_class(kind: Any) -> Any:
    class Counting(kind):
        """The class of a copy whose calls are counted: the host's own copies of the copy are of it too."""

        fast_compile_proxy: Any = None

        def get_control(self, *args: Any, **kwargs: Any) -> Any:
            return through(self.fast_compile_proxy, lambda: kind.get_control(self, *args, **kwargs))

        def copy(self) -> Any:
            return _counting(kind.copy(self), self.fast_compile_proxy)

    Counting.__name__, Counting.__qualname__ = kind.__name__, kind.__qualname__
    return Counting
