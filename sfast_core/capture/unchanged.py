"""Tensors that a recorded call reads and must not write to: inputs, weights, tensors from elsewhere."""

from __future__ import annotations

import weakref

import torch

from .errors import CaptureError

_SMALL = 1 << 16  # elements of a buffer that is compared with what it was


class Unchanged:
    """Notes tensors as they are, and looks again when the call is over.

    A norm in training mode writes statistics, an embedding may bound its rows: nothing in the function's name says so.
    Most such writes are counted by the tensor (``_version``). A batch norm's kernel counts none, so small buffers are
    compared with copies.
    """

    def __init__(self) -> None:
        self._versions: list[tuple[weakref.ref[torch.Tensor], int, str]] = []
        self._copies: list[tuple[weakref.ref[torch.Tensor], torch.Tensor, str]] = []

    def add(self, tensor: torch.Tensor, what: str, stays: bool = True) -> None:
        """Note a tensor. ``what`` it is, in words; a module's begins with "the weight".

        ``stays``: whether its memory is there for all of the call. Where a host brings it for a layer and may take it
        away behind that, reading it later is an illegal access, which ends the process's CUDA.
        """
        if not tensor.is_inference():
            self._versions.append((weakref.ref(tensor), tensor._version, what))
        if (
            stays
            and not isinstance(tensor, torch.nn.Parameter)
            and what.startswith("the weight")
            and tensor.numel() <= _SMALL
            and not tensor.is_meta
        ):
            with torch._C.DisableTorchFunction():
                self._copies.append((weakref.ref(tensor), tensor.detach().clone(), what))

    def renew(self, tensor: torch.Tensor) -> None:
        """A write to this tensor is known, whether or not it is one of those:
        what was noted of it holds from now on.
        """
        now: int | None = None if tensor.is_inference() else tensor._version
        for place, (other, _, what) in enumerate(self._versions):
            if now is not None and other() is tensor:
                self._versions[place] = (other, now, what)

    def check(self) -> None:
        """Compare what the tensors hold now with what they held.

        Raises:
            CaptureError: one was written to.
        """
        for ref, version, what in self._versions:
            tensor = ref()
            if tensor is not None and tensor._version != version:
                raise CaptureError(f"the call changes {what} in place")
        for ref, copy, what in self._copies:
            tensor = ref()
            if tensor is not None and not bool(
                torch.isclose(tensor.to(copy.device), copy, rtol=0, atol=0, equal_nan=True).all()
            ):
                raise CaptureError(f"the call changes {what} in place")
