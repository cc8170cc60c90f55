"""One call on several devices: cut, computed, put together; all of them pretended by a CPU, each with its own copy of
the weights.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, CompiledModule, compile
from sfast_core.graphed import GraphedProgram
from sfast_core.runtime.graphs import DeviceGraphs
from sfast_core.several import proving
from sfast_core.several.replica import ReplicaStore
from tests.fakes import FakeBackend
from tests.models import Forward, UNet

pytestmark = pytest.mark.usefixtures("no_gradients")

Run = Callable[..., Any]


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> DeviceGraphs:
    """The CPU's, which captures nothing and counts."""
    found = DeviceGraphs(FakeBackend())
    monkeypatch.setattr("sfast_core.engine.device_graphs", lambda device: found)
    monkeypatch.setattr("sfast_core.lowering._why_not_capturable", lambda graph, device: None)
    monkeypatch.setattr(
        "sfast_core.lowering.Tuner.decide", lambda tuner, jobs, tell: [next(iter(job.impls)) for job in jobs]
    )
    return found


def compiled(forward: Run | nn.Module, count: int = 2, **more: Any) -> CompiledModule:
    net = forward if isinstance(forward, nn.Module) else Forward(forward, lin=nn.Linear(4, 4))
    return compile(net, CompileConfig(allow_cpu=True, devices=("cpu",) * count, **more))


def layer(net: Any, x: torch.Tensor) -> torch.Tensor:
    return net.lin(x).relu()  # type: ignore[no-any-return]


def check(handle: CompiledModule, *args: Any) -> None:
    torch.testing.assert_close(handle(*args), type(handle.module).forward(handle.module, *args), rtol=1e-4, atol=1e-5)


def lines(handle: CompiledModule) -> str:
    return "\n".join(handle.engine.report.several)


@pytest.mark.parametrize(
    ("batch", "count", "shares"),
    [(2, 2, "1 on cpu, 1 on cpu;"), (3, 2, "2 on cpu, 1 on cpu;"), (2, 3, "1 on cpu, 1 on cpu;")],
)
def test_a_batch_is_computed_in_parts(batch: int, count: int, shares: str) -> None:
    net, inputs = UNet(), UNet.inputs(batch)
    expected = net(*inputs)
    handle = compiled(net, count)
    with handle.sampling():
        first = handle(*inputs)
        torch.testing.assert_close(first, expected, rtol=1e-4, atol=1e-5)
        for _ in range(2):
            assert torch.equal(handle(*inputs), first)
    (plan,) = handle.engine.several._plans.values()
    assert plan.whole is None, "a part reads all that the whole call does"
    assert lines(handle).startswith(f"{batch} at once are computed as {shares}")
    assert handle.engine.report.calls == {"traced": 1, "fused": 2} and not handle.engine.report.reasons
    assert "several GPUs" in handle.report().text() and first.stride() == expected.stride()


def test_graphs_replay_the_parts(graphs: DeviceGraphs) -> None:
    handle = compiled(layer, 2)
    with handle.sampling():
        for _ in range(4):
            check(handle, torch.randn(2, 4))
        before = graphs.backend.events.count("replay")  # type: ignore[attr-defined]
        check(handle, torch.randn(2, 4))
        assert graphs.backend.events.count("replay") == before + 2  # type: ignore[attr-defined]
    (entry,) = (entry for entry in entries(handle) if entry.replicas)
    assert entry.replicas[1].captured and entry.graphed.captured


def entries(handle: CompiledModule) -> list[Any]:
    return [entry for on in handle.engine.devices for entry in on.entries._all()]


@pytest.mark.parametrize("sampling", [True, False])
def test_a_weight_that_changes_changes_in_its_copies(graphs: DeviceGraphs, sampling: bool) -> None:
    handle = compiled(layer)
    net, x = handle.module, torch.randn(2, 4)
    for _ in range(3):
        check(handle, x)
    if sampling:
        handle.engine.store.begin_sampling()
    for _ in range(3):
        check(handle, x)
    net.lin.weight.copy_(torch.randn(4, 4))  # type: ignore[union-attr, operator]
    check(handle, x)
    net.lin.weight = nn.Parameter(torch.randn(4, 4))  # type: ignore[union-attr]
    check(handle, x)
    if sampling:  # what nobody can see counts from the next one on
        handle.engine.store.end_sampling()
    net.lin.bias.data.copy_(torch.randn(4))  # type: ignore[union-attr, operator]
    check(handle, x)
    handle.engine.store.begin_sampling()
    net.lin.bias.data.copy_(torch.randn(4))  # type: ignore[union-attr, operator]
    check(handle, x)
    assert "are computed as" in lines(handle)


