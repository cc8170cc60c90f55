"""Captured graphs whose small memset nodes become kernels before they are instantiated.

Why is told in ``csrc/graph.cu``.
"""

from __future__ import annotations

import ctypes
import logging

import torch

from ..native import load

log = logging.getLogger("fast_compile")


def editable_graph(device: torch.device) -> torch.cuda.CUDAGraph | None:
    """An empty graph whose nodes can be replaced once it is captured, and that must be instantiated then.

    None where PyTorch has no such graphs (they came after 2.6), or the extension can't be had.
    """
    if load.why_not(device) is not None:
        return None
    try:
        return torch.cuda.CUDAGraph(keep_graph=True)
    except TypeError:
        return None


def instantiate_without_memsets(graph: torch.cuda.CUDAGraph, counters: tuple[int, int] = (0, 0)) -> int:
    """Replace the memset nodes of a captured graph and make it ready to replay.

    Args:
        graph: made by :func:`editable_graph`.
        counters: address and bytes of counters, which are zeroed all at once before anything else:
            :class:`..native.counters.Counters`.

    Returns:
        How many were replaced: large ones stay, and all in a graph that allocates memory, as under cudaMallocAsync.

    Raises:
        RuntimeError: it can't be instantiated.
    """
    replaced = ctypes.c_int32()
    status = load.library().sfast_graph_replace_memsets(graph.raw_cuda_graph(), *counters, ctypes.byref(replaced))
    if status != 0:
        log.debug("memset nodes stay in a graph: %s", load.error_name(load.library(), status))
    graph.instantiate()
    return replaced.value
