"""Attention of a batch whose halves may be the same: what is taken for the same, and that it makes no difference to
what comes out.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from sfast_core.native import load
from sfast_core.ops.attention import cuda_impl
from sfast_core.ops.attention.tiling import WARPGROUPS
from sfast_core.ops.attention_of_halves import OP
from sfast_core.runtime.backend import CudaBackend
from tests.targets import H100


@pytest.mark.parametrize(("batch", "reason"), [(2, None), (6, None), (3, "cuda: a batch of 3 has no halves")])
def test_it_takes_batches_with_halves(asked: list[str], batch: int, reason: str | None) -> None:
    q = torch.empty(batch, 300, 8, 40, dtype=torch.float16, device="meta").transpose(1, 2)
    assert OP.impls[0].why_not(H100, q, q, q) == reason
    assert asked == ([] if reason else ["sfast_attention_status"])


def test_it_takes_no_more_than_the_kernel() -> None:
    q = torch.empty(2, 300, 8, 80, dtype=torch.float16, device="meta").transpose(1, 2)
    assert OP.impls[0].why_not(H100, q, q, q) == "cuda: head size 80 is not one of (40, 64)"


def _operands(head: int, batch: int, heads: int, tokens: int) -> list[torch.Tensor]:
    """Views of a packed projection whose halves are the same."""
    torch.manual_seed(0)
    half = torch.randn(batch // 2, tokens, 3, heads, head, device="cuda", dtype=torch.float16)
    return [part.transpose(1, 2) for part in torch.cat([half, half]).unbind(2)]


def _launch(operands: list[torch.Tensor]) -> tuple[torch.Tensor, int]:
    """The result, and what was found: 0 where the halves are the same."""
    batch, heads, tokens, head = operands[0].shape
    whole, half = (
        cuda_impl.tiling_on(operands[0].device, images * heads, tokens, tokens, head) for images in (batch, batch // 2)
    )
    differ = torch.full((1,), 7, dtype=torch.int32, device="cuda")
    return cuda_impl.launch_tiled(whole, *operands, half=half, differ=differ), int(differ)


@pytest.mark.gpu
@pytest.mark.parametrize("head", WARPGROUPS)
@pytest.mark.parametrize(("batch", "heads", "tokens"), [(2, 8, 4096), (4, 3, 1001), (2, 1, 129)])
def test_one_half_is_computed_for_both(head: int, batch: int, heads: int, tokens: int) -> None:
    if reason := load.why_not(torch.device("cuda"), "sfast_attention_status"):
        pytest.skip(reason)
    operands = _operands(head, batch, heads, tokens)
    found, differ = _launch(operands)
    expected = cuda_impl.launch(*(x[: batch // 2] for x in operands))
    assert differ == 0 and torch.equal(found, torch.cat([expected, expected]))


@pytest.mark.gpu
@pytest.mark.parametrize("head", WARPGROUPS)
@pytest.mark.parametrize("where", range(3), ids="qkv")
@pytest.mark.parametrize("at", [(0, 0, 0), (1, 2, 1000), (1, 1, 500)], ids=["first", "last", "between"])
def test_one_other_element_and_all_is_computed(head: int, where: int, at: tuple[int, int, int]) -> None:
    """Wherever it is, and by its bits: 0 and -0 are the same number."""
    if reason := load.why_not(torch.device("cuda"), "sfast_attention_status"):
        pytest.skip(reason)
    operands = _operands(head, 4, 3, 1001)
    for tensor in operands:
        tensor[:, :, :, -1] = 0.0
    operands[where][2:][at][-1] = -0.0
    found, differ = _launch(operands)
    assert differ == 1 and torch.equal(found, cuda_impl.launch(*operands))


@pytest.mark.gpu
def test_two_in_one_graph_look_each_for_itself() -> None:
    """As the engine captures: what an op finds goes into a counter of its own, all of which are zeroed in front of the
    graph.
    """
    device = torch.device("cuda", 0)
    if reason := load.why_not(device, "sfast_attention_status"):
        pytest.skip(reason)
    both = [_operands(40, 2, 8, 1024), _operands(64, 2, 5, 1001)]
    into = [torch.empty_like(OP.impls[0].launch(*operands)) for operands in both]

    def run() -> None:
        for operands, out in zip(both, into, strict=True):
            out.copy_(OP.impls[0].launch(*operands))

    replay = CudaBackend(device).capture(run)
    same = [[x.clone() for x in operands] for operands in both]
    for changes in itertools.product((None, 1.0, -0.0, float("nan")), repeat=2):
        for operands, before, change in zip(both, same, changes, strict=True):
            for x, y in zip(operands, before, strict=True):
                x.copy_(y)
            if change is not None:
                operands[1][1, -1, -1, -1] = change  # a key's last element, of the second half
        replay.replay()
        for out, operands, change in zip(into, both, changes, strict=True):
            one = cuda_impl.launch(*(x[:1] for x in operands))
            expected = cuda_impl.launch(*operands) if change is not None else torch.cat([one, one])
            assert torch.equal(out.nan_to_num(7.0), expected.nan_to_num(7.0))
            assert bool(out[1].isnan().any()) == (change is not None and change != change) and not out[0].isnan().any()
    replay.release()


@pytest.mark.gpu
def test_a_replay_looks_anew() -> None:
    """What was the same at capture may be another image at the next replay, and the same again."""
    device = torch.device("cuda")
    if reason := load.why_not(device, "sfast_attention_status"):
        pytest.skip(reason)
    operands = _operands(40, 2, 8, 1024)
    OP.impls[0].launch(*operands)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = OP.impls[0].launch(*operands)
    one = cuda_impl.launch(*(x[:1] for x in operands))
    for same in (True, False, True):
        operands[0][1] = operands[0][0] if same else operands[0][0] + 1
        graph.replay()
        assert torch.equal(out, torch.cat([one, one]) if same else cuda_impl.launch(*operands))
