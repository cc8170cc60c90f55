"""Models of which a part is in pinned main memory, on a real device: results, bits, memory."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, CompiledModule, compile
from sfast_core.runtime.graphs import device_graphs
from sfast_core.weights import Held, Offload, WeightRef
from sfast_core.weights.offload import Computed
from tests.callers import calls
from tests.models import TransformerBlock, UNet
from tests.streaming import part_of

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda", 0)
WIDTH, BLOCKS = 1024, 12


class Stack(nn.Module):
    """Transformer blocks: (x [B, L, C], context [B, S, 12]) -> [B, L, C]. 17 million weights each."""

    def __init__(self, channels: int = WIDTH, blocks: int = BLOCKS) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(TransformerBlock(channels, 12) for _ in range(blocks))
        self.eval()

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, context)
        return x


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    graphs = device_graphs(DEVICE)
    assert graphs is not None
    gc.collect()
    graphs.release_all()  # a ring that is there is used, however large
    torch.cuda.empty_cache()
    with torch.no_grad():
        yield


def stack() -> Stack:
    torch.manual_seed(0)
    return Stack().to(DEVICE, torch.float16)


def inputs(seed: int, channels: int = WIDTH, length: int = 256) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((2, length, channels), (2, 77, 12))
    return tuple(torch.randn(*shape, generator=generator).to(DEVICE, torch.float16) for shape in shapes)


def offload(net: nn.Module, part: float, pinned: bool = True) -> int:
    """Let this part of a module's layers be in main memory, the rest on the device. Returns the bytes that are."""
    names, moved = part_of(net, part), 0
    for name, tensor in net.named_parameters():
        if name.startswith(names) if names else False:
            if tensor.device.type != "cpu":
                tensor.data = tensor.data.cpu().pin_memory() if pinned else tensor.data.cpu()
            moved += tensor.nbytes
        elif tensor.device.type == "cpu":
            tensor.data = tensor.data.to(DEVICE)
    torch.cuda.empty_cache()
    return moved


def compiled(net: nn.Module, **config: Any) -> CompiledModule:
    return compile(net, CompileConfig(**config))


def error(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((mine.double() - theirs.double()).norm() / theirs.double().norm())


@pytest.mark.parametrize("part", [0.0, 0.5, 0.9, 1.0])
def test_right_beside_float32_and_the_same_bits_each_time(part: float) -> None:
    net = stack()
    given = inputs(1)
    expected = stack().float()(*(each.float() for each in given))
    eager = error(net(*given), expected)
    handle = compiled(net)
    first = handle(*given)
    offload(net, part)
    results = [handle(*given) for _ in range(6)]
    assert error(results[-1], expected) <= 1.5 * eager + 1e-4
    assert all(torch.equal(result, first) for result in results)
    for seed in range(2, 8):  # other inputs in between: nothing of a call is left in the ring for the next
        handle(*inputs(seed))
    assert torch.equal(handle(*given), first)
    report = handle.engine.report
    assert calls(handle)["traced"] == 1 and "eager" not in calls(handle), report.reasons
    assert calls(handle)["replayed"] >= 11 and (report.signatures[0].streamed_bytes > 0) == (part > 0)


def test_another_part_each_time() -> None:
    net, given = stack(), inputs(1)
    handle = compiled(net)
    expected = handle(*given)
    for part in (0.0, 0.9, 0.3, 1.0, 0.0, 0.5, 0.5, 0.1):
        offload(net, part)
        for _ in range(3):
            assert torch.equal(handle(*given), expected), part
    assert calls(handle)["traced"] == 1 and "eager" not in calls(handle), handle.engine.report.reasons


def test_what_is_not_pinned_is_brought_without_a_graph() -> None:
    net, given = stack(), inputs(1)
    handle = compiled(net)
    expected = handle(*given)
    offload(net, 0.5, pinned=False)
    for _ in range(4):
        assert torch.equal(handle(*given), expected)
    assert calls(handle) == {"traced": 1, "fused": 4}


def test_weights_written_where_they_are() -> None:
    """In pinned memory: the next call brings what is there by then."""
    net, given = stack(), inputs(1)
    handle = compiled(net)
    for _ in range(3):
        handle(*given)
    offload(net, 1.0)
    for _ in range(3):
        before = handle(*given)
    torch.cuda.synchronize()
    for tensor in net.parameters():
        tensor.mul_(0.9)
    other = stack()
    for tensor in other.parameters():
        tensor.mul_(0.9)
    expected = compiled(other)(*given)
    assert error(handle(*given), expected) < 1e-2 < error(before, expected)
    assert handle.engine.report.signatures[0].captures == 2


class _Computing(Offload):
    """A host that adds something to some weights at each use."""

    def __init__(self, holds: bool) -> None:
        self.holds = holds  # what its functions read is on the device
        self.computed: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], ...]] = {}

    def functions(self, ref: WeightRef) -> tuple[Callable[[torch.Tensor], torch.Tensor], ...]:
        return self.computed.get(str(ref), ())

    def held(self, functions: tuple[Computed, ...], device: torch.device) -> tuple[Computed, ...]:
        return tuple(map(Held, functions)) if self.holds else functions

    def watch(self, refs: Sequence[WeightRef]) -> Callable[[], bool]:
        before = dict(self.computed)
        return lambda: self.computed == before


