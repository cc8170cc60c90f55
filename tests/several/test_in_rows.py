"""One image on several devices, cut along its tokens; all of them pretended by a CPU, each with its own copy of the weights."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, CompiledModule, compile
from sfast_core.runtime.graphs import DeviceGraphs
from sfast_core.runtime.job import REFERENCE
from sfast_core.several import in_rows, speeds
from sfast_core.several.copy_graphs import CopyGraphs
from sfast_core.several.links import Links
from sfast_core.several.replica import ReplicaStore
from sfast_core.sharding import Speeds, delaying
from tests.fakes import FakeBackend
from tests.models import Forward
from tests.sharding.test_stripes import Decoder
from tests.sharding.transformers import ALL, FluxLike, WanLike, ZLike

pytestmark = pytest.mark.usefixtures("no_gradients")

TAKES_TIME = Speeds(operations=1e11, memory_bytes=1e10, link_bytes=1e12, exchange_s=1e-6)
DIVIDED = "tokens are divided among"


@pytest.fixture(params=[False, True], ids=["results copied", "results kept"])
def graphs(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> DeviceGraphs:
    """The CPU's, which captures nothing and counts."""
    found = DeviceGraphs(FakeBackend())
    found.backend.keeps_results = request.param  # type: ignore[misc]
    monkeypatch.setattr("sfast_core.engine.device_graphs", lambda device: found)
    monkeypatch.setattr("sfast_core.lowering._why_not_capturable", lambda graph, device: None)
    monkeypatch.setattr(
        "sfast_core.lowering.Tuner.decide", lambda tuner, jobs, tell: [next(iter(job.impls), REFERENCE) for job in jobs]
    )
    return found


def compiled(net: nn.Module, count: int = 2, **more: Any) -> CompiledModule:
    return compile(net.eval(), CompileConfig(allow_cpu=True, devices=("cpu",) * count, **more))


def check(handle: CompiledModule, *args: Any) -> torch.Tensor:
    got: torch.Tensor = handle(*args)
    torch.testing.assert_close(got, type(handle.module).forward(handle.module, *args), rtol=1e-4, atol=1e-5)
    return got


def lines(handle: CompiledModule) -> str:
    return "\n".join(handle.engine.report.several)


def wide(handle: CompiledModule) -> list[Any]:
    """The programs that several devices have."""
    return [entry.wide for on in handle.engine.devices for entry in on.entries._all() if entry.wide is not None]


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("kind", ALL)
def test_one_image_is_computed_in_rows(kind: Any, count: int) -> None:
    handle, inputs = compiled(kind(), count), kind.inputs()
    with handle.sampling():
        first = check(handle, *inputs)
        for _ in range(3):
            assert torch.equal(handle(*inputs), first)
        check(handle, *kind.inputs())
    assert f"{DIVIDED} {count}" in lines(handle) and "x one by arithmetic" in lines(handle)
    assert first.stride() == type(handle.module).forward(handle.module, *inputs).stride()
    assert handle.engine.report.calls == {"traced": 1, "fused": 4} and not handle.engine.report.reasons
    assert "several GPUs" in handle.report().text()


@pytest.mark.parametrize("kind", ALL)
def test_graphs_replay_the_stretches(graphs: DeviceGraphs, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delaying, "_WORTH_BYTES", 1)
    handle = compiled(kind(), 3)
    with handle.sampling():
        inputs = kind.inputs()
        first = check(handle, *inputs)
        for _ in range(3):
            check(handle, *kind.inputs())
        assert torch.equal(handle(*inputs), first)
    (program,) = wide(handle)
    assert program.captured and program.readable() and graphs.bytes > 0
    assert handle.engine.report.calls == {"traced": 1, "replayed": 4} and not handle.engine.report.reasons


def test_copies_between_graphs_are_captured_once_and_go_with_them(graphs: DeviceGraphs) -> None:
    handle = compiled(ZLike(), 3)
    with handle.sampling():
        check(handle, *ZLike.inputs()), check(handle, *ZLike.inputs())
        backend: FakeBackend = graphs.backend  # type: ignore[assignment]
        captured, copies = backend.events.count("capture"), wide(handle)[0]._copies
        assert copies is not None and len(copies._exchanges) == len(wide(handle)[0]._rows.run.exchanges)
        for _ in range(3):
            check(handle, *ZLike.inputs())
        assert backend.events.count("capture") == captured and wide(handle)[0]._copies is copies
        handle.engine.release_graphs()
        assert not copies._exchanges
        check(handle, *ZLike.inputs()), check(handle, *ZLike.inputs())
    assert not handle.engine.report.reasons