def test_within_a_sampling_weights_are_copied_once(graphs: DeviceGraphs) -> None:
    handle = compiled(layer)
    with handle.sampling():
        for _ in range(4):
            check(handle, torch.randn(2, 4))
        (replica,) = handle.engine.several.others._replicas.values()
        assert replica.brought == replica.bytes == 4 * (16 + 4)
    with handle.sampling():
        for _ in range(4):
            check(handle, torch.randn(2, 4))
        assert replica.brought == 2 * replica.bytes


def test_what_the_code_reads_is_watched() -> None:
    handle = compiled(lambda net, x: net.lin(x) * net.strength)
    handle.module.strength = 1.0  # type: ignore[assignment]
    x = torch.randn(2, 4)
    for strength in (1.0, 1.0, 2.0, 2.0, 1.0):
        handle.module.strength = strength  # type: ignore[assignment]
        check(handle, x)
    assert "are computed as" in lines(handle)


NOT_CUT = [
    (
        lambda net, x: net.lin(x) - x.mean(0) * 1e-6,
        "depends on the others of its batch",
    ),  # too little for a comparison to see
    (lambda net, x: net.lin(x) + torch.where(x.amax(0) > 1e9, 1.0, 0.0), "depends on the others of its batch"),
    (lambda net, x: net.lin(x).flip(0), "is 1"),
    (lambda net, x: net.lin(x).sum(0), "not all of its results are as long as the batch"),
    (lambda net, x: (net.lin(x), x.new_zeros(3)), "not all of its results are as long as the batch"),
    (lambda net, x: net.lin(x) + torch.arange(x.shape[0])[:, None], "from eager's"),
    (lambda net, x: net.lin(x).add_(x.add_(1.0)), "leaves something behind"),
]


@pytest.mark.parametrize(("forward", "reason"), NOT_CUT)
def test_a_call_that_mixes_its_batch_is_not_cut(forward: Run, reason: str) -> None:
    handle, twin = compiled(forward), Forward(forward, lin=nn.Linear(4, 4))
    twin.lin.load_state_dict(handle.module.lin.state_dict())  # type: ignore[union-attr, operator]
    for _ in range(3):
        x = torch.randn(2, 4)
        torch.testing.assert_close(handle(x.clone()), twin(x.clone()))
    assert "run on cpu alone" in lines(handle) and reason in lines(handle)
    assert handle.engine.report.calls == {"traced": 1, "fused": 2}, "each call counts once"


def test_a_state_of_the_module_is_not_stepped_twice() -> None:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        net.count = getattr(net, "count", 0) + 1
        return net.lin(x) * net.count  # type: ignore[no-any-return]

    handle, twin = compiled(forward), Forward(forward, lin=nn.Linear(4, 4))
    twin.lin.load_state_dict(handle.module.lin.state_dict())  # type: ignore[union-attr, operator]
    for _ in range(4):
        x = torch.randn(2, 4)
        torch.testing.assert_close(handle(x), twin(x))


def test_what_the_whole_reads_alone_is_watched() -> None:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = net.lin(x)
        return y * net.strength if x.shape[0] > 1 else y

    handle = compiled(forward)
    for strength in (1.0, 1.0, 2.0, 2.0):
        handle.module.strength = strength  # type: ignore[assignment]
        for _ in range(2):
            check(handle, torch.randn(2, 4))
        assert ("are computed as" in lines(handle)) is (strength == 1.0), lines(handle)


