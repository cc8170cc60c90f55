"""What a recorded call leaves behind and can't be done again: it is refused by its name, and a cache that is filled
once is traced at the next call.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, compile
from sfast_core.capture import Trace, Untraceable
from tests.capture.guards.left_behind import Function, alike, compiled, copied, inputs, module
from tests.models import Forward
from tests.tracing import guarded


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


class Watched:
    def __del__(self) -> None:
        """Whoever hears of its end hears of each."""


def keeps_an_object(net: Any, x: torch.Tensor) -> torch.Tensor:
    net.last = Watched()
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
    "an item taken away": (takes_an_item_away, {"table": {"a": 0}}, "table"),
    "a global count": (counts_globally, {}, "STEPS"),
    "a class's count": (counts_in_its_class, {}, "Counting.steps"),
    "a function's count": (counts_by_a_function, {"step": counting}, "step"),
    "an object whose end is heard of": (keeps_an_object, {"last": None}, "last"),
    "a function": (keeps_a_function, {"last": None}, "last"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_not_be_repeated_is_refused_by_name(name: str) -> None:
    function, attributes, words = REFUSED[name]
    net = module(
        function, **{name: value() if value is counting else value for name, value in copied(attributes).items()}
    )
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


@pytest.mark.parametrize(
    ("function", "attributes"),
    [(fills_a_dict, {"table": {}}), (fills_an_attribute, {"last": None}), (fills_a_list, {"maps": []})],
)
def test_a_cache_that_is_filled_once_is_traced_at_the_next_call(function: Function, attributes: dict[str, Any]) -> None:
    net, twin = (module(function, **copied(attributes)) for _ in range(2))
    _, found, _ = guarded(net, inputs()[0])
    assert isinstance(found, Untraceable) and found.changing
    _, found, guard = guarded(net, inputs()[0])
    assert isinstance(found, Trace), found.reason
    assert guard.changed(net) is None

    fresh = module(function, **copied(attributes))
    handle = compiled(fresh)
    with torch.no_grad():
        for x in inputs(5):
            alike(handle(x), twin(x))
    assert handle.engine.report.calls["fused"] >= 2, dict(handle.engine.report.reasons)


def test_what_a_cached_function_has_made_in_the_call_may_be_changed_by_it() -> None:
    counts = functools.lru_cache(lambda: [0])

    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        counts()[0] += 1
        return net.lin(x) * counts()[0]  # type: ignore[no-any-return]

    net = Forward(forward, lin=nn.Linear(8, 8)).requires_grad_(False)
    x = torch.ones(2, 8)
    with torch.no_grad():
        first = net(x).clone()
        counts.cache_clear()
        compile(net, CompileConfig(allow_cpu=True))
        for number in (1, 2, 3):
            torch.testing.assert_close(net(x), first * number)


def leaves_maps(net: Any, x: torch.Tensor) -> torch.Tensor:
    net.maps.append(x * 2)
    return net.lin(x) * net.table(x.shape[1])


def notes(net: Any, n: int) -> None:
    net.kept.update({n: n})


CACHED = {
    "computes alone": (lambda net, n: torch.linspace(0, 1, n), True),
    "sets an attribute": (lambda net, n: setattr(net, "last", n) or torch.linspace(0, 1, n), False),
    "has another function do so": (lambda net, n: notes(net, n) or torch.linspace(0, 1, n), False),
    "keeps a buffer": (lambda net, n: net.register_buffer("b", torch.ones(1)) or torch.linspace(0, 1, n), False),
}


@pytest.mark.parametrize("name", CACHED)
def test_a_call_that_fills_a_cache_and_leaves_something_else(name: str) -> None:
    """The first call has a trace where the cached function, which another call doesn't run, left nothing."""
    table, traced = CACHED[name]
    net: Any = Forward(leaves_maps, lin=nn.Linear(8, 8)).requires_grad_(False)
    net.maps, net.kept, net.table = [], {}, functools.partial(functools.lru_cache(table), net)
    handle, twin = compile(net, CompileConfig(allow_cpu=True)), [torch.full((2, 8), 2.0 * n) for n in range(3)]
    with torch.no_grad():
        for n in range(3):
            net(torch.full((2, 8), float(n)))
            assert handle.engine.report.calls["traced"] == (traced or n > 0), n
    assert all(map(torch.equal, net.maps, twin)) and len(net.maps) == 3
