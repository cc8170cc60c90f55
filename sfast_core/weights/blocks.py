"""The bytes of a weight in GGUF's blocks, which is a tensor subclass with another shape than its memory.

A loader (ComfyUI-GGUF's, diffusers', Forge's) keeps a file's bytes in a tensor that tells which of GGUF's types they
have, and which shape the weight has. The bytes are the only part of such a weight.
"""

from __future__ import annotations

from typing import Any

import torch

_BYTES = "_fast_compile_bytes"  # the attribute of the whole with its bytes as a plain tensor
_FORGES = "gguf_cls"  # Forge's attribute with the class that reads its blocks, which have an order of their own
#: The names under which loaders keep the type and the shape.
_NAMES = (("tensor_type", "tensor_shape"), ("quant_type", "quant_shape"), (_FORGES, "real_shape"))
#: The names of GGUF's types by number, as far as :func:`dequantise_blocks` knows them. None: the memory is the weight
#: itself.
_KINDS: dict[int, str | None] = {
    **{0: None, 1: None, 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0"},
    **{10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 20: "IQ4_NL", 23: "IQ4_XS", 30: "BF16"},
}


def is_of_blocks(whole: torch.Tensor) -> bool:
    """Whether a tensor is a weight in blocks of a known type."""
    said = _said(whole)
    return said is not None and (said[0] is None or isinstance(said[0], type) or int(said[0]) in _KINDS)


def kind_of(whole: torch.Tensor) -> str | None:
    """The name of its type, which decides how it is read. None where its memory is the weight itself."""
    kind, _ = _said(whole) or (None, ())
    if isinstance(kind, type):
        return f"{kind.__qualname__} in {vars(whole).get('computation_dtype')}"
    return None if kind is None else _KINDS[int(kind)]


def shape_of(whole: torch.Tensor) -> tuple[int, ...]:
    """The weight's shape."""
    return tuple(map(int, (_said(whole) or (None, whole.shape))[1]))


def _said(whole: torch.Tensor) -> tuple[Any, Any] | None:
    """The type and the shape that a loader has noted on a tensor."""
    own = vars(whole)
    return next(((own[kind], own[shape]) for kind, shape in _NAMES if kind in own and shape in own), None)


def bytes_of(whole: torch.Tensor) -> torch.Tensor:
    """Its memory as a plain tensor: the same object each time, as long as the memory is the same.

    Raises:
        AttributeError: it is no such weight.
    """
    with torch._C.DisableTorchFunction():
        known: torch.Tensor | None = vars(whole).get(_BYTES)
        if known is not None and known.data_ptr() == whole.data_ptr() and known.device == whole.device:
            return known
        if _said(whole) is None:
            raise AttributeError(f"a {type(whole).__name__} without GGUF's type and shape")
        with torch.inference_mode(False), torch.no_grad():
            known = torch.Tensor.as_subclass(whole, torch.Tensor)
        setattr(whole, _BYTES, known)
        return known
