"""What ``benchmarks.ops --variants`` times beside the impls: the tiles that an op could choose, and parts of it ("part
...": what the rest costs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from .op_timing import Launch


def variants(op: str, arguments: tuple[Any, ...]) -> dict[str, Launch]:
    """The variants of an op for these arguments (on a GPU), each a function of them; none for an op that has none."""
    return _VARIANTS[op](arguments) if op in _VARIANTS else {}


def _product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *_: Any) -> torch.Tensor:
    return F.linear(x, weight, bias)


def _linear(arguments: tuple[Any, ...]) -> dict[str, Launch]:
    *_, gated, residual = arguments
    if gated:
        return _geglu()
    return {} if residual is None else _linear_add(arguments)


def _geglu() -> dict[str, Launch]:
    from sfast_core.ops.linear import triton_tma_impl

    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count

    def fused(tile: triton_tma_impl.Tile) -> Launch:
        def launch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, act: str, *_: Any) -> torch.Tensor:
            out = x.new_empty((*x.shape[:-1], weight.shape[0] // 2))
            return triton_tma_impl.launch_tile(tile, multiprocessors, x, weight, bias, act, out)

        return launch

    found: dict[str, Launch] = {"part product": _product}
    for tile in triton_tma_impl.TILES:
        found[f"{tile.rows}x2x{tile.cols} w{tile.warps} s{tile.stages} p{tile.per_sm}"] = fused(tile)
    return found


def _linear_add(arguments: tuple[Any, ...]) -> dict[str, Launch]:
    """With the LayerNorm that follows in models, in whose kernel the sum is: what an impl has to beat there."""
    from sfast_core.ops.add_layer_norm import triton_impl as norm
    from sfast_core.ops.linear import OP
    from sfast_core.target import probe

    def then_norm(launch: Launch) -> Launch:
        return lambda *args: norm.launch(launch(*args), None, None, None, 1e-5)

    def add_in_norm(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, act: str, gated: bool, residual: torch.Tensor
    ) -> Any:
        return norm.launch(F.linear(x, weight, bias), residual, None, None, 1e-5)

    found: dict[str, Launch] = {"part product": _product, "part product, add in norm": add_in_norm}
    fitting = [impl for impl in OP.impls if impl.why_not(probe(arguments[0].device), *arguments) is None]
    return found | {f"part {impl.name}, then norm": then_norm(impl.launch) for impl in fitting}


def _conv(arguments: tuple[Any, ...]) -> dict[str, Launch]:
    return {"part convolution": lambda x, weight, bias, s, p, d, g, *rest: F.conv2d(x, weight, None, s, p, d, g)}


def _upsample(arguments: tuple[Any, ...]) -> dict[str, Launch]:
    from sfast_core.ops.upsample_conv2d.triton_impl import transposed_weight

    ready = transposed_weight(arguments[1])
    return {
        "part weight": lambda x, weight, bias: transposed_weight(weight),
        "part transposed convolution": lambda x, weight, bias: F.conv_transpose2d(x, ready, None, stride=2, padding=1),
    }


def _attention(arguments: tuple[Any, ...]) -> dict[str, Launch]:
    return dict(_cross_tiles(arguments[1].shape[2], arguments[0].shape[3])) if arguments[1].shape[2] <= 128 else {}


def _cross_tiles(keys: int, depth: int) -> Iterator[tuple[str, Launch]]:
    from sfast_core.ops.attention import triton_cross_impl

    chosen = triton_cross_impl.tiling(keys, depth)
    for rows, warps, stages in ((128, 8, 2), (128, 4, 2), (64, 4, 2), (64, 4, 1)):
        if sum(chosen.head) > 96 and rows == 128:
            continue
        plan = chosen._replace(block_l=rows, warps=warps, stages=stages)
        for blocks in (1, 2, 4):
            yield f"L{rows} w{warps} s{stages} x{blocks}", _cross(plan, blocks)


def _cross(plan: Any, blocks: int) -> Launch:
    from sfast_core.ops.attention import triton_cross_impl

    def launch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any) -> torch.Tensor:
        out = q.new_empty((q.shape[0], q.shape[2], q.shape[1], q.shape[3]))
        triton_cross_impl.launch_tiled(plan, blocks, q, k, v, q.shape[3] ** -0.5, out)
        return out.transpose(1, 2)

    return launch


_VARIANTS: dict[str, Callable[[tuple[Any, ...]], dict[str, Launch]]] = {
    "linear": _linear,
    "conv2d_act": _conv,
    "upsample_conv2d": _upsample,
    "attention": _attention,
}
