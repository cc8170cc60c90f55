"""What a model with layers of 8 bits takes at most, with all that its first calls make: no more than a tenth beyond
what it takes without us.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core import CompileConfig, compile

pytestmark = pytest.mark.gpu
BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
WIDTH, ROWS, BLOCKS = 2048, 16384, 8


class Numbers(torch.Tensor):
    """Numbers of float8 and their scale, as ComfyUI's layers make one of each input: a product of two of them is
    PyTorch's.
    """

    data_: torch.Tensor
    scale_: torch.Tensor

    @staticmethod
    def __new__(cls, data: torch.Tensor, scale: torch.Tensor) -> Numbers:
        whole: Numbers = torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=BF16, device=data.device)
        whole.data_, whole.scale_ = data, scale
        return whole

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["data_", "scale_"], None

    @staticmethod
    def __tensor_unflatten__(parts: dict[str, torch.Tensor], context: Any, size: Any, stride: Any) -> Numbers:
        return Numbers(parts["data_"], parts["scale_"])

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (torch.ops.aten.detach.default, torch.ops.aten.t.default):
            return Numbers(func(args[0].data_), args[0].scale_)
        x, weight = args if func is torch.ops.aten.mm.default else (args[0], args[1].t())
        return torch._scaled_mm(x.data_, weight.data_, scale_a=x.scale_, scale_b=weight.scale_, out_dtype=BF16)


class Float8(nn.Module):
    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(
            Numbers(torch.randn(outer, inner).to(E4M3).cuda(), torch.full((), inner**-0.5, device="cuda")),
            requires_grad=False,
        )
        self.register_buffer("one", torch.ones((), device="cuda"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(Numbers((x / self.one).to(E4M3), self.one), self.weight)  # type: ignore[no-any-return]


class Int8(nn.Module):
    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(
            torch.randint(-127, 128, (outer, inner), dtype=torch.int8, device="cuda"), requires_grad=False
        )
        self.scale = nn.Parameter(torch.full((outer,), inner**-0.5 / 64, device="cuda"), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = (x.abs().amax(-1, keepdim=True).float() / 127.5).clamp(min=1e-7)
        q = (x * (1 / scale)).round().clamp(-128, 127).to(torch.int8)
        return (torch._int_mm(q, self.weight.t()).float() * scale * self.scale).to(x.dtype)


class Net(nn.Module):
    def __init__(self, make: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ups = nn.ModuleList(make(WIDTH, 4 * WIDTH) for _ in range(BLOCKS))
        self.downs = nn.ModuleList(make(4 * WIDTH, WIDTH) for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH, dtype=BF16, device="cuda").requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for up, down in zip(self.ups, self.downs, strict=True):
            x = x + down(F.gelu(up(self.norm(x))))
        return x


def _peak(run: Callable[[], object]) -> int:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


@pytest.mark.parametrize("make", [Float8, Int8])
def test_the_peak_is_at_most_a_tenth_above_eagers(make: Callable[[int, int], nn.Module]) -> None:
    net, x = Net(make), torch.randn(ROWS, WIDTH, dtype=BF16, device="cuda")
    with torch.no_grad():
        eager = _peak(lambda: [net(x).shape for _ in range(2)])
        handle = compile(net, CompileConfig())
        ours = _peak(lambda: [handle(x).shape for _ in range(5)])
    report = handle.engine.report
    assert report.calls["replayed"] and not report.calls["eager"], handle.report().text()
    assert ours <= 1.1 * eager, f"{ours / 2**20:.0f} MiB beside {eager / 2**20:.0f}"
