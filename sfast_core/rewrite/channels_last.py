"""Convolution weights with their channels innermost. With them, and with every ``contiguous`` gone, the whole model runs NHWC.

NCHW costs 1.3 to 3 times NHWC at every convolution measured, and token reshapes of NHWC maps are views. The ops turn an NCHW input (the
latent) once; nothing after it is NCHW.
"""

from __future__ import annotations

from dataclasses import replace as with_changes

import torch
from torch.fx import Graph

from ..ops.conv2d_act import conv2d_act
from .graph import calls, is_weight, shape, value


def convolutions_channels_last(graph: Graph) -> int:
    """Ask for channels_last storage of each convolution's weight. A 1x1 kernel is the same memory either way."""
    changed = 0
    for node in graph.nodes:
        if not calls(node, conv2d_act, torch.conv2d):
            continue
        weight = node.args[1]
        if (
            is_weight(weight)
            and weight.meta["source"].plain
            and shape(weight)[2:] != (1, 1)
            and all(calls(user, conv2d_act) for user in weight.users)
        ):
            weight.meta["source"] = with_changes(weight.meta["source"], channels_last=True)
            weight.meta["val"] = value(weight).contiguous(memory_format=torch.channels_last)
            changed += 1
    return changed
