"""Mixtures of experts: layers of which each token goes through a few, chosen by its own values.

How many rows an expert gets depends on values, so no record can hold what such a module does. What it means can be
said without: each expert sees all rows, and :func:`mixture` takes of each row what its experts gave. A pass makes
products of the chosen rows of that again, in memory of a fixed size.

The module runs as it is, and its result is the recorded call's; that the meaning agrees with it is looked at there.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from ..weights.part import has_parts, parts_of

_ROUNDINGS = 2.0  #: of the module's dtype, by which two orders of summing differ at most
_LEAST = 1e-5
_BEARABLE = 2  #: times the products of the chosen experts
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def mixture(indices: torch.Tensor, scores: torch.Tensor, outputs: list[torch.Tensor]) -> torch.Tensor:
    """``y[t] = sum over k of scores[t, k] * outputs[indices[t, k]][t]``.

    Args:
        indices: (T, K), integers.
        scores: (T, K).
        outputs: what each expert makes of all rows, (T, D).

    Returns:
        (T, D) in outputs' dtype.
    """
    rows = torch.arange(indices.shape[0], device=indices.device)[:, None]
    picked = torch.stack(list(outputs))[indices, rows]
    return (picked * scores.unsqueeze(-1)).sum(1).to(outputs[0].dtype)


def is_mixture(module: torch.nn.Module) -> bool:
    """Whether a module has the parts of one: experts, and a gate that says which, and how much of each."""
    children = module._modules
    if not isinstance(children, dict):  # TorchScript's, which has another table
        return False
    experts, gate = children.get("experts"), children.get("gate")
    return (
        isinstance(experts, torch.nn.ModuleList)
        and len(experts) > 1
        and len({type(expert) for expert in experts}) == 1
        and gate is not None
        and set(children) <= {"experts", "gate", "shared_experts"}
        and not module.training
    )


def why_live(module: torch.nn.Module) -> str | None:
    """Why such a module is to run as it is at each call, between graphs, or None.

    Without a kernel for the chosen rows all experts compute all of them.
    """
    experts: Any = module._modules["experts"]
    chosen = getattr(module._modules["gate"], "top_k", 1)
    if len(experts) <= _BEARABLE * chosen:
        return None
    weights = list(experts.parameters())
    if any(_is_foreign(weight) for weight in weights) or any(not weight.dim() for weight in weights):
        return "each token goes through experts of its own, whose weights are quantised in a way that has no kernel"
    if any(weight.is_cuda for weight in weights) and importlib.util.find_spec("triton") is None:
        return "each token goes through experts of its own, and Triton is not installed"
    return None


def _is_foreign(weight: torch.Tensor) -> bool:
    """Whether a weight is neither plain nor numbers of 8 bits with one scale or one for each row.

    A scale beside the weights, of an expert's input, has no dimension: experts that quantise the same rows each in its
    own way have no kernel either.
    """
    parts = [part for _, part in parts_of(weight)] if has_parts(weight) else [weight]
    if weight.is_cuda and any(part.dtype in _FLOAT8 for part in parts) and not _multiplies_float8(weight.device):
        return True
    if parts[0] is weight:
        return weight.itemsize == 1 and weight.dtype not in _FLOAT8
    numbers = [part for part in parts if part.dtype in (torch.int8, *_FLOAT8)]
    scales = [part for part in parts if part.dtype == torch.float32 and part.numel() in (1, weight.shape[0])]
    return [part.shape for part in numbers] != [weight.shape] or len(scales) != 1 or len(parts) != 2


def _multiplies_float8(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (8, 9)


class Routed:
    """What a recorder does at a mixture's call.

    Args:
        recorder: of the call.
        out_of_sight: keeps it from seeing torch's functions for a while.
    """

    def __init__(self, recorder: Any, out_of_sight: Callable[[Any], AbstractContextManager[None]]) -> None:
        self._recorder, self._out_of_sight = recorder, out_of_sight

    def __call__(
        self, module: torch.nn.Module, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The module's own result, for which the graph has the meaning; if that is another the recording ends."""
        recorder = self._recorder
        if not recorder.writes_down:
            return call(*args, **kwargs)
        with self._out_of_sight(recorder):
            theirs = call(*args, **kwargs)
        if len(args) != 1 or kwargs or not isinstance(args[0], torch.Tensor):
            recorder.refuse(f"a {type(module).__name__} is called with other arguments than its rows")
            return theirs
        try:
            ours = _meaning(recorder, module, args[0])
        except Exception:  # the module has gone well: its parts are asked otherwise than they are made for
            ours = None
        if ours is None or recorder.failure:
            recorder.refuse(f"the gate of a {type(module).__name__} says otherwise which experts are chosen")
            return theirs
        with recorder.paused():
            if not _agree(ours, theirs):
                recorder.refuse(f"a {type(module).__name__} is no sum of its experts by its gate")
            else:
                recorder.stands_for(theirs, ours)
        return theirs


def _meaning(recorder: Any, module: Any, x: torch.Tensor) -> torch.Tensor | None:
    chosen = module.gate(x)
    if not isinstance(chosen, tuple) or len(chosen) < 2:
        return None
    indices, scores = chosen[:2]
    rows = x.reshape(-1, x.shape[-1])
    if not _is_choice(indices, scores, rows):
        return None
    outputs = [expert(rows) for expert in module.experts]
    y: torch.Tensor = recorder.run(mixture, indices, scores, outputs)
    y = y.reshape(x.shape)
    return y + module.shared_experts(x) if "shared_experts" in module._modules else y


def _is_choice(indices: Any, scores: Any, rows: torch.Tensor) -> bool:
    return (
        isinstance(indices, torch.Tensor)
        and isinstance(scores, torch.Tensor)
        and indices.dtype == torch.int64
        and scores.is_floating_point()
        and indices.shape == scores.shape
        and indices.dim() == 2
        and indices.shape[0] == rows.shape[0]
    )


def _agree(ours: torch.Tensor, theirs: Any) -> bool:
    if not isinstance(theirs, torch.Tensor) or (ours.shape, ours.dtype, ours.stride()) != (
        theirs.shape,
        theirs.dtype,
        theirs.stride(),
    ):
        return False
    mine, other = ours.float(), theirs.float()
    allowed = max(_ROUNDINGS * torch.finfo(theirs.dtype).eps, _LEAST)
    return bool((mine - other).norm() <= allowed * other.norm())
