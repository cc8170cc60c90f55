"""GPU memory for what the webui does between samplings: it doesn't know of our graphs, so they make room before it
needs any.
"""

from __future__ import annotations

from typing import Any

import torch

from ...runtime.graphs import DeviceGraphs

#: What decoding one latent pixel takes in half precision. ComfyUI's estimate for the same decoder, made from
#: measurements.
DECODER_BYTES = 2178 * 64 * 2


def decoding_bytes(latents: Any, dtype: torch.dtype | None) -> int:
    """What decoding a sampling's pictures will take; the webui decodes them one by one.

    Args:
        latents: [N, C, H, W], or what stands for pictures that are decoded already: 0 then.
        dtype: that the VAE computes in; None where it isn't known.
    """
    if not isinstance(latents, torch.Tensor) or latents.dim() != 4 or getattr(latents, "already_decoded", False):
        return 0
    wide = dtype is not None and dtype.itemsize > 2
    return latents.shape[-1] * latents.shape[-2] * DECODER_BYTES * (2 if wide else 1)


def make_room(graphs: DeviceGraphs, device: torch.device, wanted_bytes: int) -> int:
    """Evict least recently used graphs until ``wanted_bytes`` can be allocated; returns the bytes released."""
    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    # What lies idle in a graph's pool is counted as reserved, and is nobody else's to use.
    free = graphs.backend.free_bytes() + max(0, idle - graphs.bytes)
    return graphs.evict(wanted_bytes - free) if free < wanted_bytes else 0
