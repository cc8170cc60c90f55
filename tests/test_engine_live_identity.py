"""Live code may ask which tensor it is handed: by ``is``, by its ``id``, as a key of a dict. It is told what it is told
without us.
"""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from sfast_core import CompileConfig, compile
from tests.capturing import pretend_graphs
from tests.keeping import Body, Model


class Kind(enum.Enum):
    PLAIN = 1


def _keep(store: Any, x: torch.Tensor, other: Any) -> torch.Tensor:
    store.clear()
    store[x] = 3.0
    return x * 2


def _look_up(store: Any, x: torch.Tensor, other: Any) -> torch.Tensor:
    return x * store.get(x, 7.0)


def _give_back(store: Any, x: torch.Tensor, other: Any) -> torch.Tensor:
    store.clear()
    store[x] = 3.0
    return x


def _make(store: Any, x: torch.Tensor, other: Any) -> torch.Tensor:
    result = x * 2
    store.clear()
    store[result] = 3.0
    return result


def _write(store: Any, x: torch.Tensor, other: Any) -> torch.Tensor:
    store.clear()
    store[x] = 3.0
    x.mul_(3)
    return x * 2


def _count_by_id(store: Any, x: torch.Tensor, other: Any) -> torch.Tensor:
    if id(other) not in store:
        store[id(other)] = len(store) + 1
    return x * store[id(other)]


def _write_to_what_was_kept(store: Any, x: torch.Tensor, other: Any) -> torch.Tensor:
    next(iter(store)).mul_(2)
    return x + 1


def _writes_to_it_at_times(store: Any, x: torch.Tensor, other: Any) -> torch.Tensor:
    store["calls"] = store.get("calls", 0) + 1
    if store["calls"] in (4, 6):
        next(key for key in store if key != "calls").mul_(2)
    return x + 1


def _keep_beside(store: Any, x: torch.Tensor, other: Any) -> torch.Tensor:
    for key in [key for key in store if key != "calls"]:
        del store[key]
    store[x] = 3.0
    return x * 2


def _builds_otherwise_at_times(store: Any, x: torch.Tensor, other: Any) -> torch.Tensor:
    other[0] += 1
    return x[:1] * 1 if other[0] in (4, 6) else x * 1


def _twice(net: Any, x: torch.Tensor) -> torch.Tensor:
    hidden = net.lin(x)
    first: torch.Tensor = net.first(hidden)
    return first + net.second(hidden)


def _chained(net: Any, x: torch.Tensor) -> torch.Tensor:
    first = net.first(net.lin(x))
    second: torch.Tensor = net.second(first)
    return second + first


def _written_between(net: Any, x: torch.Tensor) -> torch.Tensor:
    hidden = net.lin(x)
    first: torch.Tensor = net.first(hidden)
    hidden.add_(1)
    return first + net.second(hidden)


def _of_weights(net: Any, x: torch.Tensor) -> torch.Tensor:
    hidden = net.lin(x)
    first: torch.Tensor = net.first(hidden, net.lin.weight)
    return first + net.first(hidden, net.kept[0]) + net.first(hidden, net.kept[1])


def _read_later(net: Any, x: torch.Tensor) -> torch.Tensor:
    hidden = net.lin(x)
    second: torch.Tensor = net.second(net.first(hidden))
    return second + hidden


def _with_one_that_builds_otherwise(net: Any, x: torch.Tensor) -> torch.Tensor:
    hidden = net.lin(x)
    first: torch.Tensor = net.first(hidden)
    return first + net.between(hidden, net.calls).sum(0) + net.second(hidden)


