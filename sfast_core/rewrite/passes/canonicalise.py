"""One spelling for each operation, so that every pattern is written once.

A model says ``x.view``, ``x.flatten`` or ``torch.reshape``; ``x + y``, ``y.__radd__(x)`` or ``torch.add``. After this
pass there are only

``F.linear(x, w, b)``, ``F.conv2d/conv3d(x, w, b, stride, padding, dilation, groups)``, ``F.group_norm(x, G, w, b,
eps)``, ``F.layer_norm(x, shape, w, b, eps)``, ``F.rms_norm(x, shape, w, eps)``, ``F.interpolate(x, size, factor, mode,
align_corners, recompute, antialias)``, ``F.silu(x)``, ``gelu(x, approximate)``, ``sdpa(q, k, v, mask, dropout, causal,
scale)``, ``torch.softmax(x, dim)``, ``torch.reshape(x, shape)``, ``torch.permute(x, dims)``, ``cast_like(x, dtype)``,
``torch.add/mul(x, y)``, ``torch.addcmul(x, y, z)``, ``torch.chunk(x, n, dim)``, ``torch.cat(tensors, dim)``,
``tensor_of(numbers, dtype, device)``, ``moved(x, dtype, device)`` where another tensor says to what device

all with positional arguments, and what changes no value (``contiguous``, ``clone``, a cast to the same dtype) is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ...capture.calls import function_name
from ...capture.functional import cast_like, moved, tensor_of
from ..graph import REQUIRED, SPELLED, arguments, bound, insert_as, replace, respell, shape, value
from ..patterns import gelu, sdpa


def _is_canonical(node: Node, function: Callable[..., Any], count: int) -> bool:
    return node.target is function and not node.kwargs and len(node.args) == count


def _positional(function: Callable[..., Any], names: str = "", **defaults: Any) -> Callable[[Node], Node | None]:
    """The rule of one function, by its :data:`SPELLED` parameters where none are named."""
    parameters = {name: defaults.get(name, REQUIRED) for name in names.split()} or SPELLED[function]

    def rule(node: Node) -> Node | None:
        if _is_canonical(node, function, len(parameters)):
            return None
        call = bound(node, parameters)
        return None if call is None else respell(node, value(node), function, *vars(call).values())

    return rule


def _reshape(node: Node) -> Node | None:
    if (
        _is_canonical(node, torch.reshape, 2)
        or any(isinstance(arg, torch.dtype) for arg in node.args)
        or "dtype" in node.kwargs
    ):
        return None
    return _as_reshape(node)


def _as_reshape(node: Node) -> Node:
    x: Any = node.args[0]
    return respell(node, torch.reshape(value(x), shape(node)), torch.reshape, x, shape(node))


def _permutation(node: Node) -> Node | None:
    """permute, transpose, movedim, t, T, ...: found by what they do to a tensor whose sizes tell dimensions apart."""
    if _is_canonical(node, torch.permute, 2):
        return None
    x: Any = node.args[0]
    name = function_name(node.target)
    if name == "adjoint" and value(x).is_complex():  # it conjugates, too
        return None
    rank = value(x).dim()
    probe = torch.empty([7 + i for i in range(rank)], device="meta")
    if node.target is getattr:
        moved = getattr(probe, str(node.args[1]))
    elif node.op == "call_method":
        moved = getattr(probe, name)(*node.args[1:], **node.kwargs)
    else:
        moved = node.target(probe, *node.args[1:], **node.kwargs)
    dims = tuple(size - 7 for size in moved.shape)
    return respell(node, torch.permute(value(x), dims), torch.permute, x, dims)


def _index(node: Node) -> Node | None:
    """An index of full slices, None and ``...`` alone is a reshape."""
    index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    if isinstance(node.args[0], (tuple, list)):
        return None
    if all(item is None or item is Ellipsis or item == slice(None) for item in index):
        return _as_reshape(node)
    if any(map(_is_list_of_places, index)):
        node.args = (node.args[0], tuple([_as_tensor(node, item) for item in index]))
        return node
    return None


def _is_list_of_places(item: Any) -> bool:
    return isinstance(item, list) and bool(item) and all(type(place) is int for place in item)


def _as_tensor(node: Node, item: Any) -> Any:
    """A list in an index as the tensor that torch makes of it, at each call anew and on the CPU first."""
    if not _is_list_of_places(item):
        return item
    val = torch.empty(len(item), dtype=torch.int64, device="meta")
    return insert_as(node, val, tensor_of, list(item), torch.int64, node.meta["device"])


def _new_tensor(node: Node) -> Node | None:
    """Of the tensor that it is a method of it takes the dtype and the device."""
    call = arguments(node, "self data dtype device requires_grad", dtype=None, device=None, requires_grad=False)
    if call is None or not _is_plain(call.data):
        return None
    return respell(node, value(node), tensor_of, call.data, value(node).dtype, node.meta["device"])


def _is_plain(data: Any) -> bool:
    return (
        all(map(_is_plain, data)) if isinstance(data, (tuple, list)) else isinstance(data, (bool, int, float, complex))
    )


def _commutative(function: Callable[..., Any]) -> Callable[[Node], Node | None]:
    def rule(node: Node) -> Node | None:
        if (
            (node.target is function and not node.kwargs)
            or len(node.args) != 2
            or node.kwargs.get("alpha", 1) != 1
            or "rounding_mode" in node.kwargs
        ):
            return None
        return respell(node, value(node), function, *node.args)

    return rule


def _same_value(node: Node) -> Node | None:
    """Nothing; but a copy of complex numbers is conjugated, where its source may only say so and readers can't tell."""
    x = node.args[0]
    return x if isinstance(x, Node) and not value(x).is_complex() else None


