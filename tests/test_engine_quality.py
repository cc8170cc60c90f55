"""The engine where the user allows less than exactness: within the budget, said, right when weights change, and nothing
of it where they don't allow it.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, CompiledModule, compile
from sfast_core.machine.choices import Choices
from sfast_core.quality.probe import Probe
from sfast_core.runtime.graphs import DeviceGraphs
from sfast_core.weights import WeightsElsewhere
from tests.fakes import FakeBackend
from tests.models import Forward, TransformerBlock, UNet
from tests.streaming import PretendOffload

X, CONTEXT = torch.randn(2, 9, 16), torch.randn(2, 5, 12)
BY_HALVES = "captured", "fused"


@pytest.fixture
def choices(monkeypatch: pytest.MonkeyPatch) -> Iterator[Choices]:
    """What is kept, of one test alone."""
    kept = Choices(None)
    monkeypatch.setattr("sfast_core.lowering._choices", lambda target: kept)
    with torch.no_grad():
        yield kept


@pytest.fixture
def graphs(choices: Choices, monkeypatch: pytest.MonkeyPatch) -> DeviceGraphs:
    """The CPU as a device that captures."""
    found = DeviceGraphs(FakeBackend())
    monkeypatch.setattr("sfast_core.engine.device_graphs", lambda device: found)
    return found


def block() -> TransformerBlock:
    torch.manual_seed(0)
    return TransformerBlock(16, 12).eval().requires_grad_(False)


def compiled(net: nn.Module, **config: Any) -> CompiledModule:
    return compile(net, CompileConfig(allow_cpu=True, **config))


def distance(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    return ((mine - theirs).norm() / theirs.norm()).item()


def lossy(handle: CompiledModule, index: int = 0) -> str:
    return "; ".join(handle.engine.report.signatures[index].lossy)


def test_by_default_nothing_of_it_is_there(choices: Choices) -> None:
    plain, same = compiled(block()), compiled(block(), quality="exact", quality_budget=0.5)
    assert torch.equal(plain(X, CONTEXT), same(X, CONTEXT))
    for handle in (plain, same):
        (signature,) = handle.engine.report.signatures
        assert not signature.lossy and "eight_bits" not in signature.passes and not handle.engine.report.copied_bytes
        assert "quality" not in handle.report().text()


@pytest.mark.parametrize(("quality", "budget"), [("near-exact", None), ("near-exact", 4e-3), ("fast", None)])
def test_the_result_is_within_the_budget_and_it_is_said(choices: Choices, quality: str, budget: float | None) -> None:
    net = block()
    expected = net(X, CONTEXT)
    handle = compiled(net, quality=quality, quality_budget=budget)
    for _ in range(2):
        assert 1e-4 < distance(handle(X, CONTEXT), expected) <= (budget or {"near-exact": 1e-2, "fast": 3e-2}[quality])
    (signature,) = handle.engine.report.signatures
    taken = signature.passes["eight_bits"]
    assert taken == (10 if budget is None else taken) and 0 < taken <= 10
    assert (
        lossy(handle).startswith(f"{taken} of 10 linear layers in 8 bits")
        and signature.distance is not None
        and signature.distance > 1e-4
    )
    assert f"quality: {quality}, as it is set" in handle.report().text() and handle.engine.report.copied_bytes > 0
    handle.uninstall()
    assert (
        torch.equal(net(X, CONTEXT), expected)
        and not handle.engine.store.copies.bytes
        and not handle.engine.report.copied_bytes
    )


def test_no_layer_takes_part_where_none_is_cheap_enough(choices: Choices) -> None:
    net = block()
    exact, handle = compiled(copy.deepcopy(net))(X, CONTEXT), compiled(net, quality="near-exact", quality_budget=1e-5)
    assert torch.equal(handle(X, CONTEXT), exact)
    assert lossy(handle) == "no product in 8 bits: each costs more than a result within 1.0e-05 of the exact one bears"


def test_layers_are_chosen_by_name(choices: Choices) -> None:
    handle = compiled(block(), quality="fast", quality_layers=("attn?.*", "!*.to_k"))
    handle(X, CONTEXT)
    assert lossy(handle).startswith("6 of 10 linear layers in 8 bits")
    parts = compiled(block(), quality="fast", quality_parts=("fp16_accumulation",))
    parts(X, CONTEXT)
    assert not lossy(parts) and "eight_bits" not in parts.engine.report.signatures[0].passes


def test_the_choice_is_the_same_again_and_is_kept(choices: Choices, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"quality": "near-exact", "quality_budget": 4e-3}
    first = compiled(block(), **config)
    result, said = first(X, CONTEXT), lossy(first)
    kept = dict(choices._choices)
    choices._choices.clear()
    again = compiled(block(), **config)
    assert torch.equal(again(X, CONTEXT), result) and lossy(again) == said and choices._choices == kept
    monkeypatch.setattr(Probe, "choose", lambda *_: pytest.fail("it was measured again"))
    kept_by_now = compiled(block(), **config)
    assert torch.equal(kept_by_now(X, CONTEXT), result) and lossy(kept_by_now) == said
    kept_by_now(X[:, :7], CONTEXT)  # nor for another size
    assert kept_by_now.engine.report.calls["traced"] == 2


def add_in_place(net: TransformerBlock) -> None:
    net.out.weight.add_(0.3)


def add_unseen(net: TransformerBlock) -> None:
    net.out.weight.data += 0.3


def replace(net: TransformerBlock) -> None:
    net.out.weight = nn.Parameter(net.out.weight + 0.3, requires_grad=False)


@pytest.mark.parametrize("captured", [True, False])
@pytest.mark.parametrize("sampling", [True, False])
@pytest.mark.parametrize("change", [add_in_place, add_unseen, replace])
def test_a_weight_that_changes_is_quantised_anew(
    graphs: DeviceGraphs, captured: bool, sampling: bool, change: Callable[[Any], None]
) -> None:
    """The bits are those of a model that has had these weights from the first call on, without a new trace, in the
    memory that there is.
    """
    net, config = block(), {"quality": "fast", "quality_budget": 0.5, "cuda_graphs": captured}
    handle = compiled(net, **config)
    within = handle.sampling if sampling else contextlib.nullcontext
    with within():
        for _ in range(3):
            before = handle(X, CONTEXT)
    held, captures = handle.engine.report.copied_bytes, graphs.captures
    change(net)
    with within():
        results = [handle(X, CONTEXT) for _ in range(3)]
    expected = compiled(copy.deepcopy(net), **config)(X, CONTEXT)
    assert all(torch.equal(result, expected) for result in results) and distance(before, expected) > 0.05
    assert handle.engine.report.calls["traced"] == 1 and handle.engine.report.copied_bytes == held
    assert captures == (1 if captured else 0) and graphs.captures == captures + (
        captured and not sampling and change is replace
    )


def test_within_a_sampling_what_is_seen_to_be_written_counts(graphs: DeviceGraphs) -> None:
    net, config = block(), {"quality": "fast", "quality_budget": 0.5}
    handle = compiled(net, **config)
    with handle.sampling():
        for change in (lambda net: None, add_in_place, replace):
            handle(X, CONTEXT)
            change(net)
            assert torch.equal(handle(X, CONTEXT), compiled(copy.deepcopy(net), **config)(X, CONTEXT))
    assert handle.engine.report.calls["traced"] == 1


def test_a_weight_of_another_dtype_is_traced_anew(choices: Choices) -> None:
    net = block()
    handle = compiled(net, quality="fast")
    handle(X, CONTEXT)
    net.double()
    expected = type(net).forward(net, X.double(), CONTEXT.double())
    assert distance(handle(X.double(), CONTEXT.double()), expected) < 1e-6 and "no linear layer is fit" in lossy(
        handle, -1
    )
    net.float()
    handle(X, CONTEXT)
    assert distance(handle(X, CONTEXT), expected) < 3e-2


def test_memory_that_the_host_takes_is_made_anew(graphs: DeviceGraphs) -> None:
    handle = compiled(block(), quality="fast")
    results = [handle(X, CONTEXT) for _ in range(3)]
    handle.engine.release_graphs()
    assert not handle.engine.report.copied_bytes and not handle.engine.store.copies.bytes
    results += [handle(X, CONTEXT) for _ in range(2)]
    assert all(torch.equal(result, results[0]) for result in results) and handle.engine.report.copied_bytes


def test_a_size_at_which_the_choice_is_too_coarse_is_measured_by_itself(choices: Choices) -> None:
    """And where a program is still too far away from what it was measured at, all is exact from then on."""

    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        return net.b(x) if x.shape[0] == 2 else net.b(x) - net.b(x + 1e-3)  # a difference of nearly the same

    torch.manual_seed(0)
    net = Forward(forward, b=nn.Linear(16, 16, bias=False)).requires_grad_(False)
    handle = compiled(net, quality="near-exact", quality_budget=2e-2)
    handle(X[:, 0])
    assert lossy(handle).startswith("1 of 1 linear layers in 8 bits")
    other = torch.cat([X[:, 0], X[:, 1]])
    expected = forward(net, other)
    results = [handle(other) for _ in range(3)]
    assert all(distance(result, expected) < 1e-3 for result in results)
    assert "each costs more" in lossy(handle, -1) and handle.engine.report.calls["eager"] == 1
    assert distance(handle(X[:, 0]), net.b(X[:, 0])) < 2e-2


@pytest.mark.parametrize("name", ["attn1.to_q", "norm1"])
def test_a_model_of_which_a_part_goes_to_main_memory(graphs: DeviceGraphs, name: str) -> None:
    """What is made of a weight that has to be brought isn't there: traced anew, without that layer in 8 bits.

    Without a trace where it isn't quantised.
    """
    net = block()
    handle, offload = compiled(net, quality="fast", quality_layers=("*",)), PretendOffload()
    handle.engine.store._offload = offload  # type: ignore[attr-defined]
    expected = net.__class__.forward(net, X, CONTEXT)
    for names, traced in (((), 1), ((name,), 2 if name == "attn1.to_q" else 1), ((), 2 if name == "attn1.to_q" else 1)):
        offload.names = names
        moved = net.get_submodule(name)
        moved.weight = nn.Parameter(moved.weight.clone(), requires_grad=False)
        assert all(distance(handle(X, CONTEXT), expected) < 3e-2 for _ in range(4))
        assert handle.engine.report.calls["traced"] == traced and not handle.engine.report.calls["eager"]


def test_a_model_that_is_partly_away_at_first(choices: Choices, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has to be brought takes no part. Where weights are on another device, nothing can be measured."""
    handle = compiled(block(), quality="fast")
    handle.engine.store._offload = PretendOffload("attn1.")  # type: ignore[attr-defined]
    handle(X, CONTEXT)
    assert lossy(handle).startswith("6 of 10 linear layers in 8 bits")
    elsewhere, asked = compiled(block(), quality="fast", quality_budget=0.5), []
    tensors = elsewhere.engine.store.tensors

    def first_elsewhere(*wanted: Any) -> Any:
        asked.append(wanted)
        if len(asked) == 1:
            raise WeightsElsewhere("a weight is on another device")
        return tensors(*wanted)

    monkeypatch.setattr(elsewhere.engine.store, "tensors", first_elsewhere)
    elsewhere(X, CONTEXT)
    assert lossy(
        elsewhere
    ) == "no product in 8 bits: a part of the model is elsewhere" and elsewhere.engine.report.calls == {"traced": 1}


def test_a_unet_with_all_that_reads_one_input_joined(choices: Choices) -> None:
    torch.manual_seed(0)
    net = UNet(32).eval().requires_grad_(False)
    inputs = UNet.inputs()
    expected, handle = net(*inputs), compiled(net, quality="near-exact")
    assert distance(handle(*inputs), expected) < 1e-2
    assert handle.engine.report.signatures[0].passes["pack_eight_bits"] == 12
