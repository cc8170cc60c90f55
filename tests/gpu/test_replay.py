"""The engine on a real device: graphs against eager while inputs, weights, shapes, streams and memory change."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import sfast_core
from sfast_core.native import load
from sfast_core.runtime.graphs import device_graphs
from tests.gpu.small_unet import DEVICE, distance, inputs, unet

pytestmark = pytest.mark.gpu


@pytest.fixture
def pair() -> Iterator[tuple[Any, Any]]:
    """A compiled UNet and an eager twin with the same weights."""
    twin = unet()
    fast = sfast_core.compile(copy.deepcopy(twin))
    with torch.inference_mode():
        yield fast, twin
    fast.uninstall()


def check(fast: Any, twin: Any, call: tuple[Any, ...], allowed: float = 1e-2) -> None:
    assert distance(fast(*call)[0], twin(*call)[0]) < allowed


def test_replays_new_values(pair: tuple[Any, Any]) -> None:
    fast, twin = pair
    for _ in range(5):
        check(fast, twin, inputs())
    assert fast.engine.report.calls == {"traced": 1, "replayed": 4}


def test_the_same_inputs_give_the_same_bits(pair: tuple[Any, Any]) -> None:
    fast, _ = pair
    call = inputs()
    results = [fast(*call)[0] for _ in range(5)][1:]
    assert all(torch.equal(results[0], result) for result in results[1:])


def test_results_are_the_callers_own(pair: tuple[Any, Any]) -> None:
    fast, _ = pair
    for _ in range(2):
        fast(*inputs())
    first = fast(*inputs())[0]
    kept = first.clone()
    fast(*inputs())
    assert torch.equal(first, kept)


@pytest.mark.parametrize(
    ("height", "width", "batch", "tokens"),
    [(24, 40, 2, 77), (32, 32, 1, 77), (32, 32, 3, 154), (26, 34, 2, 231), (64, 64, 2, 77)],
)
def test_other_shapes(pair: tuple[Any, Any], height: int, width: int, batch: int, tokens: int) -> None:
    fast, twin = pair
    for _ in range(3):
        check(fast, twin, inputs(height, width, batch, tokens))
        check(fast, twin, inputs())
    assert len(fast.engine.report.signatures) == 2 or (height, width, batch, tokens) == (32, 32, 2, 77)


def test_guidances_halves_and_others(pair: tuple[Any, Any]) -> None:
    """Two prompts for the same images, then for others, in any order: one graph,
    and the same bits for the same call.
    """
    fast, twin = pair
    guided, others = inputs(64, 64, 4), inputs(64, 64, 4)
    guided[0][2:] = guided[0][:2]
    first = [fast(*call)[0] for call in (guided, others)]
    for call, before in zip((guided, others, others, guided), (*first, *reversed(first)), strict=True):
        check(fast, twin, call)
        assert torch.equal(fast(*call)[0], before)
    (signature,) = fast.engine.report.signatures
    if load.why_not(DEVICE, "sfast_attention_status") is None:
        assert signature.passes["share_halves"] > 0


def test_weights_changed_in_place_and_replaced(pair: tuple[Any, Any]) -> None:
    fast, twin = pair
    for _ in range(3):
        fast(*inputs())
    names = [
        "mid_block.attentions.0.transformer_blocks.0.attn1.to_k",
        "mid_block.attentions.0.transformer_blocks.0.attn2.to_v",
        "conv_in",
    ]
    for name in names:
        mine, theirs = fast.get_submodule(name), twin.get_submodule(name)
        change = torch.randn_like(theirs.weight) * 0.1
        mine.weight.add_(change)
        theirs.weight.add_(change)
        check(fast, twin, inputs())
    captures = device_graphs(DEVICE).captures
    for name in names:
        mine, theirs = fast.get_submodule(name), twin.get_submodule(name)
        new = torch.randn_like(theirs.weight) * theirs.weight.std()
        mine.weight, theirs.weight = (
            torch.nn.Parameter(new.clone(), requires_grad=False),
            torch.nn.Parameter(new.clone(), requires_grad=False),
        )
        for _ in range(2):
            check(fast, twin, inputs())
    assert device_graphs(DEVICE).captures > captures
    assert fast.engine.report.calls["eager"] == 0


def test_what_was_replayed_for_nothing_is_dropped(pair: tuple[Any, Any]) -> None:
    """A replay starts before it is known whether its result may be used: not where a number has changed, or a weight
    whose old one is kept.
    """
    fast, twin = pair
    for _ in range(3):
        check(fast, twin, inputs())
    name = "mid_block.attentions.0.transformer_blocks.0.attn1"
    for heads in (1, 2):
        for model in (fast.module, twin):
            model.get_submodule(name).heads = heads
        for _ in range(3):
            check(fast, twin, inputs())
    mine, theirs = fast.get_submodule(f"{name}.to_q"), twin.get_submodule(f"{name}.to_q")
    kept = mine.weight, theirs.weight
    new = torch.randn_like(theirs.weight) * theirs.weight.std()
    for weights in ((new.clone(), new.clone()), kept, (new.clone(), new.clone())):
        mine.weight, theirs.weight = (torch.nn.Parameter(weight.clone(), requires_grad=False) for weight in weights)
        for _ in range(3):
            check(fast, twin, inputs())
    # two heads have their first trace again
    assert fast.engine.report.calls["eager"] == 0 and fast.engine.report.calls["traced"] == 2


def test_the_module_moves_away_and_back(pair: tuple[Any, Any]) -> None:
    fast, twin = pair
    for _ in range(3):
        fast(*inputs())
    fast.module.to("cpu")
    fast.module.to(DEVICE)
    for _ in range(3):
        check(fast, twin, inputs())


def test_uninstall_gives_the_bits_back() -> None:
    module = unet()
    with torch.inference_mode():
        call = inputs()
        before = module(*call)[0]
        fast = sfast_core.compile(module)
        for _ in range(3):
            fast(*call)
        fast.uninstall()
        assert torch.equal(module(*call)[0], before)
        assert module.conv_in.weight.is_contiguous()


def test_several_streams_and_threads(pair: tuple[Any, Any]) -> None:
    fast, twin = pair
    calls = [inputs() for _ in range(8)]
    expected = [twin(*call)[0] for call in calls]
    for _ in range(2):
        fast(*calls[0])
    torch.cuda.synchronize()
    got: list[Any] = [None] * len(calls)

    def work(index: int) -> None:
        with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(5):
                got[index] = fast(*calls[index])[0]
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(distance(a, b) < 1e-2 for a, b in zip(got, expected, strict=True))


def test_graphs_are_released_and_captured_again(pair: tuple[Any, Any]) -> None:
    fast, twin = pair
    for _ in range(3):
        fast(*inputs())
    assert device_graphs(DEVICE).bytes > 0
    device_graphs(DEVICE).release_all()
    assert device_graphs(DEVICE).bytes == 0
    for _ in range(3):
        check(fast, twin, inputs())
    assert device_graphs(DEVICE).bytes > 0


def test_graphs_outlive_cublas_workspaces(pair: tuple[Any, Any]) -> None:
    """torch.compile's graphs clear them all, and newer versions of PyTorch those of a stream when a graph captured on
    it ends.
    """
    fast, twin = pair
    for _ in range(3):
        fast(*inputs())
    captures = device_graphs(DEVICE).captures
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    taken = [torch.full((2**20,), float("nan"), device=DEVICE) for _ in range(32)]  # where they may have been
    for _ in range(3):
        check(fast, twin, inputs())
    assert all(tensor.isnan().all() for tensor in taken) and device_graphs(DEVICE).captures == captures


def test_a_capture_that_fails_leaves_the_host_alone() -> None:
    class Reads(torch.nn.Module):
        """A value read under capture fails; under the recorder it is refused before that, so it hides behind an op."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nonzero(x).float().sum() + x * 2

    module = sfast_core.compile(Reads().to(DEVICE))
    with torch.inference_mode():
        for _ in range(4):
            x = torch.randn(8, 8, device=DEVICE)
            assert torch.allclose(module(x), module.module.__class__.forward(module.module, x))
        assert torch.randn(4, device=DEVICE).isfinite().all()
    module.uninstall()


