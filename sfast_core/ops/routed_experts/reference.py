"""The meaning of ``routed_experts`` in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def routed_experts(
    x: torch.Tensor,
    indices: torch.Tensor,
    scores: torch.Tensor,
    first: torch.Tensor,
    first_bias: torch.Tensor | None,
    second: torch.Tensor,
    second_bias: torch.Tensor | None,
    experts: int,
    act: str = "gelu",
    gate: torch.Tensor | None = None,
) -> torch.Tensor:
    """``y[t] = sum over k of scores[t, k] * expert[indices[t, k]](x[t])``, an expert being ``second @ act(first @ x)``,
    or ``second @ (act(gate @ x) * (first @ x))``.

    Args:
        x: (T, D), float, contiguous rows.
        indices: (T, K), int64, below ``experts``.
        scores: (T, K), float.
        first: (experts * H, D), the experts' one below the other, in x's dtype as all weights.
        first_bias: (experts * H,), without a gate.
        second: (experts * D', H).
        second_bias: (experts * D',).
        experts: how many.
        act: "gelu", "gelu_tanh", "silu" or "relu".
        gate: (experts * H, D).

    Returns:
        (T, D') in x's dtype, contiguous. Here all experts compute all rows.
    """
    outputs = []
    for expert in range(experts):
        hidden = F.linear(x, part(first, expert, experts), part(first_bias, expert, experts))
        if gate is None:
            hidden = activated(hidden, act)
        else:
            hidden = activated(F.linear(x, part(gate, expert, experts)), act) * hidden
        outputs.append(F.linear(hidden, part(second, expert, experts), part(second_bias, expert, experts)))
    return shared_out(indices, scores, outputs)


def shared_out(indices: torch.Tensor, scores: torch.Tensor, outputs: list[torch.Tensor]) -> torch.Tensor:
    """``y[t] = sum over k of scores[t, k] * outputs[indices[t, k]][t]``; what nobody chose may be infinite."""
    y = None
    for expert, out in enumerate(outputs):
        chosen = indices == expert
        share = torch.where(chosen, scores.to(out.dtype), 0).sum(1, keepdim=True)
        added = torch.where(chosen.any(1, keepdim=True), out * share, 0)
        y = added if y is None else y + added
    assert y is not None
    return y


def part(packed: torch.Tensor | None, expert: int, experts: int) -> torch.Tensor | None:
    """One of the experts' tensors that lie one below the other."""
    return None if packed is None else packed.chunk(experts)[expert]


def activated(x: torch.Tensor, act: str) -> torch.Tensor:
    """``x`` behind an activation, by its name."""
    if act in ("gelu", "gelu_tanh"):
        return F.gelu(x, approximate="tanh" if act == "gelu_tanh" else "none")
    return F.silu(x) if act == "silu" else F.relu(x)
