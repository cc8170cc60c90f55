"""What a call leaves behind besides its result: done again with each call's own tensors, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils import _pytree

from sfast_core.capture import Trace
from tests.capture.guards.left_behind import Function, alike, compiled, copied, inputs, module
from tests.tracing import evaluate, guarded


def repeated(net: Any, x: torch.Tensor) -> Any:
    """Runs the trace on ``x`` and does again what the call did, on what ``net`` holds."""
    found = net.found
    tensors = evaluate(found.graph, [x])
    found.outputs.repeat(tensors, [x])
    return found.outputs.build(tensors, [x])


def traced(net: Any, x: torch.Tensor) -> Any:
    """The result of a call that leaves a trace."""
    result, found, guard = guarded(net, x)
    assert isinstance(found, Trace), found.reason
    net.__dict__["found"], net.__dict__["guard"] = found, guard
    return result


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
    own = {
        name: vars(value) if isinstance(value := vars(net)[name], SimpleNamespace) else value
        for name in STATE
        if name in vars(net)
    }
    return _pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, own)


@pytest.mark.parametrize("name", REPEATED)
def test_what_is_left_behind_is_each_calls_own(name: str) -> None:
    function, attributes = REPEATED[name]
    net, twin = (module(function, **_pytree.tree_map(lambda leaf: leaf, copied(attributes))) for _ in range(2))
    first, *others = inputs()
    alike(traced(net, first), twin(first))
    alike(state(net), state(twin))
    for x in others:
        assert net.guard.changed(net) is None, "what it leaves is no change to itself"
        alike(repeated(net, x), twin(x))
        alike(state(net), state(twin))


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


@pytest.mark.parametrize("name", REPEATED)
def test_a_compiled_call_leaves_what_eager_leaves(name: str) -> None:
    """Compared behind all calls, too: what an early call has left is what it was."""
    function, attributes = REPEATED[name]
    net, twin = (module(function, **copied(attributes)) for _ in range(2))
    handle, kept = compiled(net), []
    with torch.no_grad():
        for x in inputs(5):
            result, expected = handle(x.clone()), twin(x.clone())
            kept.append(
                (
                    (
                        result,
                        {
                            name: vars(net)[name]
                            for name in STATE
                            if name in vars(net) and name not in ("store", "table")
                        },
                    ),
                    (
                        expected,
                        {
                            name: vars(twin)[name]
                            for name in STATE
                            if name in vars(twin) and name not in ("store", "table")
                        },
                    ),
                )
            )
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