def test_copies_that_cannot_be_captured_are_launched_one_by_one(
    graphs: DeviceGraphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Any, *_: Any) -> None:
        self._backend.failures = [RuntimeError("a copy between devices")]
        capture(self, *_)

    capture = CopyGraphs._capture
    monkeypatch.setattr(CopyGraphs, "_capture", fails)
    handle = compiled(ZLike(), 2)
    with handle.sampling():
        for _ in range(4):
            check(handle, *ZLike.inputs())
    (program,) = wide(handle)
    assert program.captured and not program._copies._exchanges and not handle.engine.report.reasons


def test_what_stretches_leave_to_one_another_is_used_again(graphs: DeviceGraphs) -> None:
    held = []
    for blocks in (4, 12):
        net = ZLike()
        net.blocks.extend(type(net.blocks[0])() for _ in range(blocks - 2))
        handle = compiled(net, disabled_passes=("pack_embedding",))  # what all blocks read is there for all
        with handle.sampling():
            for _ in range(3):
                check(handle, *ZLike.inputs())
        (program,) = wide(handle)
        held.append(program._rows.run.bytes)
    assert held[0] == held[1] > 0


def test_sizes_prompts_and_batches_that_change() -> None:
    handle = compiled(FluxLike())
    with handle.sampling():
        for _ in range(2):
            for batch, side, words in ((1, 12, 8), (1, 16, 8), (1, 12, 5), (3, 12, 8), (2, 12, 8)):
                check(handle, *FluxLike.inputs(batch, side, words))
    assert lines(handle).count(DIVIDED) == 4 and "3 at once are computed in rows" in lines(handle)
    assert "2 at once are computed as 1 on cpu, 1 on cpu" in lines(handle)


def test_two_images_on_four_devices_are_cut_along_their_tokens() -> None:
    handle = compiled(ZLike(), 4)
    with handle.sampling():
        for _ in range(2):
            check(handle, *ZLike.inputs(2, side=24))
    assert "2 at once are computed in rows" in lines(handle), lines(handle)


def test_one_image_is_a_part_of_two(graphs: DeviceGraphs) -> None:
    """The same signature, by itself in rows, as a half of a batch on one device."""
    handle = compiled(FluxLike())
    with handle.sampling():
        for _ in range(3):
            for batch in (1, 2):
                check(handle, *FluxLike.inputs(batch))
    assert DIVIDED in lines(handle) and "1 on cpu, 1 on cpu" in lines(handle)


def test_a_decoder_is_computed_in_stripes(graphs: DeviceGraphs) -> None:
    handle = compiled(Decoder())
    x = torch.randn(1, 4, 32, 10)
    first = check(handle, x)
    for _ in range(3):
        check(handle, torch.randn(1, 4, 32, 10))
        check(handle, torch.randn(1, 4, 48, 12))
    assert torch.equal(handle(x), first)
    assert "128 rows of pixels are divided among 2" in lines(handle), lines(handle)
    assert all(program.captured for program in wide(handle)) and not handle.engine.report.reasons


@pytest.mark.parametrize("sampling", [True, False])
def test_a_weight_that_changes_changes_in_its_copies(graphs: DeviceGraphs, sampling: bool) -> None:
    handle, inputs = compiled(FluxLike()), FluxLike.inputs()
    layer: Any = handle.module.first[0]  # type: ignore[index]
    for _ in range(3):
        check(handle, *inputs)
    if sampling:
        handle.engine.store.begin_sampling()
    for _ in range(3):
        check(handle, *inputs)
    layer.weight.copy_(torch.randn(layer.weight.shape))
    check(handle, *inputs)
    layer.weight = nn.Parameter(torch.randn(layer.weight.shape))
    check(handle, *inputs), check(handle, *inputs)
    if sampling:
        handle.engine.store.end_sampling()
    layer.bias.data.copy_(torch.randn(layer.bias.shape))
    check(handle, *inputs)
    assert DIVIDED in lines(handle) and len(wide(handle)) == 1


def test_what_the_code_reads_is_watched(graphs: DeviceGraphs) -> None:
    net = FluxLike()
    net.step_in.register_forward_pre_hook(lambda *_: None)
    handle = compiled(ZLike())
    for size in (1, 1, 2, 2, 1):
        handle.module.behind.eps = float(size)  # type: ignore[union-attr, assignment]
        check(handle, *ZLike.inputs())
    assert DIVIDED in lines(handle)


