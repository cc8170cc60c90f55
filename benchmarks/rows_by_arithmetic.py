"""``python -m benchmarks.rows_by_arithmetic``: what one picture cut along its rows would take on several GPUs.

Without a GPU: diffusers' Flux, Qwen-Image, Wan 14B and SDXL's VAE are recorded at full size on tensors that have no
values, cut as a call would be, and their products, bytes and exchanges counted. The speeds are assumed, by default an
H100's with NVLink; the result is a prediction, which ``benchmarks.several_gpus`` is to be held against. Prints a table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph

from sfast_core.capture import Signature, Untraceable, record
from sfast_core.capture.guards import ReadSet
from sfast_core.sharding import Speeds, cut, cut_in_stripes, has_images, prepared, row_counts, times

from .command import plain_parser

_META = torch.device("meta")
Made = tuple[Any, dict[str, Any]]


def _flux() -> Made:
    from diffusers import FluxTransformer2DModel

    given = {
        "hidden_states": _tensor(1, 4096, 64),
        "encoder_hidden_states": _tensor(1, 512, 4096),
        "pooled_projections": _tensor(1, 768),
        "timestep": _tensor(1),
        "guidance": _tensor(1),
        "img_ids": _tensor(4096, 3),
        "txt_ids": _tensor(512, 3),
    }
    return FluxTransformer2DModel(guidance_embeds=True), given


def _qwen_image() -> Made:
    from diffusers import QwenImageTransformer2DModel

    given = {
        "hidden_states": _tensor(1, 4096, 64),
        "encoder_hidden_states": _tensor(1, 512, 3584),
        "timestep": _tensor(1),
        "img_shapes": [[(1, 64, 64)]],
    }
    return QwenImageTransformer2DModel(), given


def _wan() -> Made:
    from diffusers import WanTransformer3DModel

    given = {
        "hidden_states": _tensor(1, 16, 21, 60, 104),
        "timestep": _tensor(1),
        "encoder_hidden_states": _tensor(1, 512, 4096),
    }
    return WanTransformer3DModel(), given


def _vae() -> Made:
    from diffusers import AutoencoderKL

    halves = {"down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4}
    net = AutoencoderKL(block_out_channels=(128, 256, 512, 512), layers_per_block=2, **halves)
    return net.decoder, {"sample": _tensor(1, 4, 256, 256)}


MODELS: dict[str, Callable[[], Made]] = {
    "Flux dev 1024x1024": _flux,
    "Qwen-Image 1024x1024": _qwen_image,
    "Wan 2.1 14B 832x480, 81 frames": _wan,
    "SDXL VAE decode 2048x2048": _vae,
}


def recorded(make: Callable[[], Made]) -> Graph:
    """The graph of one call in bfloat16, as rules know it."""
    with torch.device(_META), torch.no_grad():
        net, given = make()
        net = net.to(torch.bfloat16).eval()
        given.update({} if "sample" in given else {"return_dict": False})
        tensors = Signature((), given).tensors
        _, trace, _ = record(lambda: net(**given), tensors, net, _META, ReadSet(net, net.forward))
    if isinstance(trace, Untraceable):
        raise RuntimeError(trace.reason)
    prepared(trace.graph)
    return trace.graph


def lines(name: str, graph: Graph, speeds: Speeds, gpus: tuple[int, ...]) -> list[str]:
    """A row of the table for each number of GPUs."""
    found = []
    for count in gpus:
        lengths = [length for length in row_counts(graph) if length >= 2 * count][:4]
        ways = [cut(graph, count, length, made_for=[0]) for length in lengths]
        ways += [cut_in_stripes(graph, count, made_for=[0])] if has_images(graph) else []
        made = max(ways, key=lambda way: times(graph, way, speeds).gain)
        by = times(graph, made, speeds)
        cells = [
            name,
            str(count),
            str(made.rows),
            str(len(made.gathers)),
            f"{by.exchanged_bytes / 1e6:.0f}",
            f"{by.own_s / by.alone_s:.3f}",
            f"{by.exchanged_s / by.alone_s:.3f}",
            f"{by.gain:.2f}",
        ]
        found.append(f"| {' | '.join(cells)} |")
    return found


def _tensor(*size: int) -> torch.Tensor:
    return torch.empty(size, device=_META, dtype=torch.bfloat16)


def main() -> None:
    """Parse arguments, record, count, print."""
    parser = plain_parser("rows_by_arithmetic", __doc__)
    parser.add_argument("--models", help="which, by the beginnings of their names, separated by commas (default: all)")
    parser.add_argument("--tflops", type=float, default=650.0, help="of products, a second (650)")
    parser.add_argument("--memory", type=float, default=2.6, help="TB of memory, a second (2.6)")
    parser.add_argument("--link", type=float, default=300.0, help="GB from GPU to GPU, a second (300)")
    parser.add_argument("--exchange-us", type=float, default=40.0, help="what an exchange takes besides (40)")
    args = parser.parse_args()
    speeds = Speeds(args.tflops * 1e12, args.memory * 1e12, args.link * 1e9, args.exchange_us * 1e-6)
    header = ["model", "GPUs", "rows", "exchanges", "MB to each", "own work", "exchanges' time", "x one GPU"]
    print(f"| {' | '.join(header)} |\n{'|---' * len(header)}|")
    for name, make in MODELS.items():
        if args.models is None or any(name.startswith(beginning) for beginning in args.models.split(",")):
            print("\n".join(lines(name, recorded(make), speeds, (2, 4, 8))), flush=True)


if __name__ == "__main__":
    main()
