"""Whether a call that went through our node came to the model's forward, and who was in its way if it didn't."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ...engine import Engine
from ...reporting.reasons.hosts import GOES_AROUND, RUN_BY
from ..hook import Hook, HookedCall, maker_of

_KINDS = ("apply_model", "diffusion_model")
_WRAPPERS = "wrappers"  #: among the transformer options


class Reach:
    """Looks out, for the length of one call, for the model's forward and for one of its blocks.

    A block that runs without the forward is run by somebody else's code, which nothing of ours sees. Where neither
    runs, somebody has answered in the model's place, as caches do at some steps.

    Args:
        model: the diffusion model.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._arrived = self._walked = False
        block = first_block(model)
        self._hook = None if block is None else Hook(block, self._block).put()

    def _block(self, call: HookedCall) -> Any:
        self._walked = True
        return call.eager()

    def arrived(self) -> None:
        """The forward is called: from now on the model is as it was."""
        self._arrived = True
        self.leave()

    def leave(self) -> None:
        """Look out no more."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def end(self, engine: Engine, model: torch.nn.Module, options: Mapping[str, Any]) -> bool:
        """The call has returned: have it counted where it didn't come to the forward.

        Args:
            engine: the model's.
            model: the diffusion model.
            options: the call's transformer options.

        Returns:
            whether its blocks were run by somebody else.
        """
        self.leave()
        if self._arrived:
            return False
        who = ", ".join(dict.fromkeys(_in_the_way(model, options)))
        if not self._walked:
            engine.reporter.answered(who or "other code")
        elif not who and _goes_around(type(model)):
            engine.reporter.ran_eager(GOES_AROUND())
        else:
            engine.reporter.ran_eager(RUN_BY(who=who or "other code"))
        return self._walked


def first_block(model: torch.nn.Module) -> torch.nn.Module | None:
    """The first of a model's blocks that is called as a module; None where it has none."""
    for children in model.children():
        if isinstance(children, torch.nn.ModuleList) and len(children):
            block = children[0]
            while isinstance(block, torch.nn.Sequential) and len(block):  # ComfyUI's UNet calls what is in it
                block = block[0]
            return block
    return None


def _in_the_way(model: torch.nn.Module, options: Mapping[str, Any]) -> Iterator[str]:
    """Who may have kept a call from the forward: a class of its own, a method on the instance, wrappers."""
    for method in (getattr(type(model), "forward", None), model.__dict__.get("forward")):
        if method is not None and not is_hosts(method):
            yield maker_of(method)
    for kind in _KINDS:
        for key, wrappers in ((options.get(_WRAPPERS) or {}).get(kind) or {}).items():
            yield from (
                str(key) if is_hosts(wrapper) else maker_of(wrapper) for wrapper in wrappers if not _is_ours(wrapper)
            )


def _goes_around(kind: type) -> bool:
    """Whether a model's class has another ``forward`` than the one that leads to the ``_forward`` it inherits."""
    forward, inner = (
        next((base for base in kind.__mro__ if name in vars(base)), None) for name in ("forward", "_forward")
    )
    return inner is not None and forward is not inner


def is_hosts(function: Any) -> bool:
    """Whether a function is ComfyUI's own, or PyTorch's."""
    return str(getattr(function, "__module__", "")).partition(".")[0] in ("comfy", "comfy_extras", "torch")


def _is_ours(wrapper: Any) -> bool:
    return type(wrapper).__module__.startswith(__name__.rpartition(".")[0])
