"""What an impl needs of the machine and of a call, as a table, from which the reasons against it are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..native import load
from ..target import Target

HALVES = (torch.float16, torch.bfloat16)
FLOATS = (*HALVES, torch.float32)


@dataclass(frozen=True)
class Needs:
    """What an impl needs. All but ``extension`` is checked before the impl's own ``why_not``.

    Args:
        capability: the least compute capability.
        alone: that compute capability and no other.
        triton: Triton, for this device.
        allowed: libraries that PyTorch's settings must allow, by their names in :mod:`..machine.numerics`.
        dtypes: the dtypes of the tensors named by ``typed``. None: any.
        typed: the names of these tensors.
        alike: the names of the tensors that must have x's dtype, if they are given.
        dims: the number of x's dimensions. None: any.
        extension: the function of the CUDA extension that tells whether it runs on the device.
    """

    capability: tuple[int, int] = (0, 0)
    alone: bool = False
    triton: bool = False
    allowed: tuple[str, ...] = ()
    dtypes: tuple[torch.dtype, ...] | None = None
    typed: str = "x"
    alike: str = ""
    dims: int | None = None
    extension: str | None = None

    def of(self, **changed: Any) -> Needs:
        """The same needs with some of them changed."""
        return replace(self, **changed)

    def why_not(self, target: Target, call: Mapping[str, Any]) -> str | None:
        """The first reason against a call with these arguments, or None. The extension isn't asked."""
        return self._why_not_device(target) or self._why_not_dtypes(call) or self._why_not_dims(call)

    def why_no_extension(self, target: Target) -> str | None:
        """Why the extension doesn't run on ``target``, or None."""
        return None if self.extension is None else load.why_not(target.device, self.extension)

    def _why_not_device(self, target: Target) -> str | None:
        if not target.is_cuda:
            return "needs CUDA"
        least = max(self.capability, (8, 0)) if self.triton else self.capability
        if target.capability < least:
            return f"needs compute capability {_dotted(least)}, this is {_dotted(target.capability)}"
        if self.alone and target.capability != least:
            return f"is for compute capability {_dotted(least)}, this is {_dotted(target.capability)}"
        if self.triton and not target.triton:
            return "needs Triton"
        off = next((name for name in self.allowed if name in target.numerics.switched_off), None)
        return f"{off} is switched off in PyTorch" if off else None

    def _why_not_dtypes(self, call: Mapping[str, Any]) -> str | None:
        dtypes = self.dtypes or ()
        for name in self.typed.split() if dtypes else ():
            if call[name] is not None and call[name].dtype not in dtypes:
                return f"{name} is {dtype_name(call[name].dtype)}, must be {' or '.join(map(dtype_name, dtypes))}"
        for name in self.alike.split():
            if call[name] is not None and call[name].dtype != call["x"].dtype:
                return f"{name} is {dtype_name(call[name].dtype)}, x is {dtype_name(call['x'].dtype)}"
        return None

    def _why_not_dims(self, call: Mapping[str, Any]) -> str | None:
        if self.dims is None or call["x"].dim() == self.dims:
            return None
        return f"x is {call['x'].dim()}-D, must be {self.dims}-D"


def dtype_name(dtype: torch.dtype) -> str:
    """``float16`` of ``torch.float16``."""
    return str(dtype).removeprefix("torch.")


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


#: Only this generation has the instruction wgmma.
HOPPER = Needs(capability=(9, 0), alone=True)