CASES: dict[str, tuple[Callable[..., Any], dict[str, Body]]] = {
    "one tensor at two places": (_twice, {"first": _keep, "second": _look_up}),
    "what is given back": (_chained, {"first": _give_back, "second": _look_up}),
    "what was given back, by its first name": (_twice, {"first": _give_back, "second": _look_up}),
    "what it has made": (_chained, {"first": _make, "second": _look_up}),
    "what it writes to": (_twice, {"first": _write, "second": _look_up}),
    "what the model writes to": (_written_between, {"first": _keep, "second": _look_up}),
    "weights and what is kept": (_of_weights, {"first": _count_by_id}),
    "what it kept and writes to later": (_read_later, {"first": _keep, "second": _write_to_what_was_kept}),
    "what it writes to at times": (_read_later, {"first": _keep_beside, "second": _writes_to_it_at_times}),
    "where the original forward finishes": (
        _with_one_that_builds_otherwise,
        {"first": _keep, "between": _builds_otherwise_at_times, "second": _look_up},
    ),
}


@pytest.mark.parametrize("captured", [False, True], ids=["fused", "captured"])
@pytest.mark.parametrize("inference", [False, True], ids=["no-grad", "inference"])
@pytest.mark.parametrize("case", CASES)
def test_it_is_told_which_tensor_it_is_handed(
    case: str, inference: bool, captured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if captured:
        pretend_graphs(monkeypatch)
    forward, bodies = CASES[case]
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        model = Model(forward, **bodies).requires_grad_(False)
        model.calls = [0]  # type: ignore[assignment]
        models.append(model)
    compile(models[0], CompileConfig(allow_cpu=True))
    with torch.inference_mode(inference), torch.no_grad():
        for step in range(8):
            torch.manual_seed(step)
            x = torch.randn(2, 8)
            results = [model(x.clone()) for model in models]
            torch.testing.assert_close(*results, msg=f"{case}, call {step}")
    assert sorted(map(str, map(type, models[0].store))) == sorted(map(str, map(type, models[1].store)))


@pytest.mark.parametrize("case", ["one tensor at two places", "what it has made", "weights and what is kept"])
def test_and_the_rest_is_fast(case: str) -> None:
    forward, bodies = CASES[case]
    model = Model(forward, **bodies).requires_grad_(False)
    handle = compile(model, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for _ in range(6):
            model(torch.randn(2, 8))
    assert handle.report().modules[0].calls["fused"] >= 3, handle.report().text()


def test_a_callers_tensor_is_the_very_one() -> None:
    """At another call, too; and one that live code writes to is written to once."""

    def ask(store: Any, x: torch.Tensor, other: Any) -> torch.Tensor:
        store["hits"] = store.get("hits", 0) + (x is store.get("last"))
        store["last"] = x
        if store["hits"] == 3:
            x.add_(1)
        return x * store["hits"]

    models = [Model(lambda net, x: net.lin(net.first(x)), first=ask).requires_grad_(False) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    compile(models[0], CompileConfig(allow_cpu=True))
    given = [torch.ones(2, 8), torch.ones(2, 8)]
    with torch.no_grad():
        for _ in range(7):
            torch.testing.assert_close(models[0](given[0]), models[1](given[1]))
    assert models[0].store["hits"] == 6 and torch.equal(*given)


def _assert_doubled(way: Any, first: Any) -> None:
    """Whether a model that goes this way, with this live code, gives twice what its layer gives."""
    model = Model(way, first=first).requires_grad_(False)
    compile(model, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(2, 8)
            torch.testing.assert_close(model(x), 2 * model.lin(x))


def test_a_dict_by_tensors_is_not_handed_on() -> None:
    def look(store: Any, x: torch.Tensor, other: Any) -> torch.Tensor:
        return x * other[x]

    def way(net: Any, x: torch.Tensor) -> torch.Tensor:
        hidden = net.lin(x)
        result: torch.Tensor = net.first(hidden, {hidden: 2.0})
        return result

    _assert_doubled(way, look)


def test_a_dict_by_tensors_is_not_handed_back() -> None:
    def make(store: Any, x: torch.Tensor, other: Any) -> Any:
        return {x: 2.0}

    def way(net: Any, x: torch.Tensor) -> torch.Tensor:
        hidden = net.lin(x)
        result: torch.Tensor = hidden * net.first(hidden)[hidden]
        return result

    _assert_doubled(way, make)


def test_what_is_referred_to_weakly_lives_as_long_as_the_models_own() -> None:
    def refer(store: Any, x: torch.Tensor, other: Any) -> torch.Tensor:
        result = x * 2
        store["ref"] = weakref.ref(result)
        return result

    model = Model(lambda net, x: net.first(net.lin(x)), first=refer).requires_grad_(False)
    compile(model, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for _ in range(4):
            result = model(torch.randn(2, 8))
            assert model.store["ref"]() is result


@pytest.mark.parametrize("asks", ["is", "key"])
def test_the_model_may_ask_which_tensor_it_gets_back(asks: str) -> None:
    def is_same(net: Any, x: torch.Tensor) -> torch.Tensor:
        hidden = net.lin(x)
        found: torch.Tensor = net.first(hidden)
        return found * 2 if found is hidden else found * 3

    def is_key(net: Any, x: torch.Tensor) -> torch.Tensor:
        hidden = net.lin(x)
        known = {hidden: 2.0}
        found: torch.Tensor = net.first(hidden)
        return found * known.get(found, 3.0)

    def give(store: Any, x: torch.Tensor, other: Any) -> torch.Tensor:
        return x

    model = Model(is_same if asks == "is" else is_key, first=give).requires_grad_(False)
    compile(model, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(2, 8)
            torch.testing.assert_close(model(x), 2 * model.lin(x))


class Adapter:
    kind = Kind.PLAIN

    def bypass(self) -> None: ...


@pytest.mark.parametrize("what", ["kind", "bypass"])
def test_the_model_may_ask_which_function_or_member_of_an_enumeration_something_is(what: str) -> None:
    """That tells no tensor from another, whatever live code hands back."""

    def asks_for_function(net: Any, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = net.first(net.lin(x))
        return found * (2 if net.adapter.bypass is Adapter.bypass else 3)

    def asks_for_member(net: Any, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = net.first(net.lin(x))
        return found * (2 if net.adapter.kind is Kind.PLAIN else 3)

    def give(store: Any, x: torch.Tensor, other: Any) -> torch.Tensor:
        store["calls"] = store.get("calls", 0) + 1
        return x

    model = Model(asks_for_function if what == "bypass" else asks_for_member, first=give).requires_grad_(False)
    model.adapter = type("Derived", (Adapter,), {})  # type: ignore[assignment]
    handle = compile(model, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for call in range(8):
            if call == 5:
                setattr(model.adapter, what, None)
            x = torch.randn(2, 8)
            torch.testing.assert_close(model(x), (2 if call < 5 else 3) * model.lin(x))
    assert model.store["calls"] == 8
    assert handle.engine.report.calls["fused"] >= 4, handle.report().text()


@pytest.mark.parametrize("inference", [False, True], ids=["no-grad", "inference"])
def test_an_input_that_live_code_writes_to_at_times(inference: bool) -> None:
    """Nothing of the model's reads it later; the caller does."""

    def write(store: Any, x: torch.Tensor, other: Any) -> torch.Tensor:
        other[0] += 1
        if other[0] in (4, 6):
            x.mul_(1.5)
        return x + 1

    models = []
    for _ in range(2):
        model = Model(lambda net, x: net.lin(net.first(x, net.calls)), first=write).requires_grad_(False)
        model.calls = [0]  # type: ignore[assignment]
        models.append(model)
    models[1].load_state_dict(models[0].state_dict())
    compile(models[0], CompileConfig(allow_cpu=True))
    with torch.inference_mode(inference), torch.no_grad():
        for _ in range(8):
            given = [torch.ones(2, 8), torch.ones(2, 8)]
            torch.testing.assert_close(models[0](given[0]), models[1](given[1]))
            assert torch.equal(*given)