def test_parts_that_go_different_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what the arguments hold: of both parts, of one, of the other, of none."""

    def forward(net: Any, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return net.lin(x) if mask.all() else net.lin(x) * mask  # type: ignore[no-any-return]

    handle, proofs, proved = compiled(forward), [], proving.proved
    monkeypatch.setattr("sfast_core.several.in_spans.proved", lambda *given: (proofs.append(1), proved(*given))[1])  # type: ignore[func-returns-value]
    for _ in range(6):
        for rows in ((1, 1), (1, 0), (0, 1), (0, 0)):
            for _ in range(2):
                check(handle, torch.randn(2, 4), torch.tensor(rows, dtype=torch.float32)[:, None].expand(2, 4))
    assert 0 < len(proofs) < 12, "to show each right costs more than it brings"


@pytest.mark.parametrize(
    ("left", "is_cut"), [(lambda x: "called", True), (lambda x: tuple(x.shape), False), (lambda x: x * 2, False)]
)
def test_what_is_left_behind_is_what_the_whole_leaves(left: Run, is_cut: bool) -> None:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        net.left = left(x)
        return net.lin(x)  # type: ignore[no-any-return]

    handle = compiled(forward)
    for _ in range(3):
        x = torch.randn(2, 4)
        check(handle, x)
        handle(x)
        assert (
            torch.equal(handle.module.left, x * 2)
            if isinstance(handle.module.left, torch.Tensor)
            else handle.module.left == left(x)
        )
    assert ("are computed as" in lines(handle)) is is_cut


def test_arguments_in_containers_are_cut_and_others_left() -> None:
    def forward(net: Any, x: torch.Tensor, options: dict[str, Any]) -> dict[str, Any]:
        return {"y": net.lin(x) + options["more"][0] + options["table"], "n": 2}

    handle = compiled(forward)
    for _ in range(3):
        options = {"more": [torch.randn(2, 4)], "table": torch.randn(4), "name": "a"}
        check(handle, torch.randn(2, 4), options)
    assert "are computed as" in lines(handle)


@pytest.mark.parametrize("error", [RuntimeError("a device is gone"), torch.cuda.OutOfMemoryError("no room")])
def test_a_device_that_fails_leaves_the_call_to_the_first(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    handle, run = compiled(layer), GraphedProgram.run
    with handle.sampling():
        check(handle, torch.randn(2, 4)), check(handle, torch.randn(2, 4))
        failing = {id(program) for entry in entries(handle) for program in entry.replicas.values()}
        assert failing

        def fails(program: GraphedProgram, *args: Any, **kwargs: Any) -> Any:
            if id(program) in failing:
                raise error
            return run(program, *args, **kwargs)

        monkeypatch.setattr(GraphedProgram, "run", fails)
        check(handle, torch.randn(2, 4))
        assert "run on cpu alone" in lines(handle) and str(error) in lines(handle)
        monkeypatch.undo()
        for _ in range(3):
            check(handle, torch.randn(2, 4))
    assert "are computed as" in lines(handle), "it is tried again"


def test_weights_that_do_not_fit_leave_the_call_to_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(store: ReplicaStore, *_: Any) -> Any:
        raise torch.cuda.OutOfMemoryError("no room for the copies")

    monkeypatch.setattr(ReplicaStore, "_made", no_room)
    handle = compiled(layer)
    for _ in range(3):
        check(handle, torch.randn(2, 4))
    assert "no room for the copies" in lines(handle) and handle.engine.report.calls == {"traced": 1, "fused": 2}


def test_a_stop_of_the_host_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stop(Exception):
        pass

    handle = compiled(layer)
    check(handle, torch.randn(2, 4))
    handle.engine.interruptions = (Stop,)

    def stopped(*_: Any, **__: Any) -> Any:
        raise Stop

    monkeypatch.setattr(GraphedProgram, "run", stopped)
    with pytest.raises(Stop):
        handle(torch.randn(2, 4))


def test_code_that_asks_which_image_is_which_is_not_cut() -> None:
    handle = compiled(lambda net, x, options: net.lin(x) * len(options["which"]))
    handle.engine.several.apart = frozenset({"which"})
    for _ in range(2):
        check(handle, torch.randn(2, 4), {"which": [0, 1]})
    assert "'which'" in lines(handle)


def test_a_quality_below_exact_is_not_cut() -> None:
    handle = compiled(layer, quality="near-exact")
    handle(torch.randn(2, 4))
    assert "near-exact is measured on one device" in lines(handle)


def test_one_at_a_time_and_one_device_are_as_without() -> None:
    for handle in (
        compiled(layer),
        compile(Forward(layer, lin=nn.Linear(4, 4)), CompileConfig(allow_cpu=True, devices=1)),
    ):
        for _ in range(3):
            check(handle, torch.randn(1, 4))
        assert handle.engine.report.calls == {"traced": 1, "fused": 2} and not any(
            entry.replicas for entry in entries(handle)
        )
    check(handle, torch.randn(2, 4))
    assert "there is no other device" in lines(handle)


@pytest.mark.parametrize("give_back", ["release_graphs", "restore", "reset"])
def test_what_others_hold_is_given_back(graphs: DeviceGraphs, give_back: str) -> None:
    handle = compiled(layer)
    with handle.sampling():
        for _ in range(3):
            check(handle, torch.randn(2, 4))
        (replica,) = handle.engine.several.others._replicas.values()
        memory = [weakref.ref(copy.tensor) for copy in replica._copies.values()]
        del replica
        getattr(handle.engine, give_back)()
        assert not graphs.bytes and not any(tensor() is not None for tensor in memory)
        for _ in range(3):
            check(handle, torch.randn(2, 4))
    assert "are computed as" in lines(handle)


def test_a_compiled_model_goes_without_the_collector() -> None:
    handle = compiled(layer)
    check(handle, torch.randn(2, 4)), check(handle, torch.randn(2, 4))
    gc.collect()
    gc.disable()
    try:
        module, engine = weakref.ref(handle.module), weakref.ref(handle.engine)
        del handle
        assert module() is None and engine() is None
    finally:
        gc.enable()


def test_other_devices_are_another_config() -> None:
    handle = compiled(layer)
    check(handle, torch.randn(2, 4))
    compile(handle, CompileConfig(allow_cpu=True))
    check(handle, torch.randn(2, 4))
    assert not lines(handle) and not any(entry.replicas or entry.spare for entry in entries(handle))
