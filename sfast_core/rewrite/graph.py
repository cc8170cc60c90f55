"""The few things that every pass does with an FX graph: ask what a node calls, put a call in, take one out.

Each node's ``meta["val"]`` is a meta tensor (or a tuple of them) with the shape, dtype and strides that its value had
in the recorded call; new nodes get theirs by running their function on meta tensors. A pass that changes the strides of
what attention reads updates them (:func:`lay_views_like`). For images nobody has to: every op knows that they are
channels_last.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ..capture.calls import function_name
from ..capture.functional import element
from ..capture.nodes import call_function
from ..capture.nodes import drop_unused as drop_unused
from ..ops.needs import FLOATS as FLOATS
from ..ops.spec import Arguments
from ..weights import Weight


def value(node: Node) -> torch.Tensor:
    """The meta tensor of a node with one result."""
    val: torch.Tensor = node.meta["val"]
    return val


def is_tensor(node: Any) -> TypeGuard[Node]:
    """Whether ``node`` is one with one result, a tensor."""
    return isinstance(node, Node) and isinstance(node.meta.get("val"), torch.Tensor)


def shape(node: Node) -> tuple[int, ...]:
    """The shape of a node's result."""
    return tuple(value(node).shape)


def calls(node: Any, *functions: Callable[..., Any]) -> TypeGuard[Node]:
    """Whether ``node`` calls one of ``functions`` without keyword arguments.

    That is the one spelling which ``canonicalise`` leaves; ``add(x, y, alpha=2)``, which it can't respell, isn't one.
    """
    return isinstance(node, Node) and node.op == "call_function" and node.target in functions and not node.kwargs


def called(node: Any, *names: str) -> TypeGuard[Node]:
    """Whether ``node`` calls a function or method of such a name, however ``canonicalise`` left it spelled."""
    return (
        isinstance(node, Node) and node.op in ("call_function", "call_method") and function_name(node.target) in names
    )


def calls_of(graph: Graph, *functions: Callable[..., Any]) -> list[Node]:
    """The nodes for which :func:`calls` is true, in order. Fast, since FX keeps nodes by what they call."""
    found = [
        node for function in functions for node in graph.find_nodes(op="call_function", target=function, sort=False)
    ]
    return sorted(node for node in found if not node.kwargs)


REQUIRED = object()


def _parameters(names: str, **defaults: Any) -> dict[str, Any]:
    return {name: defaults.get(name, REQUIRED) for name in names.split()}


_CONVOLUTION = _parameters(
    "input weight bias stride padding dilation groups", bias=None, stride=1, padding=0, dilation=1, groups=1
)
_ITEM = _parameters("results index")
#: The parameters, in order and with defaults, of PyTorch's builtin functions, whose signatures Python can't tell. Those
#: of others, such as ops, it can.
SPELLED: dict[Any, dict[str, Any]] = {
    F.linear: _parameters("input weight bias", bias=None),
    F.conv2d: _CONVOLUTION,
    F.conv3d: _CONVOLUTION,
    F.group_norm: _parameters("input num_groups weight bias eps", weight=None, bias=None, eps=1e-5),
    F.layer_norm: _parameters("input normalized_shape weight bias eps", weight=None, bias=None, eps=1e-5),
    F.rms_norm: _parameters("input normalized_shape weight eps", weight=None, eps=None),
    F.interpolate: _parameters(
        "input size scale_factor mode align_corners recompute_scale_factor antialias",
        **{
            **dict.fromkeys(("size", "scale_factor", "align_corners", "recompute_scale_factor")),
            "mode": "nearest",
            "antialias": False,
        },
    ),
    torch.addcmul: _parameters("input tensor1 tensor2"),
    torch.addmm: _parameters("input mat1 mat2"),
    torch.cat: _parameters("tensors dim", dim=0),
    torch.chunk: _parameters("input chunks dim", dim=0),
    torch.narrow: _parameters("input dim start length"),
    torch.permute: _parameters("input dims"),
    torch.reshape: _parameters("input shape"),
    torch.softmax: _parameters("input dim"),
    element: _ITEM,
    operator.getitem: _ITEM,
}


def named(node: Node) -> Arguments:
    """The arguments of a call by name."""
    parameters = SPELLED.get(node.target)
    if parameters is None:
        return Arguments.of(node.target, *node.args)
    return Arguments(**{**parameters, **dict(zip(parameters, node.args, strict=False))})


def bound(node: Node, parameters: dict[str, Any]) -> Arguments | None:
    """A call's arguments by the names of parameters, given in order or by name, with defaults; None where it has others
    or lacks one. ``named`` does for what ``canonicalise`` has respelled.
    """
    if len(node.args) > len(parameters) or set(node.kwargs) - set(parameters):
        return None
    found = {**parameters, **dict(zip(parameters, node.args, strict=False)), **node.kwargs}
    return None if any(item is REQUIRED for item in found.values()) else Arguments(**found)


def arguments(node: Node, names: str, **defaults: Any) -> Arguments | None:
    """As :func:`bound`, of parameters of these names."""
    return bound(node, _parameters(names, **defaults))


def given(node: Node, **others: Any) -> tuple[Any, ...]:
    """All arguments of a call in order, some of them replaced by name."""
    return tuple((vars(named(node)) | others).values())


def results_of(node: Node) -> dict[int, Node]:
    """The nodes that take one of a call's several results, by the result's index; if several do, the last."""
    return {named(user).index: user for user in node.users if calls(user, element, operator.getitem)}


