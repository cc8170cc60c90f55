"""What code that runs reads besides modules: functions that it calls, by name or not, in its own file and in others,
and what they read.
"""

from __future__ import annotations

import functools
import io
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core.capture import Guard, Trace, Untraceable, stands_for
from sfast_core.capture.guards import CodeCache, ReadSet, watched
from sfast_core.capture.guards.attributes import rows_of
from sfast_core.capture.guards.origin import Origin
from tests.models import Forward
from tests.tracing import guarded

#: Another file, which this one has imported.
other = types.ModuleType("other")
exec(
    "def attention(x):\n    return softmax(x)\ndef softmax(x):\n    return x\ndef unused(x):\n    return x\n",
    vars(other),
)


def activation(x: torch.Tensor) -> torch.Tensor:
    return deeper(x)


def deeper(x: torch.Tensor) -> torch.Tensor:
    return x


def within(x: torch.Tensor) -> torch.Tensor:
    return x


def wrapped(x: torch.Tensor) -> torch.Tensor:
    return x


def of_a_partial(x: torch.Tensor) -> torch.Tensor:
    return x


def bound(x: torch.Tensor, other: int) -> torch.Tensor:
    return of_a_partial(x)


def of_a_static(x: torch.Tensor) -> torch.Tensor:
    return x


def of_a_property() -> int:
    return 1


def of_an_instance(x: torch.Tensor) -> torch.Tensor:
    return x


def of_saving(x: torch.Tensor) -> torch.Tensor:
    return x


def register(function: Callable[..., Any]) -> None:
    global callback
    callback = function


callback = of_saving


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any) -> Any:
        return function(*args)

    return run


