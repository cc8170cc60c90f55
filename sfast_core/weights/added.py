"""LoRAs that a loader keeps beside a weight in blocks and adds to its values at each call. Here they are three tensors,
so that another LoRA is only other values.

ComfyUI-GGUF leaves a patched weight's blocks alone and puts ComfyUI's patches on the tensor: ``[(patches, key), ...]``,
each patch ``(strength, adapter, strength of the weight, place in it, function)``. An adapter of a plain LoRA has its
matrices in ``weights``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from .blocks import bytes_of, shape_of
from .errors import WeightsChanged

_PATCHES, _KNOWN = "patches", "_fast_compile_added"
_RANKS = 16  #: zeros fill each LoRA's ranks up to a multiple of this, and all ranks together to a power of two


class Added(NamedTuple):
    """What is added to a weight (N, K): ``up @ (factors * down)``, in float32.

    Attributes:
        up: (N, R).
        down: (R, K), in the dtype of ``up``.
        factors: (R,) float32: the same for each ``GROUP`` of ranks.
    """

    up: torch.Tensor
    down: torch.Tensor
    factors: torch.Tensor


class _Lora(NamedTuple):
    up: torch.Tensor
    down: torch.Tensor
    factor: float
    place: tuple[int, int, int] | None  #: of both, in the weight: dimension, start, length


def is_added(whole: Any) -> bool:
    """Whether a loader adds something to a weight at each call."""
    return isinstance(whole, torch.Tensor) and bool(vars(whole).get(_PATCHES))


def added_to(whole: torch.Tensor) -> Added | None:
    """What is added to a weight, on its device. None where nothing is, or something else than plain LoRAs.

    It stays the same object as long as the same is added. Nothing is kept on the weight when nothing is added any more.
    """
    own = vars(whole)
    patches, known = own.get(_PATCHES), own.get(_KNOWN)
    if known is not None and (known[0] is patches or known[1] == _token(patches)):
        found: Added | None = known[2]
        return found
    if known is not None:
        del own[_KNOWN]
    if not patches:
        return None
    loras = _loras(patches)
    added = None if loras is None else _joined(loras, shape_of(whole), bytes_of(whole).device)
    own[_KNOWN] = patches, _token(patches), added
    return added


def part_of_added(name: str, whole: torch.Tensor) -> torch.Tensor:
    """One of the three tensors.

    Raises:
        WeightsChanged: nothing is added any more, or something that isn't known.
    """
    added = added_to(whole)
    if added is None:
        raise WeightsChanged("other things than LoRAs are added to a weight now, or nothing")
    tensor: torch.Tensor = getattr(added, name)
    return tensor


def form_of(whole: Any) -> Any:
    """What a trace depends on: the number of ranks and the dtype, or else only whether something is added."""
    added = added_to(whole) if isinstance(whole, torch.Tensor) else None
    return is_added(whole) if added is None else (added.down.shape[0], added.down.dtype)


def _token(patches: Any) -> Any:
    """Identifies these patches. The objects are kept with it, so that no other can have their ids."""
    return [(each[0], id(each[1]), each[1], *each[2:]) for found, _ in patches or () for each in found]


def _loras(patches: Any) -> list[_Lora] | None:
    found = [_lora(*each) for patch, _ in patches for each in patch]
    return None if None in found else [each for each in found if each is not None]


def _lora(
    strength: float, adapter: Any, of_weight: float, place: Any = None, function: Any = None, *_: Any
) -> _Lora | None:
    """One of ComfyUI's patches as a LoRA, if it is one of two matrices and nothing more."""
    if isinstance(adapter, tuple) and len(adapter) == 2 and adapter[0] == "lora":  # older versions
        name, weights = adapter
    else:
        name, weights = getattr(adapter, "name", None), getattr(adapter, "weights", None)
    if name != "lora" or not isinstance(weights, tuple) or len(weights) < 4 or of_weight != 1.0 or function is not None:
        return None
    up, down, alpha, *rest = weights
    if any(each is not None for each in rest) or not (isinstance(up, torch.Tensor) and isinstance(down, torch.Tensor)):
        return None
    up, down = up.flatten(1), down.flatten(1)
    if up.shape[1] != down.shape[0] or not (up.is_floating_point() and down.is_floating_point()):
        return None
    return _Lora(
        up,
        down,
        float(strength) * (1.0 if alpha is None else float(alpha) / down.shape[0]),
        None if place is None else tuple(place),
    )


def _joined(loras: list[_Lora], shape: tuple[int, ...], device: torch.device) -> Added | None:
    rows, columns = shape[0], math.prod(shape[1:])
    dtypes = {each.dtype for lora in loras for each in (lora.up, lora.down)}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
    widths = [-(-lora.up.shape[1] // _RANKS) * _RANKS for lora in loras]
    ranks = max(2 * _RANKS, 1 << (sum(widths) - 1).bit_length())
    with torch.inference_mode(False), torch.no_grad(), torch._C.DisableTorchFunction():
        up, down = (torch.zeros(size, dtype=dtype, device=device) for size in ((rows, ranks), (ranks, columns)))
        factors, start = torch.zeros(ranks), 0
        for lora, width in zip(loras, widths, strict=True):
            of_up, of_down = up[:, start : start + lora.up.shape[1]], down[start : start + lora.down.shape[0]]
            if lora.place is not None:
                of_up, of_down = _at(lora.place, of_up, of_down)
            if of_up.shape != lora.up.shape or of_down.shape != lora.down.shape:
                return None
            of_up.copy_(lora.up), of_down.copy_(lora.down)
            factors[start : start + width] = lora.factor
            start += width
        return Added(up, down, factors.to(device))


def _at(place: tuple[int, int, int], up: torch.Tensor, down: torch.Tensor) -> Iterator[torch.Tensor]:
    """The parts of both matrices that belong to a part of the weight."""
    dim, start, length = place
    yield up.narrow(0, start, length) if dim == 0 else up
    yield down.narrow(1, start, length) if dim == 1 else down
