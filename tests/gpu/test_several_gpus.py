"""One call on two GPUs against eager and against one GPU, while weights, sizes and memory change."""

from __future__ import annotations

import contextlib
import copy
import gc
from typing import Any

import pytest
import torch

import sfast_core
from sfast_core.runtime.graphs import device_graphs
from sfast_core.several import in_rows
from sfast_core.several.links import Links
from sfast_core.sharding import Speeds
from tests.gpu.small_unet import distance, inputs, unet
from tests.sharding.test_stripes import Decoder
from tests.sharding.transformers import ALL, FluxLike

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs 2 GPUs"),
    pytest.mark.usefixtures("no_gradients"),
]
OTHER = torch.device("cuda", 1)


def pair() -> tuple[Any, Any]:
    twin = unet()
    return sfast_core.compile(copy.deepcopy(twin), devices=2), twin


def check(fast: Any, twin: Any, given: tuple[Any, ...]) -> torch.Tensor:
    result: torch.Tensor = fast(*given, return_dict=False)[0]
    assert distance(result, twin(*given, return_dict=False)[0]) < 5e-3
    return result


def cut(fast: Any) -> bool:
    return any(
        "1 on cuda:0, 1 on cuda:1" in line or "are computed as" in line for line in fast.report().modules[0].several
    )


def test_the_halves_of_a_batch_are_computed_on_two() -> None:
    fast, twin = pair()
    given = inputs()
    with fast.sampling():
        first = check(fast, twin, given)
        for _ in range(5):
            assert torch.equal(check(fast, twin, given), first)
        (
            check(fast, twin, inputs()),
            check(fast, twin, inputs(batch=4)),
            check(fast, twin, inputs(batch=3)),
            check(fast, twin, inputs(24, 40)),
        )
    assert cut(fast), fast.report().text()
    report = fast.report().modules[0]
    assert report.calls["eager"] == 0 and report.calls["replayed"] >= 5 and device_graphs(OTHER).bytes > 0  # type: ignore[union-attr]


@pytest.fixture
def worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """By arithmetic that doesn't know how small they are."""
    monkeypatch.setattr(in_rows, "measured", lambda *_: Speeds(1e11, 1e10, 1e10, 0.0))


def rows_of(kind: Any) -> tuple[Any, Any]:
    twin = kind().half().cuda().eval()
    return sfast_core.compile(copy.deepcopy(twin), devices=2), twin


def given_to(kind: Any, **size: int) -> list[torch.Tensor]:
    return [x.cuda() if x.dtype is torch.bool else x.half().cuda() for x in kind.inputs(**size)]


@pytest.mark.parametrize("kind", ALL)
def test_one_image_is_computed_in_rows_on_two(worth_it: None, kind: Any) -> None:
    fast, twin = rows_of(kind)
    given = given_to(kind)
    with fast.sampling():
        first = fast(*given)
        for _ in range(6):
            assert torch.equal(fast(*given), first)
            other = given_to(kind)
            assert distance(fast(*other), twin(*other)) < 5e-3
        larger = given_to(kind, side=20)
        for _ in range(3):
            assert distance(fast(*larger), twin(*larger)) < 5e-3
    report = fast.report().modules[0]
    wide: list[Any] = [entry.wide for on in fast.engine.devices for entry in on.entries._all() if entry.wide]
    assert wide and all(program._copies._exchanges for program in wide), "the copies are captured, too"
    assert any("tokens are divided among 2" in line for line in report.several), fast.report().text()
    assert report.calls["eager"] == 0 and report.calls["replayed"] >= 8 and device_graphs(OTHER).bytes > 0  # type: ignore[union-attr]


def test_a_picture_is_decoded_in_stripes_on_two(worth_it: None) -> None:
    twin = Decoder().half().cuda().eval()
    fast = sfast_core.compile(copy.deepcopy(twin), devices=2)
    with fast.sampling():
        x = torch.randn(1, 4, 32, 24, device="cuda").half()
        first = fast(x)
        for _ in range(5):
            assert torch.equal(fast(x), first)
            other = torch.randn(1, 4, 32, 24, device="cuda").half()
            assert distance(fast(other), twin(other)) < 5e-3
    assert any("rows of pixels are divided among 2" in line for line in fast.report().modules[0].several)


def test_weights_that_change_change_in_rows_too(worth_it: None) -> None:
    fast, twin = rows_of(FluxLike)
    given = given_to(FluxLike)
    for sampling in (True, False):
        with fast.sampling() if sampling else contextlib.nullcontext():
            for step in range(4):
                for net in (fast.module, twin):
                    net.first[0].weight.copy_(torch.full_like(net.first[0].weight, 0.01 * (step + 1)))
                assert distance(fast(*given), twin(*given)) < 5e-3
    assert any("tokens are divided among 2" in line for line in fast.report().modules[0].several)


def test_rows_whose_exchange_fails_are_computed_on_the_first(worth_it: None, monkeypatch: pytest.MonkeyPatch) -> None:
    fast, twin = rows_of(FluxLike)
    given = given_to(FluxLike)
    with fast.sampling():
        for _ in range(3):
            fast(*given)

        def fails(*_: Any) -> None:
            raise RuntimeError("the link is gone")

        monkeypatch.setattr(Links, "put_in_place", fails)
        assert distance(fast(*given), twin(*given)) < 5e-3
        assert "the link is gone" in fast.report().text()
        monkeypatch.undo()
        assert distance(fast(*given), twin(*given)) < 5e-3


def test_weights_that_change_change_there_too() -> None:
    fast, twin = pair()
    with fast.sampling():
        for _ in range(3):
            check(fast, twin, inputs())
    for way in ("in place", "unseen", "replaced"):
        torch.manual_seed(1)
        # its like would be drawn in the order that it lies in
        new = torch.randn(twin.conv_in.weight.shape, dtype=torch.float16, device="cuda") * 0.05
        for net in (fast.module, twin):
            weight = net.conv_in.weight
            if way == "in place":
                weight.copy_(new)
            elif way == "unseen":
                weight.data.copy_(new * 2)
            else:
                net.conv_in.weight = torch.nn.Parameter(new * 3, requires_grad=False)
        check(fast, twin, inputs())
        with fast.sampling():
            check(fast, twin, inputs()), check(fast, twin, inputs())
    assert cut(fast), fast.report().text()


def test_what_the_other_holds_is_given_back() -> None:
    gc.collect()  # what other tests left
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(OTHER)
    fast, twin = pair()
    with fast.sampling():
        for _ in range(3):
            check(fast, twin, inputs())
        assert torch.cuda.memory_allocated(OTHER) > before
        fast.engine.release_graphs()
        assert torch.cuda.memory_allocated(OTHER) <= before + (1 << 20) and device_graphs(OTHER).bytes == 0  # type: ignore[union-attr]
        check(fast, twin, inputs()), check(fast, twin, inputs())
    fast.uninstall()


def test_without_room_there_it_runs_on_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    fast, twin = pair()
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (1 << 20, 1 << 30))
    with fast.sampling():
        for _ in range(3):
            check(fast, twin, inputs())
    assert not cut(fast) and "GiB free" in fast.report().text()
