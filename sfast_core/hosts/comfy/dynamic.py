"""Weights under ComfyUI's dynamic VRAM: nothing is adopted, everything is asked for again at each call.

There a module's weight has a fixed virtual address (``_v``) whose pages come and go. A captured graph may read it while all pages are
resident and filled: the whole range is faulted in and pinned for the length of a call (61 us, against 1 ms module by module), and filled
again by the host's own function where pages were evicted or the LoRA changed. Tensors of modules up to 16 KB live outside that range and
get new storage at each sampling: graphs read copies of those at addresses of our own, 2 MB for SD1.5.

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

from ...capture.weights import WeightRef, WeightSource
from ...runtime.store import Bound, WeightsElsewhere

_RESIDENT = {"weight": "_v_weight", "bias": "_v_bias"}
_NONE: tuple[None, None] = (None, None)


class DynamicStore:
    """The weight store of one BaseModel that a dynamic patcher loads. The same calls as ``runtime.store.WeightStore``."""

    adopted_bytes = 0
    lock: AbstractContextManager[Any] = nullcontext()

    def __init__(self, base_model: torch.nn.Module) -> None:
        self._base_model = weakref.ref(base_model)
        self._filled: Any = None  # the page signature and the patches that the range was last filled for
        self._copies: dict[WeightRef, tuple[torch.Tensor, weakref.ref[torch.Tensor]]] = {}

    def may_pack(self, refs: Sequence[WeightRef]) -> bool:
        """Never: the addresses are the host's."""
        return False

    def plain(self) -> AbstractContextManager[None]:
        """Nothing was laid out anew."""
        return nullcontext()

    def renew(self) -> None:
        """There are no locks."""

    def lay_plain(self) -> None:
        """Nothing was laid out anew."""

    def leave_to_autograd(self) -> None:
        """Nothing was laid out anew."""

    def restore(self) -> int:
        """Nothing was adopted; forget the copies."""
        self._copies.clear()
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
            raise WeightsElsewhere("this version of dynamic VRAM is not understood")
        with _faulted(vbar) as pages:
            if (pages, base_model.current_weight_patches_uuid) == self._filled:
                yield
                return
            self._fill(base_model, device)
        with _faulted(vbar) as again:  # filling unpins each module
            if again != pages:
                raise WeightsElsewhere("dynamic VRAM moved pages while they were filled")
            self._filled = (pages, base_model.current_weight_patches_uuid)
            yield

    def tensors(self, sources: Sequence[WeightSource], device: torch.device) -> list[torch.Tensor]:
        """The tensors for ``sources`` at addresses that stay. Inside :meth:`pinned` only."""
        return [self._tensor(source.refs[0], device) for source in sources]

    def bind(self, sources: Sequence[WeightSource], tensors: list[torch.Tensor]) -> Bound:
        """Remember where the tensors lie, and what they were made from. It is to be asked inside :meth:`pinned` only."""
        return _Resident(tensors, sources)

    def _fill(self, base_model: torch.nn.Module, device: torch.device) -> None:
        import comfy.ops

        with torch.no_grad():
            for module in base_model.modules():
                if hasattr(module, "_v"):
                    dtype = getattr(module, "weight_comfy_model_dtype", None) or module.weight.dtype
                    weight, bias, stream = comfy.ops.cast_bias_weight(module, None, dtype, device, dtype, offloadable=True)
                    comfy.ops.uncast_bias_weight(module, weight, bias, stream)

    def _tensor(self, ref: WeightRef, device: torch.device) -> torch.Tensor:
        """Asked for every weight at once, so it reads the module's tables itself: getattr took 3 ms for SD1.5's 686 weights."""
        own = ref.module().__dict__
        if "_v" in own:
            tensor = own.get(_RESIDENT.get(ref.name, ""))
            if tensor is None:
                raise WeightsElsewhere(f"the weight {ref} isn't in dynamic VRAM's range")
            return tensor  # type: ignore[no-any-return]
        current = own["_parameters"].get(ref.name)
        if current is None:
            current = ref.tensor()
        mine, seen = self._copies.get(ref, _NONE)
        if seen is None or seen() is not current:
            mine = self._copied(ref, current, mine, device)
        return mine  # type: ignore[return-value]

    def _copied(self, ref: WeightRef, current: torch.Tensor, mine: torch.Tensor | None, device: torch.device) -> torch.Tensor:
        if current.device != device:
            raise WeightsElsewhere(f"the weight {ref} is on {current.device}, not on {device}")
        if mine is None or mine.shape != current.shape or mine.dtype != current.dtype:
            with torch.inference_mode(False):
                mine = torch.empty_like(current)
        mine.copy_(current)
        self._copies[ref] = (mine, weakref.ref(current))
        return mine


@contextmanager
def _faulted(vbar: Any) -> Iterator[bytes]:
    """The whole range resident and pinned; gives the signature of its pages.

    Raises:
        WeightsElsewhere: it doesn't fit.
    """
    signature = vbar.fault(vbar.base_addr, vbar.offset)
    if signature is None:
        raise WeightsElsewhere("dynamic VRAM keeps a part of the model in main memory")
    try:
        yield bytes(signature)
    finally:
        vbar.unpin(vbar.base_addr, vbar.offset)


class _Resident(Bound):
    """Tensors in pinned pages, and copies of small weights, which hold as long as the module has what they were copied from.

    So whether they may be read and whether they are the module's is one question.
    """

    def __init__(self, tensors: list[torch.Tensor], sources: Sequence[WeightSource]) -> None:
        refs = [source.refs[0] for source in sources]
        self._own = [ref.module().__dict__ for ref in refs if ref.path]  # not the root's, which leads to the compiled state: a cycle
        self._below = len(self._own) == len(refs)
        self._ranges = self._ranges_now()
        super().__init__(tensors, refs if self._below else [])

    def readable(self) -> bool:
        """Whether the graph reads what the module has now."""
        return self._below and super().readable() and self.current() and all(map(operator.is_, self._ranges_now(), self._ranges))

    def _place(self, ref: WeightRef) -> tuple[dict[str, Any], str]:
        own = ref.module().__dict__
        return (own, _RESIDENT.get(ref.name, "")) if "_v" in own else super()._place(ref)

    def _ranges_now(self) -> list[Any]:
        return list(map(dict.get, self._own, itertools.repeat("_v")))