@pytest.mark.parametrize("error", [RuntimeError("a device is gone"), torch.cuda.OutOfMemoryError("no room")])
def test_a_device_that_fails_leaves_the_call_to_the_first(
    graphs: DeviceGraphs, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    handle, inputs = compiled(FluxLike()), FluxLike.inputs()
    with handle.sampling():
        for _ in range(3):
            check(handle, *inputs)

        def fails(*_: Any) -> None:
            raise error

        monkeypatch.setattr(Links, "put_in_place", fails)
        check(handle, *inputs)
        assert "one at a time runs on cpu alone" in lines(handle) and str(error) in lines(handle)
        monkeypatch.undo()
        assert not wide(handle)
        before = handle.engine.report.calls["eager"]
        for _ in range(3):
            check(handle, *inputs)
    assert DIVIDED in lines(handle) and handle.engine.report.calls["eager"] == before, "it is tried again"


def test_weights_that_do_not_fit_leave_the_call_to_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(store: ReplicaStore, *_: Any) -> Any:
        raise torch.cuda.OutOfMemoryError("no room for the copies")

    monkeypatch.setattr(ReplicaStore, "_made", no_room)
    handle = compiled(FluxLike())
    for _ in range(3):
        check(handle, *FluxLike.inputs())
    assert "no room for the copies" in lines(handle) and handle.engine.report.calls == {"traced": 1, "fused": 2}


def test_a_result_that_is_another_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    send = Links.send

    def wrong(self: Links, site: int, sent: Any, into: Any) -> Any:
        return send(self, site, [[tensor * 1.1 for tensor in each] for each in sent], into)

    monkeypatch.setattr(Links, "send", wrong)
    handle = compiled(FluxLike())
    for _ in range(2):
        check(handle, *FluxLike.inputs())
    assert "runs on cpu alone" in lines(handle) and "from eager's" in lines(handle)


def test_what_does_not_pay_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speeds, "_CPU", Speeds(1e12, 1e12, 1e6, 1e-3))
    handle = compiled(FluxLike())
    for _ in range(2):
        check(handle, *FluxLike.inputs())
    assert "x as fast by arithmetic" in lines(handle) and not wide(handle)
    three = FluxLike.inputs(3)
    check(handle, *three), check(handle, *three)
    assert "3 at once are computed as 2 on cpu, 1 on cpu" in lines(handle)


NOT_CUT = [
    (lambda net, x: net.lin(x).cumsum(0), "it has no tokens"),
    (lambda net, x: (net.lin(x).cumsum(0).sort(0).values, net.__dict__.update(left=x * 2))[0], "leaves"),
]


@pytest.mark.parametrize(("forward", "reason"), NOT_CUT)
def test_what_is_not_cut(forward: Any, reason: str) -> None:
    handle = compiled(Forward(forward, lin=nn.Linear(4, 4)))
    for _ in range(2):
        check(handle, torch.randn(1, 4))
    assert reason in lines(handle), lines(handle)


@pytest.mark.parametrize("give_back", ["release_graphs", "restore", "reset"])
def test_what_others_hold_is_given_back(graphs: DeviceGraphs, give_back: str) -> None:
    handle = compiled(FluxLike())
    with handle.sampling():
        for _ in range(3):
            check(handle, *FluxLike.inputs())
        (replica,) = handle.engine.several.others._replicas.values()
        memory = [weakref.ref(copy.tensor) for copy in replica._copies.values()]
        del replica
        getattr(handle.engine, give_back)()
        assert not graphs.bytes and not any(tensor() is not None for tensor in memory)
        for _ in range(3):
            check(handle, *FluxLike.inputs())
    assert DIVIDED in lines(handle)


def test_graphs_that_others_evict_are_captured_again(graphs: DeviceGraphs) -> None:
    handle = compiled(FluxLike())
    with handle.sampling():
        for _ in range(3):
            check(handle, *FluxLike.inputs())
        graphs.release_all()
        for _ in range(3):
            check(handle, *FluxLike.inputs())
    assert wide(handle)[0].captured and not handle.engine.report.reasons


def test_a_compiled_model_goes_without_the_collector(graphs: DeviceGraphs) -> None:
    handle = compiled(FluxLike())
    for _ in range(3):
        check(handle, *FluxLike.inputs())
    gc.collect()
    gc.disable()
    try:
        module, engine, program = weakref.ref(handle.module), weakref.ref(handle.engine), weakref.ref(wide(handle)[0])
        del handle
        assert module() is None and engine() is None and program() is None
        assert not graphs.bytes
    finally:
        gc.enable()


def test_the_length_is_the_one_that_is_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt that is only looked at isn't worth an exchange where that takes time."""
    counted = []
    cut = in_rows.cut
    monkeypatch.setattr(
        in_rows,
        "cut",
        lambda graph, devices, fewest, *more: (counted.append(fewest), cut(graph, devices, fewest, *more))[1],
    )
    monkeypatch.setattr(speeds, "_CPU", TAKES_TIME)
    handle = compiled(WanLike())
    check(handle, *WanLike.inputs())
    assert counted[-1] == 108 and 6 in counted, counted
