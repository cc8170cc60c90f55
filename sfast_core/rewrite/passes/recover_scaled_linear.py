"""Products with quantised weights, as libraries spell them, become one op: a format's meaning is written once.

Known are comfy-kitchen's operators (ComfyUI) and PyTorch's own scaled products. What each computes, and where it
rounds, is in docs/notes/0022. A call becomes the op where a kernel computes that here; elsewhere the library's operator
stays, which is as fast as it was. Products that read one input in the same way read it quantised once.
"""

from __future__ import annotations

from collections.abc import Hashable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ...capture.functional import cast_like
from ...ops.quantise import quantise
from ...ops.scaled_linear import scaled_linear
from ...weights.kitchen import DTYPES, NAMESPACE
from ..graph import calls, insert, insert_as, insert_item, metas, named, replace, shape, sole_user, value
from ..patterns import HasImpl, gelu, made_of_rows, uncast

_EIGHT_BITS = (torch.int8, torch.float8_e4m3fn, torch.float8_e5m2)
_KITCHEN = f"{NAMESPACE}::"
# arguments by position
_INT8_LINEAR = "x weight weight_scale bias output_dtype_code convrot convrot_groupsize input_act"
_SCALED_MM = "x weight scale_a scale_b bias scale_result out_dtype"
_SCALED_MM_V2 = "x weight scale_a recipe_a swizzle_a scale_b recipe_b swizzle_b bias out_dtype"
_RECIPES = ("recipe_a", "recipe_b", "swizzle_a", "swizzle_b")


class _Product(NamedTuple):
    """Arguments of :func:`scaled_linear`, and how its input is to be quantised first."""

    x: Node
    weight: Node
    weight_scale: Node
    bias: Node | None
    input_scale: Node | None
    out_dtype: torch.dtype
    rotate: int = 0
    quantise: tuple[torch.dtype, Node | None, int] | None = None
    act: str | None = None  # that is done to x first


def recover_scaled_linear(graph: Graph, has_impl: HasImpl) -> int:
    """Each product with a quantised weight that a kernel computes. Returns how many there were."""
    found = 0
    quantised: dict[Hashable, tuple[Node, Node]] = {}
    for node in list(graph.nodes):
        product = _product(node)
        if product is not None and _fits(product, has_impl):
            arguments = product[:7]
            if product.quantise is not None:
                how = product.x, product.act, product.quantise
                if how not in quantised:
                    rows, (dtype, scale, _) = _acted(node, product.x, product.act), product.quantise
                    made = made_of_rows(value(rows), dtype, metas(scale))
                    both = insert_as(node, made, quantise, rows, *product.quantise)
                    quantised[how] = insert_item(node, both, 0), insert_item(node, both, 1)
                x, input_scale = quantised[how]
                arguments = (x, *product[1:4], input_scale, *product[5:7])
            replace(node, insert_as(node, value(node).contiguous(), scaled_linear, *arguments))
            found += 1
    return found


