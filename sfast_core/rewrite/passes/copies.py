"""Copies that change nothing: one repetition of each dimension, and joining with nothing or with empty tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from ..graph import alike, called, calls_of, given, named, replace, replace_reshaped, respell, value


def drop_copies(graph: Graph) -> int:
    """Attention repeats keys by 1 where there are no groups; models join what they pad or keep with nothing."""
    dropped = 0
    for node in [node for node in graph.nodes if node.op == "call_method" and called(node, "repeat")]:
        x, counts = _repeated(node)
        if counts is not None and all(count == 1 for count in counts):
            replace_reshaped(node, x, node)
            dropped += 1
    for node in calls_of(graph, torch.cat):
        parts: Any = named(node).tensors
        if not isinstance(parts, (tuple, list)) or not parts:
            continue
        left = [part for part in parts if value(part).numel() > 0]
        if len(left) == 1 and alike(left[0], node):
            replace(node, left[0])
            dropped += 1
        elif 1 < len(left) < len(parts) and all(value(part).dtype == value(node).dtype for part in left):
            respell(node, value(node), torch.cat, *given(node, tensors=left))
            dropped += 1
    return dropped


def _repeated(node: Node) -> tuple[Any, tuple[Any, ...] | None]:
    """What is repeated, and how often along each dimension."""
    x, *counts = node.args
    if node.kwargs or not isinstance(x, Node):
        return x, None
    times: Any = counts[0] if len(counts) == 1 and isinstance(counts[0], (tuple, list)) else counts
    return x, tuple(times)