def test_graphs_to_be_timed_work_in_the_same_memory() -> None:
    graphs, size = device_graphs(DEVICE), 64 * 2**20
    assert graphs is not None
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    with graphs.backend.scratch():
        for _ in range(5):
            graphs.backend.capture(
                lambda: torch.empty(size, dtype=torch.uint8, device=DEVICE).zero_(), alone=True
            ).release()
        assert torch.cuda.memory_reserved() - before < 3 * size  # the warm-up's and the graphs'
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - before < size  # a segment of small blocks may stay: others' tensors


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_other_dtypes(dtype: torch.dtype) -> None:
    twin = unet(dtype)
    fast = sfast_core.compile(copy.deepcopy(twin))
    with torch.inference_mode():
        for _ in range(3):
            check(fast, twin, inputs(dtype=dtype), 5e-2 if dtype == torch.bfloat16 else 1e-3)
    assert fast.engine.report.calls["eager"] == 0
    fast.uninstall()


def test_error_against_float32_is_no_larger_than_eagers(pair: tuple[Any, Any]) -> None:
    fast, twin = pair
    call = inputs()
    exact = copy.deepcopy(twin).float()(*(tensor.float() for tensor in call))[0]
    for _ in range(2):
        fast(*call)
    assert distance(fast(*call)[0], exact) <= 1.5 * distance(twin(*call)[0], exact)


def test_the_random_numbers_of_the_host_stay(pair: tuple[Any, Any]) -> None:
    fast, _ = pair
    torch.cuda.manual_seed(5)
    expected = torch.randn(4, device=DEVICE)
    call = inputs()
    torch.cuda.manual_seed(5)
    for _ in range(3):
        fast(*call)
    assert torch.equal(torch.randn(4, device=DEVICE), expected)
