"""A call's key: equal for calls that one captured variant serves, different for all others."""

from __future__ import annotations

import enum
from collections import OrderedDict, namedtuple
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pytest
import torch

from sfast_core.capture import CaptureError, Signature, difference, snapshot

X = torch.zeros(2, 3, 4, 5)
Z = torch.zeros(2, 3, dtype=torch.complex64)
Pair = namedtuple("Pair", "first second")


class Mode(enum.Enum):
    FAST = 1
    SLOW = 2


def key(*args: Any, **kwargs: Any) -> Any:
    return Signature(args, kwargs).key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (X, torch.zeros(2, 3, 4, 6)),
        (X, X.half()),
        (X, X.to(memory_format=torch.channels_last)),
        (X[:1], X[:1].expand(2, 3, 4, 5)[:1].contiguous().transpose(2, 3)),
        (X, X.to("meta")),
        (X, None),
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        ("1", 1),
        (torch.float16, torch.float32),
        (Mode.FAST, Mode.SLOW),
        ((1, 2), [1, 2]),
        ((1, 2), Pair(1, 2)),
        ([X], [X, X.clone()]),
        ([X, None], [None, X]),
        ([[X], []], [[], [X]]),
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {"b": 1}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 1}, OrderedDict(a=1)),
        ({"a": X}, {"a": None}),
        ({1: "a"}, {True: "a"}),
        ({(1, 2): "a"}, {(1, 2.0): "a"}),
        (range(3), range(4)),
        (slice(0, 2), slice(False, 2)),
        (slice(1, 2), range(1, 2)),
        ({1}, {True}),
        ({1}, frozenset({1})),
        ({1}, {1, 2}),
        ({0, 8}, {8, 0}),
        (PurePosixPath("a"), PurePosixPath("b")),
        (np.float32(1), np.float32(2)),
        (np.float32(1), np.float64(1)),
        (np.float32(0.0), np.float32(-0.0)),
        (np.int64(1), 1),
        (Z, Z.conj()),
        (Z.imag, Z.conj().imag),
    ],
    ids=lambda value: type(value).__name__,
)
def test_different_calls_have_different_keys(one: Any, other: Any) -> None:
    assert key(one) != key(other)
    assert key(a=one) != key(a=other)
    assert key([one]) != key([other])


@pytest.mark.parametrize(
    "make",
    [
        lambda: X.clone(),
        lambda: X.transpose(1, 2),
        lambda: X.expand(7, 2, 3, 4, 5),
        lambda: [X.clone(), {"a": (X.clone(), 3, "x", None, torch.float16, Mode.FAST)}],
        lambda: float("nan"),
        lambda: Pair(X.clone(), 2),
        lambda: (
            range(3),
            slice(None, 2),
            {1, "a"},
            frozenset({2.0}),
            PurePosixPath("a"),
            np.float32(0.5),
            np.str_("a"),
        ),
    ],
)
def test_equal_calls_have_equal_keys_whatever_the_values(make: Any) -> None:
    one, other = make(), make()
    if isinstance(other, torch.Tensor):
        other = other + 0 if other.is_contiguous() else other
    assert key(one) == key(other) and hash(key(one)) == hash(key(other))


def test_where_an_argument_stands_matters() -> None:
    assert key(X, 1) != key(1, X)
    assert key(X) != key(x=X)
    assert key(x=X) != key(y=X)


def test_the_same_object_twice_is_not_two_equal_objects() -> None:
    a, b = X.clone(), X.clone()
    assert key(a, a) != key(a, b)
    assert key(a, b, a) != key(a, b, b)
    assert key(a, [b, a]) == key(b, [a, b])


def test_a_parameter_is_no_other_tensor() -> None:
    assert key(torch.nn.Parameter(X.clone())) != key(X.clone())


def test_each_tensor_object_is_listed_once_in_the_order_of_the_walk() -> None:
    a, b, c = X.clone(), X.clone(), X.clone()
    tensors = Signature((b, [a, b]), {"c": {"d": (c, a)}}).tensors
    assert [id(x) for x in tensors] == [id(b), id(a), id(c)]


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((X, lambda: 0), {}, r"args\[1\] holds a function"),
        (({"a": [1, {(2,)}]},), {}, r"args\[0\]\['a'\]\[1\] holds a set"),
        (
            (),
            {"options": {"patches": {"attn": object()}}},
            r"kwargs\['options'\]\['patches'\]\['attn'\] holds a object",
        ),
        ((), {"x": X.to_sparse()}, r"kwargs\['x'\] is a Tensor of layout torch.sparse_coo"),
        ((X.as_subclass(type("Own", (torch.Tensor,), {})),), {}, r"args\[0\] is a Own"),
        (({"a": {X: 1}},), {}, r"args\[0\]\['a'\] has a tensor as a key"),
    ],
)
def test_what_cannot_be_keyed_is_named(args: Any, kwargs: Any, words: str) -> None:
    with pytest.raises(CaptureError, match=words):
        Signature(args, kwargs)


