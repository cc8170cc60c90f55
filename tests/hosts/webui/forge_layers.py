"""In Forge's Python, with Forge on the path: its layers with quantised weights, compiled, beside what they compute by
themselves.

Prints each type that was tried; raises where a result is another, or a call ran as it was.
"""

from __future__ import annotations

import sys

sys.argv = [sys.argv[0], "--always-cpu"]  # Forge reads them when it is imported

import gguf  # noqa: E402
import torch  # noqa: E402
from backend import operations  # noqa: E402
from backend.operations_gguf import ParameterGGUF, quants_mapping  # noqa: E402
from torch import nn  # noqa: E402

from sfast_core import CompileConfig  # noqa: E402
from sfast_core.engine import Engine  # noqa: E402
from sfast_core.hosts.webui.blocks import forges_blocks  # noqa: E402

N, K = 64, 512
#: Where a block has its scales, if not at its beginning alone.
SCALES = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
}


def weight_of(kind: gguf.GGMLQuantizationType, seed: int) -> ParameterGGUF:
    """Random blocks as Forge has read and laid them out."""
    values, size = gguf.GGML_QUANT_SIZES[kind]
    data = torch.randint(
        0, 256, (N, K // values, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )
    for begin in SCALES.get(kind.name, (0,)):
        data[:, :, begin : begin + 2] = torch.full((1,), 0.002).half().view(torch.uint8)
    read = type("Read", (), {"data": data.reshape(N, -1).numpy(), "tensor_type": kind, "shape": (K, N)})
    parameter = ParameterGGUF(read)
    parameter.computation_dtype = torch.float16
    parameter.gguf_cls.bake(parameter)
    return parameter


def net_of(kind: gguf.GGMLQuantizationType) -> nn.Module:
    with operations.using_forge_operations(
        device=torch.device("cpu"), dtype=torch.float32, manual_cast_enabled=True, bnb_dtype="gguf"
    ):
        layers = [nn.Linear(K, N), nn.GELU(), nn.Linear(N, K), nn.Linear(K, N)]
    for seed, layer in ((0, layers[0]), (1, layers[3])):
        layer.weight, layer.bias = weight_of(kind, seed), nn.Parameter(torch.randn(N), requires_grad=False)
    layers[2] = torch.nn.Sequential(torch.nn.Identity(), Plain(N, K))
    return nn.Sequential(*layers).eval().requires_grad_(False)


class Plain(nn.Module):
    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(outer, inner) / inner**0.5, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.matrix)


for each in quants_mapping:
    if each.name == "BF16":
        continue
    net, engine = net_of(each), Engine("net", CompileConfig(allow_cpu=True), forges_blocks)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(5, K)
            torch.testing.assert_close(engine.call(net, net.forward, (x,), {}), net(x), rtol=2e-3, atol=2e-3)
    report = engine.report
    assert report.calls == {"traced": 1, "fused": 2}, (each.name, report.calls, report.reasons)
    assert not report.signatures[-1].segments, (each.name, report.signatures[-1])
    print(each.name, flush=True)
