"""What quantises: rows, behind an activation or a norm, rotated or not; a whole tensor with one scale."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from sfast_core.ops.norm_quantise import reference as norm_reference
from sfast_core.ops.norm_quantise import triton_impl as norm
from sfast_core.ops.quantise_rows import reference as rows_reference
from sfast_core.ops.quantise_rows import triton_impl as rows
from sfast_core.ops.quantise_rows.triton_impl import QuantiseTile, quantise_tile

from .cases import DTYPE, FP8, INT8
from .timing import Row, Table, microseconds

PART = "quantising"
EPS = 1e-6
NORMS = ((4608, 3072), (8704, 3840), (512, 3072), (2048, 1280))
ACTS = ((4608, 3072, "none"), (4608, 12288, "gelu_tanh"), (8704, 10240, "swiglu"), (4608, 15360, "none"), (16384, 14336, "gelu_tanh"))
TENSORS = ((4608, 3072), (4608, 12288))
WAYS = (("int8", INT8, 0), ("int8", INT8, 64), ("int8", INT8, 256), ("fp8", FP8, 0))


def run() -> Table:
    """All of it: the first of each kind in several tiles, the others in the one that is chosen."""
    table = Table(PART)
    for count, channels in NORMS:
        x, residual = (torch.randn(1, count, channels, device="cuda").to(DTYPE) for _ in range(2))
        scale, shift, gate = (torch.randn(1, 1, channels, device="cuda").to(DTYPE) for _ in range(3))
        for name, kind, rotation in WAYS:
            for full in (False, True):
                given: dict[str, Any] = {"scale": scale, "shift": shift, "rotation": rotation}
                if full:
                    given |= {"residual": residual, "gate": gate}
                truth = norm_reference.norm_quantise(x, kind, "layer", EPS, **given)[1:]
                for tile in _tiles(channels, rotation, (count, channels) == NORMS[0]):
                    what = f"layer norm{', residual' if full else ''}, rotated {rotation}, {tile}"
                    launch = partial(norm.launch, x, kind, "layer", EPS, **given, tile=tile)
                    moved = x.numel() * (2 * 3 + 1 if full else 2 + 1)
                    _add(table, what, count, channels, name, moved, launch, truth)
    for count, channels, act in ACTS:
        x = torch.randn(count, channels * (2 if act in rows_reference.GATED else 1), device="cuda").to(DTYPE)
        for name, kind, rotation in WAYS:
            truth = rows_reference.quantise_rows(x, kind, act, rotation)
            for tile in _tiles(channels, rotation, act == "gelu_tanh" and channels == 12288):
                rows_launch = partial(rows.launch, x, kind, act, rotation, tile)
                _add(table, f"{act}, rotated {rotation}, {tile}", count, channels, name, x.numel() * 2 + count * channels, rows_launch, truth)
    for count, channels in TENSORS:
        x = torch.randn(count, channels, device="cuda").to(DTYPE)
        scale = (x.abs().amax() / 448).float().reshape(1)
        host = (x * (1 / scale).to(x.dtype)).clamp(-448, 448).to(FP8)
        _add(table, "tensor, given scale", count, channels, "fp8", x.numel() * 3, partial(_given_scale, x, scale), (host, scale))
        _add(table, "tensor, dynamic", count, channels, "fp8", x.numel() * 5, partial(rows.quantise_dynamic, x, FP8), (host, scale))
    return table


def _given_scale(x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return rows.quantise_tensor(x, scale, FP8), scale


def _tiles(channels: int, rotation: int, several: bool) -> list[QuantiseTile]:
    first = quantise_tile(channels, rotation)
    if not several:
        return [first]
    found = [first, first._replace(warps=max(1, first.warps // 2))]
    if first.warps < 16:
        found.append(first._replace(warps=first.warps * 2))
    if first.block <= 4096:
        found.append(first._replace(rows=first.rows * 4, warps=min(16, first.warps * 2)))
    return found


def _add(
    table: Table,
    what: str,
    count: int,
    channels: int,
    kind: str,
    moved: int,
    launch: Callable[[], tuple[torch.Tensor, ...]],
    truth: tuple[torch.Tensor, ...],
) -> None:
    row = Row(PART, f"{count}x{channels}", count, 0, channels, kind, what)
    try:
        q, scales = launch()[-2:]
        expected, factors = truth
        value = expected.float() * factors
        row.kernel_error = ((q.float() * scales - value).norm() / value.norm()).item()
        differing = (q.float() != expected.float()).float().mean().item()
        row.us = microseconds(launch)
        row.gbps = moved / row.us / 1e3
        row.note = f"differ {differing:.1e}"
    except Exception as error:  # Triton's: many kinds
        row.note = f"{type(error).__name__}: {str(error)[:90]}"
    table.add(row)
