"""What an impl needs of the machine and of a call, as a table: the reasons against it are made from that."""

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
    """Each of these but the last is looked at before the impl's own ``why_not``, which is for what a table can't say.

    Args:
        capability: the least compute capability.
        alone: that one and no other.
        triton: Triton compiles for the device.
        allowed: libraries that PyTorch may use, named as :mod:`..machine.numerics` does: what it mayn't, nobody does in
            its place.
        dtypes: what :attr:`typed` may be; None: anything.
        typed: the names of the tensors of these dtypes.
        alike: the names of tensors that have x's dtype, where they are there.
        dims: how many dimensions x has; None: any number.
        extension: the function of the CUDA extension that says whether it runs on the device.
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
        """The same with others in the place of some."""
        return replace(self, **changed)

    def why_not(self, target: Target, call: Mapping[str, Any]) -> str | None:
        """The first reason against a call with these arguments, or None. The extension is not asked yet."""
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


#: wgmma is in no GPU before or after.
HOPPER = Needs(capability=(9, 0), alone=True)
