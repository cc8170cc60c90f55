"""Checks of weights before they are used or laid out: that they exist, on which device, and that none reads them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..reporting.reasons.memory import NOT_THERE
from ..weights.errors import WeightsChanged, WeightsElsewhere
from ..weights.layout import Weight
from ..weights.ref import WeightRef
from ..weights.saving import tensor_at


def tensor_of(ref: WeightRef) -> torch.Tensor | None:
    """The tensor that a ref leads to, or None."""
    module = ref.owner()
    tensor = None if module is None else tensor_at(module, ref.name)
    return tensor if tensor is None or ref.part is None else ref.part.in_any(tensor)


def trainable(tensor: torch.Tensor | None) -> bool:
    """Whether gradients may be recorded for this tensor."""
    return tensor is not None and tensor.requires_grad and not tensor.is_inference()


def settle(*devices: torch.device) -> bool:
    """Wait until no stream of these devices reads weights. False within a capture, where waiting isn't allowed."""
    cuda = [device for device in devices if device.type == "cuda"]
    if cuda and torch.cuda.is_current_stream_capturing():
        return False
    for device in cuda:
        torch.cuda.synchronize(device)
    return True


def is_on(device: torch.device, ref: WeightRef) -> bool:
    """Whether the tensor that a ref leads to exists and is on this device."""
    tensor = tensor_of(ref)
    return tensor is not None and tensor.device == device


def check_weights(weights: Sequence[Weight], device: torch.device | None = None) -> None:
    """Check that no two weights are one tensor and, where a device is given, that all are on it.

    Raises as :meth:`~.any_store.Store.tensors` does.
    """
    seen: dict[int, WeightRef] = {}
    for weight in weights:
        for ref in weight.refs:
            tensor = ref.tensor()
            if device is not None and tensor.device != device:
                raise WeightsElsewhere(NOT_THERE(weight=ref, where=tensor.device, device=device))
            if (other := seen.setdefault(id(tensor), ref)) != ref:
                raise WeightsChanged(f"the weights {other} and {ref} are one tensor now")