def cycle(kind: type) -> Any:
    inner: Any = {} if kind is dict else []
    value = {"a": [inner]} if kind is dict else [X, (inner,)]
    inner.update(back=value) if kind is dict else inner.append(value)
    return value


def deep() -> Any:
    value: Any = X
    for _ in range(20_000):
        value = [value]
    return value


def endless() -> Any:
    value: Any = [X, X]
    for _ in range(40):  # 2^40 values in 80 lists
        value = [value, value]
    return value


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: cycle(dict), r"\['a'\]\[0\]\['back'\] holds itself"),
        (lambda: cycle(list), r"\[1\]\[0\]\[0\] holds itself"),
        (deep, r"\[0\]\[0\]\[0\].* is deeper than 50 containers"),
        (endless, r"brings the arguments to more than 100,000 values"),
        (lambda: [0] * 100_001, r"brings the arguments to more than 100,000 values"),
    ],
)
def test_what_has_no_end_is_named_and_not_walked(make: Any, words: str) -> None:
    value = make()
    for walk in (key, snapshot):
        with pytest.raises(CaptureError, match=words):
            walk(value)


def test_the_same_container_at_two_places_is_no_cycle() -> None:
    shared = [X, 1]
    assert key(shared, {"a": shared, "b": (shared,)}) is not None
    copy = snapshot([shared, shared])
    assert copy == [shared, shared] and copy[0] is not shared


def test_a_snapshot_has_its_own_containers_and_the_same_tensors() -> None:
    control = {"input": [X, None], "more": (1, [X])}
    copy = snapshot(control)
    control["input"].pop()
    control["more"][1].pop()  # type: ignore[attr-defined]
    assert list(copy) == ["input", "more"] and copy["input"][0] is X and copy["input"][1] is None
    assert copy["more"] == (1, [X]) and copy["more"][1][0] is X


def test_a_snapshot_leaves_what_it_does_not_know() -> None:
    pair, ordered = Pair([X], 2), OrderedDict(a=[X])
    assert snapshot(pair) is pair and snapshot(ordered) is ordered and snapshot(X) is X


@pytest.mark.parametrize(
    ("one", "other", "place"),
    [
        ({"options": {"step": 1, "x": X}}, {"options": {"step": 2, "x": X}}, "kwargs['options']['step']"),
        ({"parts": [1, (2, 3)]}, {"parts": [1, (2, 4)]}, "kwargs['parts'][1][1]"),
        ({"parts": [1]}, {"parts": [1, 2]}, "kwargs['parts']"),
        ({"parts": [1]}, {"parts": (1,)}, "kwargs['parts']"),
        ({"options": {"a": 1}}, {"options": {"b": 1}}, "kwargs['options']"),
        ({"x": X}, {"x": X.half()}, "kwargs['x']"),
        ({"x": X}, {"x": None}, "kwargs['x']"),
        ({"a": 1}, {"a": 1, "b": 1}, "kwargs"),
        ({"a": {1: 2}}, {"a": {1: 3}}, "kwargs['a'][1]"),
    ],
)
def test_a_difference_is_named(one: dict[str, Any], other: dict[str, Any], place: str) -> None:
    assert difference(key(**one), key(**other)) == place
    assert difference(key(one), key(other)) == place.replace("kwargs", "args[0]")


def test_autocast_is_a_difference() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        other = key(X)
    assert difference(key(X), other) == "autocast"


def test_a_layout_is_of_tensors_and_autocast_alone() -> None:
    forms = Signature((X, 1), {"a": "b"}).forms
    assert forms == Signature((), {"x": [torch.ones_like(X)]}).forms and hash(forms) == hash(forms)
    assert forms != Signature((X.half(), 1), {"a": "b"}).forms
    with torch.autocast("cpu", torch.bfloat16):
        assert forms != Signature((X, 1), {"a": "b"}).forms
