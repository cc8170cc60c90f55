"""GPUs as the impls are told of them, none of which need be there."""

from __future__ import annotations

import torch

from sfast_core.target import Target

H100 = Target(torch.device("cuda", 0), "H100", (9, 0), sm_count=132, shared_memory_bytes=232448, triton=True)
A100 = Target(torch.device("cuda", 0), "A100", (8, 0), sm_count=108, shared_memory_bytes=166912, triton=True)
RTX_4090 = Target(torch.device("cuda", 0), "RTX 4090", (8, 9), sm_count=128, shared_memory_bytes=101376, triton=True)
B200 = Target(torch.device("cuda", 0), "B200", (10, 0), sm_count=148, shared_memory_bytes=232448, triton=True)
