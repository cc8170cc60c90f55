"""Which calls read a tensor's values, openly or through the shape of what they return.

A trace would burn the values in, and its proof on the same values couldn't tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..reporting.reasons.records import BY_ITS_PLACE, SIZE_BY_VALUE

#: What may be asked of a tensor without reading a value.
METADATA = frozenset(
    "size dim ndimension numel nelement stride storage_offset element_size get_device is_contiguous is_floating_point"
    " is_complex is_set_to is_signed is_same_size is_pinned is_inference is_conj is_neg is_shared has_names __len__"
    " __hash__ result_type type broadcast_shapes can_cast promote_types _has_compatible_shallow_copy_type is_nested"
    " is_distributed is_coalesced dense_dim is_grad_enabled is_inference_mode_enabled".split()
)
#: They mark a range of a profiler's: nothing is computed, so a program has none.
RANGES = frozenset(f"_record_function_{which}" for which in ("enter", "enter_new", "exit", "exit._RecordFunction"))
_COUNTING = frozenset("nonzero argwhere masked_select unique unique_consecutive bincount".split())
#: Of values, Python's and PyTorch's, that are no more than they say.
PLAIN_CLASSES = (
    *(bool, int, float, complex, str, type(None)),
    *(torch.dtype, torch.device, torch.memory_format, torch.layout),
)
UNFILLED = ("empty", "new_empty")  #: how the names of the functions begin that give memory as it is
#: Functions that make a tensor of a given size.
_MAKING = frozenset(
    "arange range linspace logspace zeros ones empty full eye tril_indices triu_indices empty_strided".split()
)
#: Functions that are given sizes or counts behind the tensor itself.
_SIZED = frozenset(
    "view reshape expand broadcast_to repeat tile unflatten narrow topk chunk split split_with_sizes tensor_split"
    " interpolate pad new_zeros new_ones new_empty adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool2d unfold"
    " diagonal".split()
)
_TOLD_BY_ARGUMENTS = frozenset({*_COUNTING, *_MAKING, *_SIZED, "where", "one_hot", "repeat_interleave", "__getitem__"})


def why_not_static(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Why a call of the function ``name`` with these arguments can't be recorded, or None."""
    if name.startswith("as_strided"):
        return BY_ITS_PLACE(name=name)
    return SIZE_BY_VALUE(name=name) if _by_values(name, args, kwargs) else None


def sizing(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Those of the arguments of the function ``name`` that the shape of its result depends on: of what cuts or repeats
    a tensor all but that.
    """
    told = name in _SIZED or name == "__getitem__" or (name == "repeat_interleave" and len(args) > 1)
    return args[1 if told else 0 :], kwargs


def why_not_operator(operator: Any, args: Sequence[Any]) -> str | None:
    """Why a call of an operator of PyTorch's or a library's can't be recorded, as the operator itself says; or None."""
    tags = getattr(operator, "tags", ())
    if torch.Tag.dynamic_output_shape not in tags and torch.Tag.data_dependent_output not in tags:
        return None
    name: str = operator._schema.name.rpartition("::")[2]
    if name == "index" and not _selects_by_value(args[1]):
        return None
    return SIZE_BY_VALUE(name=name)


def _by_values(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    if name not in _TOLD_BY_ARGUMENTS:
        return False
    sizes = [value for key, value in kwargs.items() if key not in ("input", "self", "fill_value")]
    if name in _COUNTING:
        return True
    if name == "where":
        return len(args) + len(kwargs) == 1
    if name == "one_hot":
        return (args[1] if len(args) > 1 else kwargs.get("num_classes", -1)) == -1
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None and _has_tensor(
            (*args[1:], *sizes) if len(args) + len(kwargs) > 1 else args
        )
    if name == "__getitem__":
        return _selects_by_value(args[1])
    if name in _MAKING:
        return _has_tensor((*(args[:1] if name == "full" else args), *sizes))
    return name in _SIZED and _has_tensor((*args[1:], *sizes))


def _selects_by_value(index: Any) -> bool:
    if isinstance(index, torch.Tensor):
        return index.dtype in (torch.bool, torch.uint8)
    if isinstance(index, slice):
        return _has_tensor((index.start, index.stop, index.step))
    return isinstance(index, (tuple, list)) and any(map(_selects_by_value, index))


def _has_tensor(values: Sequence[Any]) -> bool:
    return any(
        isinstance(value, torch.Tensor) or (isinstance(value, (tuple, list)) and _has_tensor(value)) for value in values
    )
