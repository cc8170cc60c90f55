"""Which places a call reads, each once, without calling anything; and what can not be compared."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core.capture import Trace, Untraceable
from sfast_core.capture.guards import ReadSet, watched
from sfast_core.capture.guards.attributes import rows_of
from sfast_core.capture.guards.origin import Origin
from tests.capture.guards.test_read_set import X, guard_of, handed_on
from tests.models import Forward
from tests.tracing import guarded


def reads_of_call(net: nn.Module, *inputs: torch.Tensor) -> ReadSet:
    """What a call of ``net`` reads."""
    reads = ReadSet(net, net.forward)
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
    assert (
        "unread" not in origins(reads)
        and not reads.held
        and {str(each.origin) for each in reads.asked.values()} == {"what all tensors have"}
    )


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


def test_what_python_and_pytorch_have_is_not_looked_into() -> None:
    """Of torch's layers only what steers them: a call of them isn't thousands of places."""
    net = nn.TransformerEncoderLayer(8, 2, 8).eval().requires_grad_(False)
    reads = reads_of_call(net, torch.ones(1, 2, 8))
    assert not [name for name in origins(reads) if name.startswith(("os.", "sys.", "warnings.", "typing."))]
    assert len(reads.places) < 400 and len(reads.seen) < 40
