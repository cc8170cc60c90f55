"""What a model with live code returns, and what live code returns of the model's own, are what they are without us."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from sfast_core import CompileConfig, compile
from tests.capturing import pretend_graphs
from tests.keeping import Model, as_it_is
from tests.live import Host, Net, fused_and_captured, path

host = fused_and_captured()
KEPT = [1]


@pytest.mark.parametrize("captured", [False, True], ids=["fused", "captured"])
@pytest.mark.parametrize(
    "what",
    [
        lambda net, x, y: net.lin.weight,
        lambda net, x, y: net.lin.weight[0],
        lambda net, x, y: net.kept[0],
        lambda net, x, y: x,
        lambda net, x, y: x[0],
        lambda net, x, y: y,
        lambda net, x, y: KEPT,
        lambda net, x, y: net.first(x, None),
    ],
    ids=["weight", "view of a weight", "kept", "input", "view of an input", "computed", "list", "live"],
)
def test_what_a_model_with_live_code_returns_is_what_it_is_without_us(
    what: Callable[..., Any], captured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller writes to it, and whoever has it besides finds that."""
    if captured:
        pretend_graphs(monkeypatch)

    def way(net: Any, x: torch.Tensor) -> Any:
        y = net.first(net.lin(x), None)
        return y * 2, what(net, x, y)

    models = [Model(way, first=as_it_is).requires_grad_(False) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    compile(models[0], CompileConfig(allow_cpu=True))
    seen = []
    for model in models:
        KEPT[:] = [1]
        with torch.no_grad():
            for step in range(5):
                x = torch.full((2, 8), float(step))
                first, found = model(x)
                if isinstance(found, list):
                    found.append(1)
                else:
                    found.add_(1)
                seen.append([first, x, model.lin.weight.clone(), model.kept[0].clone(), len(KEPT)])
    for mine, theirs in zip(seen[:5], seen[5:], strict=True):
        torch.testing.assert_close(mine, theirs)


def test_lists_that_live_code_keeps_are_the_very_ones_where_nothing_is_recorded() -> None:
    """The recording has ended before that code runs."""
    kept = [1.0]

    def gives(store: Any, x: torch.Tensor, other: Any) -> Any:
        return x * 2, kept

    def way(net: Any, x: torch.Tensor) -> Any:
        hidden, found = net.first(net.lin(x))
        found.append(1.0)
        torch.rand(1)
        result, again = net.first(hidden)
        again.append(1.0)
        return result * len(again), again

    model = Model(way, first=gives).requires_grad_(False)
    compile(model, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for step in range(5):
            _, found = model(torch.ones(2, 8))
            assert found is kept and len(kept) == 3 + 2 * step


@pytest.mark.parametrize("captured", [False, True], ids=["fused", "captured"])
@pytest.mark.parametrize("which", ["a weight", "a tensor in a list"])
def test_live_code_that_returns_the_models_own_at_times(
    which: str, captured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it returned in the recorded call stood for that tensor everywhere, as if it were another at each call."""
    if captured:
        pretend_graphs(monkeypatch)

    def choose(store: Any, x: torch.Tensor, other: Any) -> torch.Tensor:
        store["calls"] = store.get("calls", 0) + 1
        return store["own"] if store["calls"] < 5 else x * 3  # type: ignore[no-any-return]

    def way(net: Any, x: torch.Tensor) -> torch.Tensor:
        found = net.first(net.lin(x))
        own = net.kept[0] if which == "a tensor in a list" else net.own
        return found + own * 2  # type: ignore[no-any-return]

    models = []
    for _ in range(2):
        torch.manual_seed(0)
        model = Model(way, first=choose).requires_grad_(False)
        model.kept[0] = torch.ones(2, 8)
        model.register_buffer("own", torch.ones(2, 8))
        model.store["own"] = model.kept[0] if which == "a tensor in a list" else model.own
        models.append(model)
    compile(models[0], CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for step in range(8):
            x = torch.full((2, 8), float(step))
            torch.testing.assert_close(*(model(x) for model in models), msg=f"call {step}")


@pytest.mark.parametrize("one", [(True, True, False, False, False), (False, True, False, True)])
def test_one_tensor_at_two_places_that_are_two_at_another_call(host: Host, one: tuple[bool, ...]) -> None:
    """What the model hands over twice is handed back as it is, or one of the two is another: the other was taken for
    both.
    """

    def make() -> dict[str, Any]:
        calls = [0]

        def schedule(x: torch.Tensor, skip: torch.Tensor, options: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
            step, calls[0] = calls[0] // len(host.net.blocks), calls[0] + 1
            return (x if one[step] else x * 2), skip

        return {"between": [schedule]}

    host.check(make, len(one))
    assert host.calls[path(host)] > 1


class Writing(Net):
    """Writes to the first of what it gets back."""

    def forward(self, x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        for function in options.get("between", []):
            first, second = function(x, options)
            x = self.out(first.add_(1)) + second
        return x


_SECOND: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "the same": lambda y: y,
    "a view": lambda y: y[:],
    "a part": lambda y: y.flip(0)[:1].expand_as(y),
    "its own": lambda y: y.clone(),
}


@pytest.mark.parametrize("then", _SECOND)
@pytest.mark.parametrize("first", _SECOND)
def test_what_is_written_to_one_result_is_written_to_what_lies_there(first: str, then: str) -> None:
    """Whether another result does is asked at each call."""
    host = Host(Writing())

    def make() -> dict[str, Any]:
        ways = iter([first, first, then, then, then])

        def pair(x: torch.Tensor, options: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
            y = x * 2
            return y, _SECOND[next(ways)](y)

        return {"between": [pair]}

    host.check(make, 5)
    assert host.calls[path(host)] > 0
