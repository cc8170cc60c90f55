"""The few things that every pass does with an FX graph: ask what a node calls, put a call in, take one out.

Each node's ``meta["val"]`` is a meta tensor (or a tuple of them) with the shape, dtype and strides that its value had in the recorded
call; new nodes get theirs by running their function on meta tensors. A pass that lays out otherwise what attention reads says so on the way to
it; of images every op knows that they are channels_last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch.fx import Graph, Node

from ..capture.functional import element
from ..capture.nodes import call_function
from ..capture.nodes import drop_unused as drop_unused
from ..ops.spec import Arguments
from ..weights import Weight


def value(node: Node) -> torch.Tensor:
    """The meta tensor of a node with one result."""
    val: torch.Tensor = node.meta["val"]
    return val


def shape(node: Node) -> tuple[int, ...]:
    """The shape of a node's result."""
    return tuple(value(node).shape)


def calls(node: Any, *functions: Callable[..., Any]) -> TypeGuard[Node]:
    """Whether ``node`` is a call of one of ``functions`` in its one spelling, which has no keywords: ``add(x, y, alpha=2)`` is none."""
    return isinstance(node, Node) and node.op == "call_function" and node.target in functions and not node.kwargs


def calls_of(graph: Graph, *functions: Callable[..., Any]) -> list[Node]:
    """The nodes that :func:`calls` is true of, in order. FX keeps nodes by what they call: most passes look for a few of thousands."""
    found = [node for function in functions for node in graph.find_nodes(op="call_function", target=function, sort=False)]
    return sorted(node for node in found if not node.kwargs)


def named(node: Node) -> Arguments:
    """The arguments of a call of an op by name."""
    return Arguments.of(node.target, *node.args)  # type: ignore[arg-type]


def given(node: Node, **others: Any) -> tuple[Any, ...]:
    """All arguments of a call of an op in their order, with others in the place of those of these names."""
    return tuple((vars(named(node)) | others).values())


def alike(one: Any, other: Node) -> bool:
    """Whether two tensors have one shape and one dtype."""
    return isinstance(one, Node) and shape(one) == shape(other) and value(one).dtype == value(other).dtype


def throughout(given: Any, number: float) -> bool:
    """Whether ``given``, one number or one for each dimension, is ``number`` throughout. Words are no number."""
    return all(item == number for item in given) if isinstance(given, (tuple, list)) else bool(given == number)


def sole_user(node: Node) -> Node | None:
    """The one node that uses ``node``, or None when there are none or several."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def joins_along_last(cat: Node) -> bool:
    """Whether a ``torch.cat`` is along the last dimension."""
    return len(cat.args) == 2 and isinstance(cat.args[1], int) and cat.args[1] % value(cat).dim() == value(cat).dim() - 1


def is_weight(node: Any) -> bool:
    """Whether ``node`` is a tensor of the module, as it is."""
    return isinstance(node, Node) and node.op == "placeholder" and "source" in node.meta


def is_free_weight(node: Any) -> bool:
    """Whether ``node`` is a tensor of the module that may get another layout: nobody asked for one yet, and it isn't tied to another."""
    return is_weight(node) and node.meta["source"].plain and not node.meta["source"].refs[0].tied


def is_input(node: Any) -> bool:
    """Whether ``node`` is one of the call's own tensors."""
    return isinstance(node, Node) and node.op == "placeholder" and "source" not in node.meta and "constant" not in node.meta


def insert(before: Node, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Node:
    """Put a call of ``function`` before a node."""
    with before.graph.inserting_before(before):
        node = call_function(before.graph, function, args, kwargs)
    node.meta["val"] = function(*metas(args), **metas(kwargs))
    node.meta["device"] = before.meta.get("device")
    return node


def insert_as(before: Node, val: Any, function: Callable[..., Any], *args: Any) -> Node:
    """As :func:`insert`, with the meta value given instead of computed.

    For what is known anyway: many meta kernels are written in Python, and the first use of one imports all of ``torch._dynamo``.
    """
    with before.graph.inserting_before(before):
        node = call_function(before.graph, function, args)
    node.meta["val"], node.meta["device"] = val, before.meta.get("device")
    return node


def insert_item(before: Node, node: Node, index: int) -> Node:
    """Put ``node[index]`` before a node: one of several results."""
    return insert(before, element, node, index)


def metas(args: Any) -> Any:
    """``args`` with each node's meta value in its place."""
    return torch.fx.node.map_arg(args, lambda node: node.meta["val"])


def replace(old: Node, new: Node) -> None:
    """Let ``new`` stand where ``old`` stood, and drop ``old``."""
    old.replace_all_uses_with(new)
    old.graph.erase_node(old)


def replace_reshaped(old: Node, new: Node, before: Node) -> None:
    """As :func:`replace`, where new's result may have other dimensions: it is seen in old's in front of ``before``."""
    replace(old, new if shape(new) == shape(old) else insert(before, torch.reshape, new, shape(old)))


def reshaped(before: Node, x: Node, size: tuple[int, ...]) -> Node:
    """``x`` in this shape, or what has it and is seen as ``x``."""
    if shape(x) == size:
        return x
    return x.args[0] if calls(x, torch.reshape) and shape(x.args[0]) == size else insert(before, torch.reshape, x, size)  # type: ignore[arg-type, return-value]


def respell(node: Node, val: Any, function: Callable[..., Any], *args: Any) -> Node:
    """Let ``node`` be a call of ``function`` with the meta value ``val``. Half the time of a new node in its place."""
    node.target = function
    node.args = args
    if node.op != "call_function":  # FX looks its node up anew at each of these
        node.op = "call_function"
    if node.kwargs:
        node.kwargs = {}
    node.meta["val"] = val
    return node


def new_weight(behind: Node, name: str, weight: Weight, val: torch.Tensor) -> Node:
    """A further weight placeholder behind another one."""
    with behind.graph.inserting_after(behind):
        node = behind.graph.placeholder(name)
    node.target = node.name  # FX makes names unique, arguments of the generated code take the target
    node.meta.update(source=weight, val=val, device=behind.meta["device"])
    return node


def drop_unused_weights(graph: Graph) -> None:
    """Remove weight and constant placeholders that nobody uses."""
    for node in list(graph.nodes):
        if node.op == "placeholder" and not node.users and not is_input(node):
            graph.erase_node(node)
