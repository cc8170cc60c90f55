"""A linear layer and the activation behind it: GELU in its three forms, SiLU, ReLU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ..ops.linear_act import linear_act
from .canonicalise import gelu
from .graph import calls, calls_of, drop_unused, insert_as, replace, sole_user, value


def activation_behind(linear: Node) -> tuple[Node, str] | None:
    """The activation that is the only reader of ``linear``, and its name."""
    user = sole_user(linear)
    if user is None:
        users = list(linear.users)
        if len(users) == 2:  # x * sigmoid(1.702 * x)
            return _quick_gelu(linear, users)
        return None
    if calls(user, gelu):
        return user, "gelu" if user.args[1] == "none" else "gelu_tanh"
    if calls(user, F.silu):
        return user, "silu"
    if user.target in (F.relu, torch.relu, "relu"):
        return user, "relu"
    return None


def _quick_gelu(linear: Node, users: list[Node]) -> tuple[Node, str] | None:
    for scaled, product in (users, users[::-1]):
        if not (calls(scaled, torch.mul) and calls(product, torch.mul) and 1.702 in scaled.args):
            continue
        gate = sole_user(scaled)
        if (
            gate is not None
            and gate.target in (torch.sigmoid, F.sigmoid, "sigmoid")
            and set(product.args) == {linear, gate}
            and sole_user(gate) is product
        ):
            return product, "quick_gelu"
    return None


def fuse_linear_act(graph: Graph) -> int:
    """A linear layer whose only reader is GELU (exact, tanh, quick), SiLU or ReLU."""
    fused = 0
    for node in calls_of(graph, F.linear):
        found = activation_behind(node)
        if found is not None:
            last, act = found
            replace(last, insert_as(last, value(last), linear_act, *node.args, act))
            fused += 1
    drop_unused(graph)
    return fused
