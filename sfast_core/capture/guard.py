"""Did the module change below a trace? Everything that steered the forward besides its arguments is compared here."""

from __future__ import annotations

from typing import Any

import torch

_SIMPLE = (bool, int, float, str, type(None), tuple)
_LEAVES = (torch.nn.Linear, torch.nn.modules.conv._ConvNd, torch.nn.GroupNorm, torch.nn.LayerNorm, torch.nn.Embedding)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_SKIP = frozenset({"_parameters", "_buffers", "_modules", *_HOOKS})


class StructureGuard:
    """The structure of a module at the time of a trace.

    Holds for every module below the root: its children, an instance-level ``forward``, forward hooks, ``training``, and, where the
    module isn't a plain layer, its attributes: simple ones by value, others by identity (an attention processor, say). Tensors
    are the weight store's to watch. The root's own ``forward`` and hooks are its caller's business: they run around what is traced.
    """

    def __init__(self, root: torch.nn.Module) -> None:
        self._children = [(path, module._modules, tuple(module._modules.items())) for path, module in root.named_modules()]
        self._dicts = [(path, module.__dict__, self._attributes(module, module is root)) for path, module in root.named_modules()]

    @staticmethod
    def _attributes(module: torch.nn.Module, is_root: bool) -> tuple[tuple[str, Any], ...]:
        own = module.__dict__
        watched: list[tuple[str, Any]] = [("training", own["training"])]
        if not is_root:
            watched.append(("forward", own.get("forward")))
        if not isinstance(module, _LEAVES):
            for name, value in own.items():
                if (
                    name not in _SKIP
                    and name != "forward"
                    and not name.startswith("_")
                    and not isinstance(value, (torch.Tensor, list, dict))
                ):
                    watched.append((name, value))
        return tuple(watched)

    def changed(self) -> str | None:
        """What changed since the trace, in words, or None."""
        for path, modules, before in self._children:
            if len(modules) != len(before):
                return f"{path or 'the module'} has other children"
            for name, child in before:
                if modules.get(name) is not child:
                    return f"{path}.{name} was replaced"
        for path, own, attributes in self._dicts:
            if path and (own["_forward_hooks"] or own["_forward_pre_hooks"]):
                return f"{path} has forward hooks"
            for name, value in attributes:
                now = own.get(name)
                if now is not value and not (isinstance(value, _SIMPLE) and type(now) is type(value) and now == value):
                    return f"{path}.{name} changed"
        return None