def _cast(node: Node) -> Node | None:
    """to, float, half, type, type_as, cast_like: nothing, a cast on the same device, or a move to another's."""
    x = node.args[0]
    if not isinstance(x, Node) or not isinstance(value(node), torch.Tensor):
        return None
    if node.meta.get("device") != x.meta.get("device"):
        if len(node.all_input_nodes) == 1 or "memory_format" in node.kwargs:
            return None
        return respell(node, value(node), moved, x, value(node).dtype, node.meta["device"])
    if value(x).dtype == value(node).dtype:
        return x
    return None if node.target is cast_like else respell(node, value(node), cast_like, x, value(node).dtype)


def _addcmul(node: Node) -> Node | None:
    """With a factor it is something else."""
    call = arguments(node, "input tensor1 tensor2 value", value=1)
    if call is None or call.value != 1 or _is_canonical(node, torch.addcmul, 3):
        return None
    return respell(node, value(node), torch.addcmul, call.input, call.tensor1, call.tensor2)


def _dropout(node: Node) -> Node | None:
    call = arguments(node, "input p training inplace", p=0.5, training=True, inplace=False)
    return call.input if call and (not call.training or call.p == 0) else None


def _softmax(node: Node) -> Node | None:
    """With a dtype it is a cast and a softmax."""
    call = arguments(node, "input dim dtype", dtype=None) or arguments(
        node, "input dim _stacklevel dtype", _stacklevel=3, dtype=None
    )
    if call is None or call.dim is None or _is_canonical(node, torch.softmax, 2):
        return None
    x = call.input
    if call.dtype is not None and call.dtype != value(x).dtype:
        x = insert_as(node, value(node), cast_like, x, call.dtype)
    return respell(node, value(node), torch.softmax, x, call.dim)


def _chunk(node: Node) -> Node | None:
    """chunk, and a split into equal parts."""
    names = "input chunks dim" if function_name(node.target) == "chunk" else "tensor split_size_or_sections dim"
    args = arguments(node, names, dim=0) or arguments(
        node, names.replace("split_size_or_sections", "split_size"), dim=0
    )
    if args is None or _is_canonical(node, torch.chunk, 3):
        return None
    x, parts, dim = vars(args).values()
    if function_name(node.target) != "chunk":
        size = shape(x)[dim]
        parts = [parts] * (size // parts) if isinstance(parts, int) and size % parts == 0 else parts
        if isinstance(parts, int) or len(set(parts)) != 1:
            return None
        parts = len(parts)
    return respell(node, torch.chunk(value(x), parts, dim), torch.chunk, x, parts, dim)


_sdpa_positional = _positional(
    sdpa,
    "query key value attn_mask dropout_p is_causal scale",
    attn_mask=None,
    dropout_p=0.0,
    is_causal=False,
    scale=None,
)


def _sdpa(node: Node) -> Node | None:
    """Fewer heads of keys than of queries are seen by their shapes; ``enable_gqa=False`` is the default."""
    grouped, query = node.kwargs.get("enable_gqa"), node.args[0] if node.args else None
    if grouped is False or (grouped is True and isinstance(query, Node) and value(query).dim() == 4):
        node.kwargs = {name: arg for name, arg in node.kwargs.items() if name != "enable_gqa"}
    return _sdpa_positional(node)


_RULES: dict[str, Callable[[Node], Node | None]] = {
    **{
        function.__name__: _positional(function)
        for function in (F.linear, F.conv2d, F.conv3d, F.group_norm, F.layer_norm, F.rms_norm, F.interpolate)
    },
    "gelu": _positional(gelu, "input approximate", approximate="none"),
    "softmax": _softmax,
    "scaled_dot_product_attention": _sdpa,
    **dict.fromkeys("cat concat concatenate".split(), _positional(torch.cat)),
    "chunk": _chunk,
    "split": _chunk,
    "dropout": _dropout,
    "__getitem__": _index,
    "new_tensor": _new_tensor,
    "add": _commutative(torch.add),
    "__add__": _commutative(torch.add),
    "__radd__": _commutative(torch.add),
    "mul": _commutative(torch.mul),
    "multiply": _commutative(torch.mul),
    "__mul__": _commutative(torch.mul),
    "__rmul__": _commutative(torch.mul),
    "addcmul": _addcmul,
    "truediv": _commutative(torch.div),
    "__truediv__": _commutative(torch.div),
    "__div__": _commutative(torch.div),
    "div": _commutative(torch.div),
    **dict.fromkeys("view reshape flatten unflatten squeeze unsqueeze view_as reshape_as".split(), _reshape),
    **dict.fromkeys("permute transpose swapaxes swapdims movedim moveaxis t adjoint T mT".split(), _permutation),
    **dict.fromkeys("contiguous clone detach identity requires_grad_ data alias".split(), _same_value),
    **dict.fromkeys("to float half bfloat16 double type type_as cast_like".split(), _cast),
}


def _name(node: Node) -> str:
    return str(node.args[1]) if node.target is getattr else function_name(node.target)


def canonicalise(graph: Graph) -> int:
    """Rewrite every call into its one spelling. Returns how many calls changed."""
    changed = 0
    for node in list(graph.nodes):
        if node.op not in ("call_function", "call_method"):
            continue
        if not node.args and isinstance(node.kwargs.get("input"), Node):  # F.silu(input=x)
            node.args = (node.kwargs["input"],)
            node.kwargs = {name: arg for name, arg in node.kwargs.items() if name != "input"}
        if function_name(node.target) == "silu" and (node.target is not F.silu or node.kwargs):
            new: Node | None = respell(node, value(node), F.silu, node.args[0])
        else:
            rule = _RULES.get(_name(node))
            new = rule(node) if rule else None
        if new is not None and new is not node:
            replace(node, new)
        changed += new is not None
    return changed