def _fits(product: _Product, has_impl: HasImpl) -> bool:
    """Whether the weight is as the op takes it, and a kernel computes the product."""
    weight, scale = value(product.weight), value(product.weight_scale)
    if (
        weight.dim() != 2
        or weight.dtype not in _EIGHT_BITS
        or scale.dtype != torch.float32
        or scale.numel() not in (1, weight.shape[0])
    ):
        return False
    arguments = metas(product[:7])
    if product.quantise is not None:
        x = value(product.x)
        if product.act == "swiglu":
            x = x[..., : x.shape[-1] // 2]
        x, input_scale = made_of_rows(x, product.quantise[0], metas(product.quantise[1]))
        arguments = (x, *arguments[1:4], input_scale, *arguments[5:])
    return has_impl(scaled_linear, *arguments)


def _product(node: Node) -> _Product | None:
    name = _operator(node)
    if name == _KITCHEN + "int8_linear":
        return _int8_linear(node)
    if name in ("aten::_scaled_mm", "aten::_scaled_mm_v2"):
        return _scaled_mm(node, name)
    if calls(node, F.linear):
        call = named(node)
        return _dequantised_product(node, call.input, _dequantised(call.weight), call.bias)
    if calls(node, torch.addmm):
        return _dequantised_product(node, (call := named(node)).mat1, _dequantised_turned(call.mat2), call.input)
    if calls(node, torch.mm):
        return _dequantised_product(node, node.args[0], _dequantised_turned(node.args[1]), None)
    if calls(node, torch.bmm):
        return None if _biased(node) else _batched_product(node, node, None)
    if calls(node, torch.add):
        bmm, bias = node.args
        return _batched_product(node, bmm, bias) if isinstance(bmm, Node) and _biased(bmm) is node else None
    return None


def _batched_product(node: Node, bmm: Node, bias: Any) -> _Product | None:
    """PyTorch's linear layer for an input with gaps and a weight with a class: one weight for all of a batch."""
    return _dequantised_product(
        node, _unexpanded(bmm.args[0]), _dequantised_turned(_unexpanded(bmm.args[1], any_batch=True)), bias
    )


def _biased(bmm: Node) -> Node | None:
    """The sum with a bias that a product alone goes into."""
    user = sole_user(bmm)
    if (
        not calls(bmm, torch.bmm)
        or user is None
        or not calls(user, torch.add)
        or user.args[0] is not bmm
        or not isinstance(user.args[1], Node)
    ):
        return None
    bias = value(user.args[1])
    return user if bias.shape == value(bmm).shape[-1:] and bias.dtype == value(bmm).dtype else None


def _unexpanded(node: Any, any_batch: bool = False) -> Any:
    """What a node expands without changing a size; or, with ``any_batch``, a matrix that it repeats for a batch."""
    if isinstance(node, Node) and node.target in ("expand", torch.Tensor.expand) and isinstance(node.args[0], Node):
        size, before = value(node).shape, value(node.args[0]).shape
        return node.args[0] if size == before or any_batch and size[-2:] == before else node
    return node


def _int8_linear(node: Node) -> _Product | None:
    """Its input is rotated and quantised inside, by row."""
    given = _given(node, _INT8_LINEAR, bias=None, convrot=False, convrot_groupsize=256, input_act=None)
    if given.input_act not in (None, "gelu_tanh", "swiglu") or given.output_dtype_code not in DTYPES:
        return None
    out_dtype, rotate = DTYPES[given.output_dtype_code], int(given.convrot_groupsize) if given.convrot else 0
    quantised = (torch.int8, None, rotate)
    return _Product(
        given.x, given.weight, given.weight_scale, given.bias, None, out_dtype, 0, quantised, given.input_act
    )


def _given(node: Node, names: str, **defaults: Any) -> SimpleNamespace:
    """A call's arguments by name."""
    by_place = dict(zip(names.split(), node.args, strict=False))
    return SimpleNamespace(**{**defaults, **by_place, **node.kwargs})


def _acted(before: Node, x: Node, act: str | None) -> Node:
    """The activation that the library folds into quantising, as a call of its own."""
    if act == "gelu_tanh":
        return insert(before, gelu, x, "tanh")
    if act == "swiglu":
        width = value(x).shape[-1] // 2
        gate, up = (insert(before, torch.narrow, x, -1, start, width) for start in (0, width))
        return insert(before, torch.mul, insert(before, F.silu, gate), up)
    return x


def _scaled_mm(node: Node, name: str) -> _Product | None:
    """PyTorch's product of float8 matrices, the second turned: its input is quantised, or by comfy-kitchen in front."""
    names = _SCALED_MM_V2 if name.endswith("v2") else _SCALED_MM
    given = _given(node, names, scale_a=None, scale_b=None, bias=None, scale_result=None, out_dtype=None)
    x, weight, scale_a, scale_b = given.x, _turned(given.weight), _one(given.scale_a), _one(given.scale_b)
    # by tensor, or by row
    plain = all(list(vars(given).get(key, [0])) in ([0], [1]) for key in _RECIPES)
    if weight is None or scale_a is None or scale_b is None or not plain:
        return None
    if given.scale_result is not None or given.out_dtype is None:
        return None
    if _operator(x) == _KITCHEN + "quantize_fp8" and len(x.args) == 3 and x.args[1] is scale_a and x.args[2] in DTYPES:
        quantised = (DTYPES[x.args[2]], scale_a, 0)
        return _Product(x.args[0], weight, scale_b, given.bias, None, given.out_dtype, 0, quantised)
    return _Product(x, weight, scale_b, given.bias, scale_a, given.out_dtype)


def _dequantised_product(
    node: Node, x: Any, found: tuple[Node, Node, int] | None, bias: Node | None
) -> _Product | None:
    """A weight that is dequantised at each call."""
    if found is None or value(x).dtype != value(node).dtype:
        return None
    numbers, scale, rotate = found
    given = _dequantised(x)  # float8_e5m2 twice, which PyTorch's product doesn't take: the host dequantises both
    if given is not None and not given[2] and value(given[0]).dtype == value(numbers).dtype and not rotate:
        return _Product(given[0], numbers, scale, bias, given[1], value(node).dtype)
    return _Product(x, numbers, scale, bias, None, value(node).dtype, rotate)


def _dequantised(node: Any) -> tuple[Node, Node, int] | None:
    """Numbers, scale, and the group of the rotation, of what comfy-kitchen dequantises or somebody multiplies."""
    if (multiplied := _multiplied(node)) is not None:
        return multiplied
    name = _operator(node)
    if name == _KITCHEN + "dequantize_int8_convrot_weight_dtype":
        numbers, scale, rotate, _ = node.args
        return numbers, scale, rotate
    if name in (_KITCHEN + "dequantize_fp8", _KITCHEN + "dequantize_int8_simple_dtype"):
        numbers, scale, _ = node.args
        return numbers, scale, 0
    return None


def _multiplied(node: Any) -> tuple[Node, Node, int] | None:
    """Of numbers that are cast and multiplied by a scale for each row, or by one."""
    product = uncast(node)
    if not calls(product, torch.mul):
        return None
    for cast, scale in (product.args, product.args[::-1]):
        if not calls(cast, cast_like) or not isinstance(scale, Node) or not value(scale).is_floating_point():
            continue
        numbers: Any = cast.args[0]
        rows = value(numbers).shape[0] if value(numbers).dim() == 2 else None
        if rows is not None and value(numbers).dtype in _EIGHT_BITS and shape(scale) in ((), (1,), (1, 1), (rows, 1)):
            wide = value(scale).dtype == torch.float32
            return numbers, scale if wide else insert(product, cast_like, scale, torch.float32), 0
    return None


def _dequantised_turned(node: Any) -> tuple[Node, Node, int] | None:
    """As :func:`_dequantised`, of what a node is the transposed of: turned before or, with one scale, after."""
    if (turned := _turned(node)) is not None:
        return _dequantised(turned)
    found = _dequantised(node)
    if found is None or (numbers := _turned(found[0])) is None or value(found[1]).numel() != 1 or found[2]:
        return None
    return numbers, found[1], 0


def _turned(node: Any) -> Node | None:
    """What a node is the transposed of."""
    if calls(node, torch.permute) and tuple(named(node).dims) == (1, 0):
        turned: Node = named(node).input
        return turned
    return None


def _one(scale: Any) -> Node | None:
    scale = scale[0] if isinstance(scale, (tuple, list)) and len(scale) == 1 else scale
    return scale if isinstance(scale, Node) else None


def _operator(node: Any) -> str:
    """The name of the operator of a library's, or of PyTorch's, that a node calls; else an empty one."""
    target = node.target if isinstance(node, Node) and node.op == "call_function" else None
    if isinstance(target, torch._ops.OpOverload):
        return str(target._schema.name)
    if isinstance(target, torch._ops.OpOverloadPacket):
        return str(target._qualified_op_name)
    name = getattr(target, "__name__", "")
    return f"aten::{name}" if name in ("_scaled_mm", "_scaled_mm_v2") else ""
