"""Did the module change below a trace? Everything that steered the forward besides its arguments is compared here."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import torch

#: Layers whose forward asks nothing of the module but its tensors and sizes that its weights already tell.
_LEAVES = (torch.nn.Linear, torch.nn.modules.conv._ConvNd, torch.nn.GroupNorm, torch.nn.LayerNorm, torch.nn.Embedding)
_SKIP = frozenset({"_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks", "forward"})


class StructureGuard:
    """The structure of a module at the time of a trace.

    Holds for every module below the root: its children, an instance-level ``forward``, forward hooks, and, where the module isn't a
    plain layer, its attributes: simple ones by value, others by identity (an attention processor, say). Tensors are the weight store's
    to watch. The root's own ``forward`` and hooks are its caller's business: they run around what is traced.

    Asked at every call, so it compares tuples: about 1 ms for SDXL's 1,930 modules, while the GPU is busy with the call before.
    """

    def __init__(self, root: torch.nn.Module) -> None:
        self._forwards: list[tuple[str, dict[str, Any], Any]] = []
        self._children: list[tuple[str, dict[str, Any], tuple[Any, ...]]] = []
        self._attributes: list[tuple[str, dict[str, Any], Callable[[Any], Any], Any]] = []
        for path, module in root.named_modules():
            own = module.__dict__
            if module is not root:
                self._forwards.append((path, own, own.get("forward")))
            if isinstance(module, _LEAVES):
                continue
            self._children.append((path, module._modules, tuple(module._modules.items())))
            if names := [name for name, value in own.items() if _steers(name, value)]:
                values = itemgetter(*names)
                self._attributes.append((path, own, values, values(own)))

    def changed(self) -> str | None:
        """What changed since the trace, in words, or None."""
        for path, own, forward in self._forwards:
            if own.get("forward") is not forward:
                return f"{path}.forward was replaced"
            if own["_forward_hooks"] or own["_forward_pre_hooks"]:
                return f"{path} has forward hooks"
        for path, modules, children in self._children:
            if tuple(modules.items()) != children:
                return f"{path or 'the module'} has other children"
        for path, own, values, before in self._attributes:
            try:
                if values(own) != before:
                    return f"an attribute of {path or 'the module'} changed"
            except (KeyError, RuntimeError, ValueError):  # gone, or no longer comparable
                return f"an attribute of {path or 'the module'} is gone"
        return None


def _steers(name: str, value: Any) -> bool:
    if name == "training":
        return True
    return name not in _SKIP and not name.startswith("_") and not isinstance(value, (torch.Tensor, list, dict))
