"""Cases of ``routed_experts``: with a gate and without, all activations, experts that nobody chooses or all do, sizes that
are no multiple of a tile.
"""

from __future__ import annotations

import torch

from tests.ops.case import Case, Data, Made, Make


def chosen(data: Data, tokens: int, experts: int, choices: int, only: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores and indices of the experts that each token goes to; ``only``: to none but so many of the first."""
    logits = data.normal(tokens, experts, dtype=torch.float32)
    if only is not None:
        logits[:, :only] += 100
    scores, indices = logits.softmax(-1).topk(choices)
    return scores, indices


def _case(
    tokens: int,
    sizes: tuple[int, int],
    experts: int,
    choices: int = 2,
    act: str = "gelu",
    gated: bool = False,
    bias: bool = True,
    only: int | None = None,
) -> Make:
    def make(dtype: torch.dtype, device: torch.device) -> Made:
        data, (width, hidden) = Data(dtype, device), sizes
        scores, indices = chosen(data, tokens, experts, choices, only)
        first = data.normal(experts * hidden, width, std=width**-0.5)
        second = data.normal(experts * width, hidden, std=hidden**-0.5)
        biases = (data.normal(experts * hidden), data.normal(experts * width)) if bias else (None, None)
        gate = data.normal(experts * hidden, width, std=width**-0.5) if gated else None
        x = data.normal(tokens, width)
        return (x, indices, scores.to(dtype), first, biases[0], second, biases[1], experts, act, gate), {}

    return make


CASES = [
    Case("gelu", _case(130, (64, 96), 4)),
    Case("a gate, no multiples of a tile", _case(75, (40, 72), 3, act="silu", gated=True, bias=False)),
    Case("experts that nobody chooses", _case(150, (32, 48), 8, act="gelu_tanh", only=2)),
    Case("one choice of two", _case(33, (48, 32), 2, 1, act="relu")),
]
GPU_CASES = [
    Case("Hunyuan3D 2.1", _case(8194, (2048, 8192), 8)),
    Case("HiDream", _case(8448, (2560, 6912), 4, act="silu", gated=True, bias=False)),
]
