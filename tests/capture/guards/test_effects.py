"""What a call leaves behind besides its result: done again with each call's own tensors, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree

from sfast_core import CompileConfig, compile
from sfast_core.capture import Trace, Untraceable
from tests.models import Forward
from tests.tracing import evaluate, guarded

Function = Callable[[Any, torch.Tensor], Any]


def module(function: Function, **attributes: Any) -> Any:
    torch.manual_seed(0)
    net = Forward(function, lin=nn.Linear(4, 4)).requires_grad_(False)
    for name, value in attributes.items():
        setattr(net, name, value)
    return net


def repeated(net: Any, x: torch.Tensor) -> Any:
    """Runs the trace on ``x`` and does again what the call did, on what ``net`` holds."""
    found = net.found
    tensors = evaluate(found.graph, [x])
    found.outputs.repeat(tensors, [x])
    return found.outputs.build(tensors)


def traced(net: Any, x: torch.Tensor) -> Any:
    """The result of a call that leaves a trace."""
    result, found, guard = guarded(net, x)
    assert isinstance(found, Trace), found.reason
    net.__dict__["found"], net.__dict__["guard"] = found, guard
    return result


def inputs(count: int = 3) -> list[torch.Tensor]:
    return list(torch.randn(count, 2, 4).unbind())


def sets(net: Any, x: torch.Tensor) -> torch.Tensor:
    y = net.lin(x)
    net.last = y
    return torch.tanh(y)


def sets_several(net: Any, x: torch.Tensor) -> torch.Tensor:
    y = net.lin(x)
    net.last, net.given = (y, [y * 2, 3]), {"x": x, "name": "a name", "none": None}
    return torch.tanh(y)


def sets_a_constant(net: Any, x: torch.Tensor) -> torch.Tensor:
    net.last, net.size, net.dtype = "ready", x.shape, x.dtype
    return net.lin(x)


def sets_in_an_object(net: Any, x: torch.Tensor) -> torch.Tensor:
    y = net.lin(x)
    net.store.last = y
    return torch.tanh(y)


def sets_a_parameters_view(net: Any, x: torch.Tensor) -> torch.Tensor:
    net.last = net.lin.weight[:2]
    return net.lin(x)


def puts_into_a_dict(net: Any, x: torch.Tensor) -> torch.Tensor:
    y = net.lin(x)
    net.table["y"], net.table["n"] = y, 3
    return torch.tanh(y)


def updates_a_dict(net: Any, x: torch.Tensor) -> torch.Tensor:
    y = net.lin(x)
    net.table.update(y=y)
    return torch.tanh(y)


def sets_twice(net: Any, x: torch.Tensor) -> torch.Tensor:
    net.last = x
    y = net.lin(x)
    net.last = y
    return torch.tanh(y)


def sets_and_takes_back(net: Any, x: torch.Tensor) -> torch.Tensor:
    net.last = net.lin(x)
    y = torch.tanh(net.last)
    net.last = None
    return y


#: By what the call leaves: its forward, what is there before.
REPEATED: dict[str, tuple[Function, dict[str, Any]]] = {
    "an attribute": (sets, {"last": None}),
    "an attribute that was a tensor": (sets, {"last": torch.zeros(2, 4)}),
    "an attribute that wasn't there": (sets, {}),
    "tensors in containers": (sets_several, {"last": None, "given": None}),
    "constants": (sets_a_constant, {"last": "", "size": None, "dtype": None}),
    "an attribute of an object": (sets_in_an_object, {"store": SimpleNamespace()}),
    "a view of a weight": (sets_a_parameters_view, {"last": None}),
    "a dict's items": (puts_into_a_dict, {"table": {"other": 1}}),
    "a dict's update": (updates_a_dict, {"table": {}}),
    "the second of two": (sets_twice, {"last": None}),
    "nothing, in the end": (sets_and_takes_back, {"last": None}),
}
STATE = ("last", "size", "dtype", "given", "table", "store")


def state(net: Any) -> Any:
    """What others see of it, with the values of this moment."""
    own = {name: vars(value) if isinstance(value := vars(net)[name], SimpleNamespace) else value for name in STATE if name in vars(net)}
    return _pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, own)


def alike(mine: Any, theirs: Any) -> None:
    (mine, tree), (theirs, other) = _pytree.tree_flatten(mine), _pytree.tree_flatten(theirs)
    assert tree == other
    for a, b in zip(mine, theirs, strict=True):
        assert torch.allclose(a, b) if isinstance(b, torch.Tensor) else (a == b and type(a) is type(b))


@pytest.mark.parametrize("name", REPEATED)
def test_what_is_left_behind_is_each_calls_own(name: str) -> None:
    function, attributes = REPEATED[name]
    net, twin = (module(function, **_pytree.tree_map(lambda leaf: leaf, _copied(attributes))) for _ in range(2))
    first, *others = inputs()
    alike(traced(net, first), twin(first))
    alike(state(net), state(twin))
    for x in others:
        assert net.guard.changed(net) is None, "what it leaves is no change to itself"
        alike(repeated(net, x), twin(x))
        alike(state(net), state(twin))


def _copied(attributes: dict[str, Any]) -> dict[str, Any]:
    import copy

    return copy.deepcopy(attributes)


def appends(net: Any, x: torch.Tensor) -> torch.Tensor:
    y = net.lin(x)
    net.maps.append(y)
    return torch.tanh(y)


def test_what_is_appended_stays_beside_what_was() -> None:
    net = module(appends, maps=[])
    xs = inputs()
    traced(net, xs[0])
    for x in xs[1:]:
        repeated(net, x)
        assert net.guard.changed(net) is None
    assert len(net.maps) == 3
    for kept, x in zip(net.maps, xs, strict=True):
        assert torch.allclose(kept, net.lin(x))
    net.maps.clear()
    repeated(net, xs[1])
    assert len(net.maps) == 1 and torch.allclose(net.maps[0], net.lin(xs[1])), "whoever empties it finds the next"


def compiled(net: Any) -> Any:
    return compile(net, CompileConfig(allow_cpu=True))


@pytest.mark.parametrize("name", REPEATED)
def test_a_compiled_call_leaves_what_eager_leaves(name: str) -> None:
    """Compared behind all calls, too: what an early call has left is what it was."""
    function, attributes = REPEATED[name]
    net, twin = (module(function, **_copied(attributes)) for _ in range(2))
    handle, kept = compiled(net), []
    with torch.no_grad():
        for x in inputs(5):
            result, expected = handle(x.clone()), twin(x.clone())
            kept.append(((result, {name: vars(net)[name] for name in STATE if name in vars(net) and name not in ("store", "table")}), (
                expected, {name: vars(twin)[name] for name in STATE if name in vars(twin) and name not in ("store", "table")})))
            alike(state(net), state(twin))
    for mine, theirs in kept:
        alike(mine, theirs)
    assert handle.engine.report.calls["fused"] >= 3, dict(handle.engine.report.reasons)


class Store:
    def __init__(self) -> None:
        self.last, self.maps = None, []

    def __call__(self, y: torch.Tensor) -> torch.Tensor:
        self.maps.append(y)
        return torch.tanh(y)


def keeps_by_a_store(net: Any, x: torch.Tensor) -> torch.Tensor:
    return net.store(net.lin(x))


def sets_a_stores(net: Any, x: torch.Tensor) -> torch.Tensor:
    y = net.lin(x)
    net.store.last = y
    return torch.tanh(y)


#: By what is made anew for each call: the forward, how, and what it is to have behind the call.
RENEWED: dict[str, tuple[Function, str, Callable[[], Any], Callable[[Any], list[torch.Tensor]]]] = {
    "a list": (appends, "maps", list, lambda net: net.maps),
    "a dict": (updates_a_dict, "table", dict, lambda net: list(net.table.values())),
    "an object": (sets_a_stores, "store", Store, lambda net: [net.store.last]),
    "an object's list": (keeps_by_a_store, "store", Store, lambda net: net.store.maps),
}


@pytest.mark.parametrize("name", RENEWED)
def test_what_came_in_the_place_of_what_is_written_to_gets_it(name: str) -> None:
    """An equal one, as hosts put one there for each picture, is another one here."""
    function, attribute, make, look = RENEWED[name]
    net = module(function, **{attribute: make()})
    handle, gone = compiled(net), []
    with torch.no_grad():
        for x in inputs(5):
            gone.append(vars(net)[attribute])
            setattr(net, attribute, make())
            handle(x)
            (kept,) = look(net)
            torch.testing.assert_close(kept, net.lin(x))
    net_of_gone = [len(look(SimpleNamespace(**{attribute: old}))) for old in gone]
    assert net_of_gone[1:] == [1] * 4, "and the earlier ones nothing more"


def counts(net: Any, x: torch.Tensor) -> torch.Tensor:
    net.steps += 1
    return net.lin(x) * net.steps


def counts_in_a_dict(net: Any, x: torch.Tensor) -> torch.Tensor:
    net.table["steps"] = net.table["steps"] + 1
    return net.lin(x) * net.table["steps"]


def keeps_the_last(net: Any, x: torch.Tensor) -> torch.Tensor:
    y = net.lin(x) if net.last is None else net.lin(x) + net.last
    net.last = y
    return y * 1


def keeps_the_last_always(net: Any, x: torch.Tensor) -> torch.Tensor:
    y = net.lin(x) + net.last
    net.last = y
    return y * 1


def looks_how_many(net: Any, x: torch.Tensor) -> torch.Tensor:
    net.maps.append(x)
    return net.lin(x) * len(net.maps)


def takes_away(net: Any, x: torch.Tensor) -> torch.Tensor:
    return net.lin(x) * net.numbers.pop()


def takes_an_item_away(net: Any, x: torch.Tensor) -> torch.Tensor:
    del net.table["a"]
    net.table["b"] = 1
    return net.lin(x)


def counts_globally(net: Any, x: torch.Tensor) -> torch.Tensor:
    global STEPS
    STEPS += 1
    return net.lin(x) * STEPS


STEPS = 0


def counts_in_its_class(net: Any, x: torch.Tensor) -> torch.Tensor:
    Counting.steps += 1
    return net.lin(x) * Counting.steps


class Counting:
    steps = 0


def counting() -> Any:
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return steps

    return step


def counts_by_a_function(net: Any, x: torch.Tensor) -> torch.Tensor:
    return net.lin(x) * net.step()


def keeps_an_object(net: Any, x: torch.Tensor) -> torch.Tensor:
    net.last = SimpleNamespace(x=x)
    return net.lin(x)


def keeps_a_function(net: Any, x: torch.Tensor) -> torch.Tensor:
    net.last = lambda: x
    return net.lin(x)


#: By what can't be repeated: the forward, what is there before, and the name that the reason has.
REFUSED: dict[str, tuple[Function, dict[str, Any], str]] = {
    "a count": (counts, {"steps": 0}, "steps"),
    "a count in a dict": (counts_in_a_dict, {"table": {"steps": 0}}, "table.steps"),
    "the last output, where there was none": (keeps_the_last, {"last": None}, "last"),
    "the last output": (keeps_the_last_always, {"last": torch.zeros(2, 4)}, "last"),
    "a list's length": (looks_how_many, {"maps": []}, "maps"),
    "what is taken away": (takes_away, {"numbers": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]}, "numbers"),
    "a global count": (counts_globally, {}, "STEPS"),
    "a class's count": (counts_in_its_class, {}, "Counting.steps"),
    "a function's count": (counts_by_a_function, {"step": counting}, "step"),
    "an object": (keeps_an_object, {"last": None}, "last"),
    "a function": (keeps_a_function, {"last": None}, "last"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_not_be_repeated_is_refused_by_name(name: str) -> None:
    function, attributes, words = REFUSED[name]
    net = module(function, **{name: value() if value is counting else value for name, value in _copied(attributes).items()})
    _, found, _ = guarded(net, inputs()[0])
    assert isinstance(found, Untraceable) and found.changing
    assert found.reason.startswith("the call itself changes the module: ") and words in found.reason.split(": ")[1]


def test_the_guard_of_such_a_call_does_not_watch_what_the_call_changes() -> None:
    """Or each call would be traced again, and in vain."""

    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        net.steps += 1
        return net.lin(x) * net.steps * net.scale

    net = module(forward, steps=0, scale=1.0)
    x = inputs()[0]
    _, found, guard = guarded(net, x)
    assert isinstance(found, Untraceable) and guard.changed(net) is None
    net(x)
    assert guard.changed(net) is None
    net.scale = 2.0
    assert guard.changed(net) == "scale changed"


def fills_a_dict(net: Any, x: torch.Tensor) -> torch.Tensor:
    if x.shape[-1] not in net.table:
        net.table[x.shape[-1]] = torch.linspace(0, 1, x.shape[-1])
    return net.lin(x) * net.table[x.shape[-1]]


def fills_an_attribute(net: Any, x: torch.Tensor) -> torch.Tensor:
    if net.last is None:
        net.last = torch.linspace(0, 1, x.shape[-1])
    return net.lin(x) * net.last


def fills_a_list(net: Any, x: torch.Tensor) -> torch.Tensor:
    if not net.maps:
        net.maps.append(torch.linspace(0, 1, x.shape[-1]))
    return net.lin(x) * net.maps[0]


@pytest.mark.parametrize(("function", "attributes"), [(fills_a_dict, {"table": {}}), (fills_an_attribute, {"last": None}), (fills_a_list, {"maps": []})])
def test_a_cache_that_is_filled_once_is_traced_at_the_next_call(function: Function, attributes: dict[str, Any]) -> None:
    net, twin = (module(function, **_copied(attributes)) for _ in range(2))
    _, found, _ = guarded(net, inputs()[0])
    assert isinstance(found, Untraceable) and found.changing
    _, found, guard = guarded(net, inputs()[0])
    assert isinstance(found, Trace), found.reason
    assert guard.changed(net) is None

    fresh = module(function, **_copied(attributes))
    handle = compiled(fresh)
    with torch.no_grad():
        for x in inputs(5):
            alike(handle(x), twin(x))
    assert handle.engine.report.calls["fused"] >= 2, dict(handle.engine.report.reasons)


def test_what_is_left_does_not_lie_where_the_next_call_writes() -> None:
    net = module(sets, last=None)
    handle = compiled(net)
    kept: list[torch.Tensor] = []
    xs = inputs(6)
    with torch.no_grad():
        for x in xs:
            handle(x)
            kept.append(net.last)
        assert len({tensor.data_ptr() for tensor in kept}) == len(kept)
        for tensor, x in zip(kept, xs, strict=True):
            torch.testing.assert_close(tensor, net.lin(x))
        kept[-1].zero_()
        torch.testing.assert_close(handle(xs[0]), torch.tanh(net.lin(xs[0])))