def other_of(node: Node, one: object) -> Any:
    """The first argument of a call that isn't ``one``, None where there is none."""
    return next((arg for arg in node.args if arg is not one), None)


def output_of(graph: Graph) -> Node:
    """The node whose argument the graph's results are."""
    return next(node for node in reversed(graph.nodes) if node.op == "output")


def alike(one: Any, other: Node) -> bool:
    """Whether two tensors have the same shape and dtype."""
    return isinstance(one, Node) and shape(one) == shape(other) and value(one).dtype == value(other).dtype


def throughout(given: Any, number: float) -> bool:
    """Whether ``given``, one number or one for each dimension, equals ``number`` everywhere. Text never does."""
    return all(item == number for item in given) if isinstance(given, (tuple, list)) else bool(given == number)


def sole_user(node: Node) -> Node | None:
    """The one node that uses ``node``, or None when there are none or several."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def joins_along_last(cat: Node) -> bool:
    """Whether a ``torch.cat`` is along the last dimension."""
    dim = named(cat).dim
    return isinstance(dim, int) and dim % value(cat).dim() == value(cat).dim() - 1


def is_weight(node: Any) -> bool:
    """Whether ``node`` is a weight's placeholder."""
    return isinstance(node, Node) and node.op == "placeholder" and "source" in node.meta


def is_free_weight(node: Any) -> bool:
    """Whether ``node`` is a weight that may get another layout: it has none yet, and isn't tied to another weight."""
    return is_weight(node) and node.meta["source"].plain and not node.meta["source"].refs[0].tied


def is_input(node: Any) -> bool:
    """Whether ``node`` is one of the call's own tensors."""
    return (
        isinstance(node, Node)
        and node.op == "placeholder"
        and "source" not in node.meta
        and "constant" not in node.meta
    )


def insert(before: Node, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Node:
    """Put a call of ``function`` before a node."""
    with before.graph.inserting_before(before):
        node = call_function(before.graph, function, args, kwargs)
    node.meta["val"] = function(*metas(args), **metas(kwargs))
    node.meta["device"] = before.meta.get("device")
    return node


def insert_as(before: Node, val: Any, function: Callable[..., Any], *args: Any) -> Node:
    """As :func:`insert`, with the meta value given and not computed: many meta kernels are written in Python, and the
    first use of one imports all of ``torch._dynamo``.
    """
    with before.graph.inserting_before(before):
        node = call_function(before.graph, function, args)
    node.meta["val"], node.meta["device"] = val, before.meta.get("device")
    return node


def insert_item(before: Node, node: Node, index: int) -> Node:
    """Put ``node[index]`` before a node: one of several results."""
    return insert(before, element, node, index)


def metas(args: Any) -> Any:
    """``args`` with each node replaced by its meta value."""
    return torch.fx.node.map_arg(args, lambda node: node.meta["val"])


def replace(old: Node, new: Node) -> None:
    """Replace ``old`` by ``new`` everywhere, and drop ``old``."""
    old.replace_all_uses_with(new)
    old.graph.erase_node(old)


def replace_reshaped(old: Node, new: Node, before: Node) -> None:
    """As :func:`replace`, where the shapes may differ: ``new`` is reshaped to that of ``old``, before ``before``."""
    replace(old, new if shape(new) == shape(old) else insert(before, torch.reshape, new, shape(old)))


def reshaped(before: Node, x: Node, size: tuple[int, ...]) -> Node:
    """``x`` in this shape. If ``x`` is itself a reshape of a node of this shape, that node."""
    if shape(x) == size:
        return x
    return x.args[0] if calls(x, torch.reshape) and shape(x.args[0]) == size else insert(before, torch.reshape, x, size)


def respell(node: Node, val: Any, function: Callable[..., Any], *args: Any) -> Node:
    """Turn ``node`` into a call of ``function`` with the meta value ``val``, in half the time of a new node."""
    node.target = function
    node.args = args
    if node.op != "call_function":  # each assignment has FX file the node anew
        node.op = "call_function"
    if node.kwargs:
        node.kwargs = {}
    node.meta["val"] = val
    return node


def lay_views_like(node: Node) -> None:
    """Recompute the strides of the reshapes and permutations of ``node`` after its own have changed.

    Kernels are chosen for these strides. With the recorded ones attention was measured on other memory than it reads,
    and cuDNN's plan for it, 75 ms, was made twice (SD1.5 and SDXL at each new size, H100).
    """
    for user in node.users:
        if calls(user, torch.reshape, torch.permute):
            seen = user.target(value(node), user.args[1])
            if (seen.stride(), seen.storage_offset()) != (value(user).stride(), value(user).storage_offset()):
                user.meta["val"] = seen
                lay_views_like(user)


def placeholder(graph: Graph, name: str, **meta: Any) -> Node:
    """A further placeholder, where the graph is inserted into, with these items of meta."""
    node = graph.placeholder(name)
    node.target = node.name  # FX makes names unique, arguments of the generated code take the target
    node.meta.update(meta)
    return node


def new_weight(behind: Node, name: str, weight: Weight, val: torch.Tensor) -> Node:
    """A further weight placeholder behind another one."""
    with behind.graph.inserting_after(behind):
        return placeholder(behind.graph, name, source=weight, val=val, device=behind.meta["device"])


def drop_unused_weights(graph: Graph) -> None:
    """Remove weight and constant placeholders that nobody uses."""
    for node in list(graph.nodes):
        if node.op == "placeholder" and not node.users and not is_input(node):
            graph.erase_node(node)