def bare(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: function(*args)


class Proxy:
    """What answers no question before something has happened."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("nothing is bound")

    __module__ = property(lambda self: self.missing)  # type: ignore[assignment]


@bare
def one_wrapped_without_a_word(x: torch.Tensor) -> torch.Tensor:
    return deep_in_one(x)


@bare
def another(x: torch.Tensor) -> torch.Tensor:
    return deep_in_another(x)


def deep_in_one(x: torch.Tensor) -> torch.Tensor:
    return x


def deep_in_another(x: torch.Tensor) -> torch.Tensor:
    return x


@decorated
def thin(x: torch.Tensor) -> torch.Tensor:
    return wrapped(x)


def handed_on(value: Any) -> Any:
    return value


proxy = Proxy()
part = functools.partial(bound, other=1)


class Block(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        callback(x)
        handed_on(proxy)
        return sum(within(thin(part(y))) for y in self.attend(activation(one_wrapped_without_a_word(another(x)))))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        return other.attention(self.helped(x) * self.number)

    @staticmethod
    def helped(x: torch.Tensor) -> torch.Tensor:
        return of_a_static(x)

    @property
    def number(self) -> int:
        return of_a_property()

    def save(self, x: torch.Tensor) -> torch.Tensor:
        return of_saving(x)


def model() -> nn.Module:
    return nn.Sequential(Block())


X = torch.ones(2, 2)


def guard_of(net: nn.Module, *inputs: torch.Tensor) -> Guard:
    _, found, guard = guarded(net, *(inputs or (X,)))
    assert isinstance(found, Trace), found.reason
    return guard


HERE = globals()
CALLED = [
    "activation",
    "deeper",
    "within",
    "thin",
    "wrapped",
    "part",
    "of_a_partial",
    "of_a_static",
    "of_a_property",
    "callback",
    "handed_on",
]
CALLED += ["one_wrapped_without_a_word", "another", "deep_in_one", "deep_in_another"]


@pytest.mark.parametrize(
    ("names", "name"), [*((HERE, name) for name in CALLED), (vars(other), "attention"), (vars(other), "softmax")]
)
def test_a_function_that_is_called_is_part_of_it(
    monkeypatch: pytest.MonkeyPatch, names: dict[str, Any], name: str
) -> None:
    """Directly or by others, by a method or within an expression, wrapped or bound, here or in another file."""
    net = model()
    guard = guard_of(net)
    monkeypatch.setitem(names, name, lambda *args: None)
    first = guard.changed(net)
    assert first and first.endswith(f"{name} changed") and guard.changed(net) == first
    monkeypatch.undo()
    assert guard.changed(net) is None


@pytest.mark.parametrize(
    ("names", "name"), [(HERE, "of_saving"), (HERE, "of_an_instance"), (HERE, "model"), (vars(other), "unused")]
)
def test_a_function_that_is_not_called_by_that_name_is_none(
    monkeypatch: pytest.MonkeyPatch, names: dict[str, Any], name: str
) -> None:
    net = model()
    guard = guard_of(net)
    monkeypatch.setitem(names, name, lambda *args: None)
    assert guard.changed(net) is None


def test_what_a_decorator_has_put_away_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    net = model()
    guard = guard_of(net)
    monkeypatch.setattr(wrapped_of(thin), "__code__", (lambda x: x * 2).__code__)
    assert str(guard.changed(net)).startswith("the code of ")
    monkeypatch.undo()
    assert guard.changed(net) is None


def wrapped_of(function: Any) -> Any:
    return function.__wrapped__


def test_a_variable_is_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is to be called of something is registered there, by the file's own code."""
    net = model()
    guard = guard_of(net)
    monkeypatch.setitem(HERE, "callback", callback)
    register(lambda x: x)
    assert guard.changed(net) == f"{__name__}.callback changed"


def test_a_function_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    net = model()
    guard = guard_of(net)
    monkeypatch.delitem(HERE, "deeper")
    assert guard.changed(net) == f"{__name__}.deeper changed"


def test_one_that_stands_for_it_is_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it was there at the trace or came later; and one that stands for another is a change."""

    def in_its_place(x: torch.Tensor) -> torch.Tensor:
        return before(x)

    net, before = model(), activation
    guard = guard_of(net)
    stands_for(in_its_place, activation)
    monkeypatch.setitem(HERE, "activation", in_its_place)
    assert guard.changed(net) is None
    later = guard_of(net)
    monkeypatch.setitem(HERE, "deeper", lambda x: x * 2)
    assert later.changed(net) == f"{__name__}.deeper changed", "what the original calls is called"
    monkeypatch.undo()
    assert later.changed(net) is None
    stands_for(in_its_place, deeper)
    monkeypatch.setitem(HERE, "activation", in_its_place)
    assert guard.changed(net) == f"{__name__}.activation changed"


def test_what_python_and_pytorch_have_is_not_looked_into() -> None:
    """Of torch's layers only what steers them: a call of them isn't thousands of places."""
    net = nn.TransformerEncoderLayer(8, 2, 8).eval().requires_grad_(False)
    reads = reads_of_call(net, torch.ones(1, 2, 8))
    assert not [name for name in origins(reads) if name.startswith(("os.", "sys.", "warnings.", "typing."))]
    assert len(reads.places) < 400 and len(reads.seen) < 40


def reads_of_call(net: nn.Module, *inputs: torch.Tensor) -> ReadSet:
    """What a call of ``net`` reads."""
    reads = ReadSet(net, net.forward, CodeCache())
    with torch.no_grad(), watched(reads.started, reads.asks):
        net(*inputs)
    reads.finish()
    return reads


def origins(reads: ReadSet) -> list[str]:
    """What is watched, in words: items, globals and what classes say of files; attributes of objects."""
    kept = [Origin(place.origin, place.name) for place in reads.places.values()]
    return [
        *map(str, kept),
        *(
            str(Origin(row.origin, name))
            for row in rows_of(reads, (), lambda tensor: tensor)
            for name in (*row.names, *row.absent)
        ),
    ]


def test_each_way_to_a_place_is_one_place() -> None:
    """However often and by whomever something is read, it is compared once."""

    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = x * net.scale * net.alias.scale * net.table["k"] + helper(net)
        return x

    def helper(net: Any) -> float:
        return net.scale + net.table["k"]

    net = Forward(forward)
    net.scale, net.table = 2.0, {"k": 1.0}
    net.__dict__["alias"] = net
    names = origins(reads_of_call(net, X))
    assert names.count("scale") == 1 and names.count("table.k") == 1


def test_a_call_within_a_call_that_only_hands_on_reads_nothing() -> None:
    net = Forward(lambda net, x: x + 1)
    net.unread = {"a": [1, 2, 3]}
    reads = reads_of_call(net, X)
    assert "unread" not in origins(reads) and not reads.held and not reads.asked


def test_nothing_is_called_to_find_out_what_is_read() -> None:
    """No property, no ``__getattr__``, no ``__eq__``, no ``__len__``: what those do, only the model may ask for."""
    calls: list[str] = []

    class Asks:
        def __getattr__(self, name: str) -> Any:
            calls.append(name)
            raise AttributeError(name)

        def __len__(self) -> int:
            calls.append("len")
            return 1

        def __bool__(self) -> bool:
            calls.append("bool")
            return True

        def __eq__(self, other: object) -> bool:
            calls.append("eq")
            return self is other

        def __hash__(self) -> int:
            calls.append("hash")
            return 1

        @property
        def scale(self) -> float:
            calls.append("scale")
            return 2.0

    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        handed_on(net.asks)
        return x * net.asks.scale if net.asks is not None and isinstance(net.asks, Asks) else x

    net = Forward(forward)
    net.asks = Asks()
    guard = guard_of(net)
    assert calls == ["scale"]
    assert guard.changed(net) is None and calls == ["scale"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (iter([1, 2, 3]), "list_iterator"),
        (iter(range(9)), "range_iterator"),
        (open, "files"),
        (object(), None),
        (io.StringIO("a"), "StringIO"),
    ],
)
def test_what_can_not_be_compared_is_named(value: Any, words: str | None) -> None:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        handed_on(net.value)
        return x + 1

    net = Forward(forward)
    net.value = value
    _, found, _ = guarded(net, X)
    if words is None:
        assert isinstance(found, Trace)
    else:
        assert isinstance(found, Untraceable) and words in found.reason and "value" in found.reason


def test_too_much_is_not_compared() -> None:
    net = Forward(lambda net, x: x * sum(net.numbers))
    net.numbers = [0.0] * 200_001
    _, found, _ = guarded(net, X)
    assert isinstance(found, Untraceable) and found.reason == "numbers holds too much to be compared at each call"


def test_a_failing_look_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call goes on as it would have."""

    def fails(*args: Any) -> Any:
        raise ValueError("unheard of")

    monkeypatch.setattr(ReadSet, "_planned", fails)
    result, found, _ = guarded(Forward(lambda net, x: x + 1), X)
    assert torch.equal(result, X + 1)
    assert isinstance(found, Untraceable) and found.reason == "what it reads can't be found out: ValueError: unheard of"


def test_a_file_that_a_host_names_by_its_path_is_said_by_its_last_part() -> None:
    """Such as a node pack's, whose module ComfyUI calls by the folder: a reason is shown to users."""
    assert (
        str(Origin(Origin(None, "/home/me/custom_nodes/Comfy-WaveSpeed.cache"), "buffers"))
        == "Comfy-WaveSpeed.cache.buffers"
    )
    assert str(Origin(Origin(None, "blocks"), 0)) == "blocks[0]"