@pytest.mark.parametrize("holds", [False, True])
def test_what_the_host_computes_on_arrival(holds: bool) -> None:
    """As ComfyUI does for LoRAs of a partly loaded model: products of matrices, in a graph where they are on the
    device.
    """
    net, given = stack(), inputs(1)
    handle, host = compiled(net), _Computing(holds)
    handle.engine.store._offload = host  # type: ignore[attr-defined]
    plain = handle(*given)
    offload(net, 0.9)
    for _ in range(3):
        handle(*given)
    low = {
        name: (torch.randn(tensor.shape[0], 8).half(), torch.randn(8, tensor.shape[1]).half() * 0.01)
        for name, tensor in net.named_parameters()
        if "attn1" in name and tensor.dim() == 2
    }

    def add(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
        def added(weight: torch.Tensor) -> torch.Tensor:
            up, down = (each.to(weight.device) for each in low[name])
            return weight.add_(up @ down)

        return added

    if holds:
        low = {name: (up.to(DEVICE), down.to(DEVICE)) for name, (up, down) in low.items()}
    host.computed = {name: (add(name),) for name in low}
    before = calls(handle)
    other = stack()
    for name, (up, down) in low.items():
        other.get_parameter(name).add_(up.to(DEVICE) @ down.to(DEVICE))
    expected = compiled(other)(*given)
    for _ in range(3):
        assert torch.equal(handle(*given), expected)
    since = "replayed" if holds else "fused"
    assert calls(handle)[since] - before.get(since, 0) == 3, calls(handle)
    host.computed = {}
    for _ in range(3):
        assert torch.equal(handle(*given), plain)
    assert calls(handle)["traced"] == 1 and "eager" not in calls(handle), handle.engine.report.reasons


def test_convolutions_are_turned_on_the_way() -> None:
    torch.manual_seed(0)
    net = UNet(64).to(DEVICE, torch.float16)
    given = tuple(each.to(DEVICE) for each in UNet.inputs(size=32, dtype=torch.float16))
    handle = compiled(net)
    expected = handle(*given)
    for part in (1.0, 0.5):
        offload(net, part)
        for _ in range(3):
            assert torch.equal(handle(*given), expected)
    assert calls(handle)["traced"] == 1 and "eager" not in calls(handle), handle.engine.report.reasons


def test_memory_stays_within_the_budget() -> None:
    """Of weights nothing is on the device but the ring: what one instruction reads, twice, here 4 * WIDTH^2 numbers, or
    what is allowed.
    """
    net, given = stack(), inputs(1, length=16)
    handle = compiled(net, stream_budget_bytes=64 << 20)
    handle(*given)
    offload(net, 1.0)
    weights = sum(tensor.nbytes for tensor in net.parameters())
    for _ in range(3):
        handle(*given)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        handle(*given)
    ring = handle.engine.report.signatures[0].ring_bytes
    assert ring <= 1.05 * (64 << 20) and weights > 4 * ring and calls(handle)["replayed"] >= 5
    assert torch.cuda.max_memory_allocated() < 1.05 * ring + 128 * 2**20, (
        "beside cuBLAS's workspaces, inputs and what the graph holds"
    )


def test_what_stays_for_a_sampling() -> None:
    """The same bits with less to move, in the same memory; what was written since the last one is read in the next."""
    net, given = stack(), inputs(1)
    handle = compiled(net, stream_budget_bytes=256 << 20)
    expected = handle(*given)
    moved = offload(net, 1.0)
    for _ in range(3):
        assert torch.equal(handle(*given), expected)
    for _ in range(2):
        with handle.sampling():
            for _ in range(4):
                assert torch.equal(handle(*given), expected)
            report = handle.engine.report.signatures[0]
            assert report.streamed_bytes < moved - (100 << 20) and report.kept_bytes > 100 << 20
            assert report.ring_bytes + report.kept_bytes <= 1.05 * (256 << 20)
    torch.cuda.synchronize()
    for tensor in net.parameters():
        tensor.data.mul_(0.9)
    other = stack()
    for tensor in other.parameters():
        tensor.data.mul_(0.9)
    changed = compiled(other)(*given)
    with handle.sampling():
        for _ in range(3):
            assert error(handle(*given), changed) < 1e-2 < error(expected, changed)
    for tensor in net.parameters():
        tensor.data.div_(0.9)
    for _ in range(3):
        assert error(handle(*given), expected) < 1e-2
    assert calls(handle)["traced"] == 1 and "eager" not in calls(handle), handle.engine.report.reasons
    assert calls(handle)["fused"] == 1  # the one that shows what is made of each weight
