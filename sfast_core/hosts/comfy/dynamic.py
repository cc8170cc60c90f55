"""Weights under ComfyUI's dynamic VRAM: nothing is adopted, everything is asked for again at each call.

Where they lie is said by :mod:`.page`. A captured graph may read pages while all are resident and filled: the whole range is faulted in and
pinned for the length of a call (61 us, against 1 ms module by module), and filled again by the host's own function where pages were evicted or
the LoRA changed.

The signature of pages and the calls for the range are comfy-aimdo's own interface: where they are missing the model runs as it was.
"""

from __future__ import annotations

import itertools
import operator
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from ...reasons import MAIN_MEMORY, NOT_THERE, PAGES_MOVED, UNKNOWN_VRAM
from ...weights import PLAIN, Bound, Layouts, Weight, WeightsElsewhere
from .page import Page


class DynamicStore:
    """The weight store of one BaseModel that a dynamic patcher loads. The same calls as ``weights.WeightStore``."""

    adopted_bytes = 0
    lock: AbstractContextManager[Any] = nullcontext()

    def __init__(self, base_model: torch.nn.Module) -> None:
        self._base_model = weakref.ref(base_model)
        self._filled: Any = None  # the page signature and the patches that the range was last filled for
        self._page = Page()
        self._layouts: Layouts = {PLAIN: self._page}

    def may_pack(self, weight: Weight) -> bool:
        """Whether it is as it lies: the addresses are the host's."""
        return weight.layout in self._layouts

    def plain(self) -> AbstractContextManager[None]:
        """Nothing was laid out anew."""
        return nullcontext()

    def renew(self) -> None:
        """There are no locks."""

    def lay_again(self, device: torch.device) -> None:
        """Nothing is laid out otherwise here."""

    def lay_plain(self) -> None:
        """Nothing was laid out anew."""

    def leave_to_autograd(self) -> None:
        """Nothing was laid out anew."""

    def restore(self) -> int:
        """Nothing was adopted; forget the copies."""
        self._page.forget()
        self._filled = None
        return 0

    @contextmanager
    def pinned(self, device: torch.device) -> Iterator[None]:
        """Hold every page for the length of a call, filled with the weights that the model has now.

        Raises:
            WeightsElsewhere: not all of the model fits, or this version of dynamic VRAM is another one.
        """
        base_model = self._base_model()
        vbar = getattr(base_model, "dynamic_vbars", {}).get(device)
        if base_model is None or vbar is None or not all(hasattr(vbar, name) for name in ("fault", "unpin", "base_addr", "offset")):
            raise WeightsElsewhere(UNKNOWN_VRAM())
        with _faulted(vbar) as pages:
            if (pages, base_model.current_weight_patches_uuid) == self._filled:
                yield
                return
            self._fill(base_model, device)
        with _faulted(vbar) as again:  # filling unpins each module
            if again != pages:
                raise WeightsElsewhere(PAGES_MOVED())
            self._filled = (pages, base_model.current_weight_patches_uuid)
            yield

    def tensors(self, weights: Sequence[Weight], device: torch.device) -> list[torch.Tensor]:
        """The tensors for ``weights`` at addresses that stay. Inside :meth:`pinned` only."""
        tensors = [self._layouts[weight.layout].laid(weight.refs) for weight in weights]
        for weight, tensor in zip(weights, tensors, strict=True):
            if tensor is None or tensor.device != device:
                raise WeightsElsewhere(NOT_THERE(weight=weight, where=tensor and tensor.device, device=device))
        return tensors  # type: ignore[return-value]

    def bind(self, weights: Sequence[Weight], tensors: list[torch.Tensor]) -> Bound:
        """Remember where the tensors lie, and what they were made from. It is to be asked inside :meth:`pinned` only."""
        return _Resident(tensors, weights, self._layouts)

    def _fill(self, base_model: torch.nn.Module, device: torch.device) -> None:
        import comfy.ops

        with torch.no_grad():
            for module in base_model.modules():
                if hasattr(module, "_v"):
                    dtype = getattr(module, "weight_comfy_model_dtype", None) or module.weight.dtype
                    weight, bias, stream = comfy.ops.cast_bias_weight(module, None, dtype, device, dtype, offloadable=True)
                    comfy.ops.uncast_bias_weight(module, weight, bias, stream)


@contextmanager
def _faulted(vbar: Any) -> Iterator[bytes]:
    """The whole range resident and pinned; gives the signature of its pages.

    Raises:
        WeightsElsewhere: it doesn't fit.
    """
    signature = vbar.fault(vbar.base_addr, vbar.offset)
    if signature is None:
        raise WeightsElsewhere(MAIN_MEMORY())
    try:
        yield bytes(signature)
    finally:
        vbar.unpin(vbar.base_addr, vbar.offset)


class _Resident(Bound):
    """Tensors in pinned pages, and copies of small weights, which hold as long as the module has what they were copied from.

    So whether they may be read and whether they are the module's is one question.
    """

    def __init__(self, tensors: list[torch.Tensor], weights: Sequence[Weight], layouts: Layouts) -> None:
        refs = [ref for weight in weights for ref in weight.refs]
        self._own = [ref.module().__dict__ for ref in refs if ref.path]  # not the root's, which leads to the compiled state: a cycle
        self._below = len(self._own) == len(refs)
        self._ranges = self._ranges_now()
        super().__init__(tensors, weights if self._below else [], layouts)

    def readable(self) -> bool:
        """Whether the graph reads what the module has now."""
        return self._below and super().readable() and self.current() and all(map(operator.is_, self._ranges_now(), self._ranges))

    def _ranges_now(self) -> list[Any]:
        return list(map(dict.get, self._own, itertools.repeat("_v")))
