"""Constants lie where they are read: a CUDA graph can't repeat a move from the CPU, as some models do at each call."""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

from ...capture.calls import function_name
from ..graph import placeholder, value

#: What takes a number in the place of a tensor, and computes the same with it as with a tensor of one element on the
#: CPU.
_ARITHMETIC = frozenset(
    "add sub subtract mul multiply div divide true_divide truediv pow floor_divide floordiv remainder fmod lt le gt ge"
    " eq ne __add__ __sub__ __mul__ __truediv__ __div__ __pow__ __floordiv__ __mod__ __lt__ __le__ __gt__ __ge__ __eq__"
    " __ne__".split()
)
_EITHER_WAY = frozenset("add mul multiply __add__ __mul__".split())  #: with two arguments, in any order

#: What fills a tensor with one value: where that is among the arguments, and its name. A tensor on the device would be
#: read for it.
_FILLING = {
    "masked_fill": (2, "value"),
    "index_fill": (3, "value"),
    "full_like": (1, "fill_value"),
    "new_full": (2, "fill_value"),
    "setitem": (2, ""),
}


def place_constants(graph: Graph) -> int:
    """Give each call the constants that it reads on its own device. Returns how many places changed.

    A tensor without dimensions on the CPU is a number to a kernel, which it gets by value and in full precision: it
    becomes that number. On the device it would be rounded to the dtype of the other operand first. Every other one is
    moved there, once.
    """
    changed = 0
    for constant in [node for node in graph.nodes if "constant" in node.meta]:
        there: dict[torch.device, Node] = {}
        for user in list(constant.users):
            device = _device(user)
            if device is None or device == constant.meta["device"]:
                continue
            changed += 1
            if not _as_number(user, constant):
                if device not in there:
                    there[device] = _moved(constant, device)
                user.replace_input_with(constant, there[device])
        if not constant.users:
            graph.erase_node(constant)
    return changed


def _device(user: Node) -> torch.device | None:
    """Where a call computes; None for the graph's output, whose results lie where they lie."""
    places = [user, *user.users] if "device" not in user.meta else [user]  # of several results each knows its own
    return next((node.meta["device"] for node in places if node.op != "output" and "device" in node.meta), None)


def _moved(constant: Node, device: torch.device) -> Node:
    with constant.graph.inserting_after(constant):
        moved = constant.meta["constant"].to(device)
        return placeholder(constant.graph, "constant", constant=moved, val=value(constant), device=device)


def _as_number(user: Node, constant: Node) -> bool:
    """Let ``user`` compute with the number that ``constant`` is, where it is one and that means the same."""
    name, tensor = function_name(user.target), constant.meta["constant"]
    if tensor.dim() or tensor.device.type != "cpu" or tensor.is_complex():
        return False
    number = tensor.item()
    if name in _FILLING:
        place, keyword = _FILLING[name]
        if [arg is constant for arg in (*user.args, *user.kwargs.values())].count(True) != 1:
            return False
        if user.kwargs.get(keyword) is constant:
            user.kwargs = {**user.kwargs, keyword: number}
        elif len(user.args) > place and user.args[place] is constant:
            user.args = (*user.args[:place], number, *user.args[place + 1 :])
        return constant not in user.all_input_nodes
    if name not in _ARITHMETIC or len(user.args) != 2 or user.kwargs:
        return False
    first, second = user.args
    if first is constant and name in _EITHER_WAY:
        first, second = second, first
    if second is not constant or not isinstance(first, Node) or first is constant:
        return False
    if torch.result_type(value(first), number) != torch.result_type(value(first), value(constant)):
        return False  # two tensors without dimensions, or a number of another kind: it would be promoted otherwise
    user.args = (first, number)
    return True
