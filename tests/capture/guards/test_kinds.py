"""What sort of value something is, and when two simple ones are the same."""

from __future__ import annotations

import array
import collections
import contextvars
import ctypes
import datetime
import decimal
import enum
import functools
import io
import itertools
import logging
import math
import operator
import random
import re
import sys
import threading
import types
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sfast_core.capture.guards.kinds import Kind, TensorNote, answer, carried, kind_of, same_value, what_a_tensor_is


class Plain:
    def method(self) -> None: ...

    @staticmethod
    def static() -> None: ...

    @classmethod
    def of_class(cls) -> None: ...

    @property
    def read(self) -> int:
        return 1

    @functools.cached_property
    def cached(self) -> int:
        return 2


class Slotted:
    __slots__ = ("k",)


class Empty:
    __slots__ = ()


class Word(str):
    """A class of its own."""


class Number(float):
    """Likewise."""


class Color(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


class Names(list):  # type: ignore[type-arg]
    """A list of its own class."""


class Iterator:
    def __iter__(self) -> Iterator:
        return self

    def __next__(self) -> int:
        return 1


Pair = collections.namedtuple("Pair", "a b")  # noqa: PYI024

KINDS: dict[Kind, list[Any]] = {
    Kind.VALUE: [
        *(None, True, 1, 1.0, 1j, "a", b"a", ..., NotImplemented, range(2), slice(1), Word("a"), Number(1.0)),
        *(torch.float32, torch.device("cpu"), torch.channels_last, torch.strided, torch.Size([1]), Path("a")),
        *(datetime.date(2000, 1, 1), datetime.timedelta(1), decimal.Decimal(1)),
    ],
    Kind.TENSOR: [
        torch.ones(1),
        nn.Parameter(torch.ones(1)),
        torch.ones(1).as_subclass(type("Sub", (torch.Tensor,), {})),
    ],
    Kind.SEQUENCE: [[], (), collections.deque(), Names(), Pair(1, 2)],
    Kind.MAPPING: [
        {},
        collections.OrderedDict(),
        collections.defaultdict(int),
        types.MappingProxyType({}),
        weakref.WeakKeyDictionary(),
    ],
    Kind.SET: [set(), frozenset()],
    Kind.FUNCTION: [lambda: 1, kind_of],
    Kind.BOUND: [Plain().method, Plain.of_class],
    Kind.PARTIAL: [functools.partial(len), functools.partialmethod(len)],
    Kind.MODULE: [nn.Identity()],
    Kind.OBJECT: [Plain(), Slotted(), Empty(), Iterator(), types.SimpleNamespace(), threading.local()],
    Kind.CLASS: [Plain, int, enum.EnumMeta, Color],
    Kind.FILE: [math, torch],
    Kind.ASKED: [
        *(contextvars.ContextVar("a"), weakref.ref(Plain), bytearray(1), array.array("i", [1]), memoryview(b"a")),
        *(np.ones(2), np.float32(1), logging.getLogger("a"), ctypes.c_int(1), (ctypes.c_int * 2)()),
    ],
    Kind.CACHED: [functools.cache(lambda: 1), functools.lru_cache(len)],
    Kind.SAME: [
        torch._C._get_tracing_state.__self__,  # what a function of C++ is bound to
        *(len, operator.attrgetter("a"), re.compile("a"), threading.Lock(), threading.RLock(), threading.Event()),
        *(
            object(),
            Color.RED,
            Level.LOW,
            list[int],
            [].append,
            str.upper,
            vars(Plain)["static"],
            vars(Plain)["read"],
            vars(Plain)["cached"],
        ),
        *((lambda: 1).__code__, torch.relu, torch.Tensor.shape),
    ],
    Kind.STATEFUL: [
        *(
            iter([1]),
            itertools.count(),
            itertools.cycle([1]),
            map(len, []),
            zip(),
            (x for x in []),
            random.Random(0),
            io.StringIO("a"),
        ),
        *(torch.Generator(), np.random.default_rng(0), np.random.RandomState(0), enumerate([]), reversed([1])),
    ],
    Kind.OPAQUE: [ctypes.c_void_p(), ctypes.pointer(ctypes.c_int(1)), np.array([object()]), np.zeros(1 << 18)],
}
CASES = [(kind, value) for kind, values in KINDS.items() for value in values]


@pytest.mark.parametrize(
    ("kind", "value"), CASES, ids=[f"{kind.name}-{index}" for index, (kind, _) in enumerate(CASES)]
)
def test_kinds(kind: Kind, value: Any) -> None:
    assert kind_of(value) is kind, f"{type(value)}"


def test_there_is_a_case_of_each_kind() -> None:
    assert KINDS.keys() == set(Kind)


@pytest.mark.parametrize(
    "package",
    sorted(
        sys.stdlib_module_names & {"collections", "decimal", "threading", "queue", "re", "types", "weakref", "pathlib"}
    ),
)
def test_whatever_a_file_has_is_of_some_kind(package: str) -> None:
    for value in vars(__import__(package)).values():
        assert isinstance(kind_of(value), Kind)


def test_what_a_descriptor_carries() -> None:
    for name in ("static", "of_class", "read", "cached"):
        assert carried(vars(Plain)[name]).__name__ == name
    assert carried(len) is len


SAME: dict[str, tuple[Any, Any]] = {
    "numbers": (1, int("1")),
    "floats": (2.5, float("2.5")),
    "not a number": (math.nan, float("nan")),
    "words": ("a word", " ".join(["a", "word"])),
    "words of a class": (Word("a"), Word("a")),
    "numbers of a class": (Number(1.5), Number(1.5)),
    "complex": (1 + 2j, complex("1+2j")),
    "not a complex number": (complex(math.nan, 1), complex(math.nan, 1)),
    "bytes": (b"ab", b"a" + b"b"),
    "none": (None, None),
    "ranges": (range(3), range(3)),
    "slices": (slice(1, 2), slice(1, 2)),
    "dtypes": (torch.float32, torch.float),
    "devices": (torch.device("cuda:1"), torch.device("cuda", 1)),
    "sizes": (torch.Size([1, 2]), torch.ones(1, 2).shape),
    "paths": (Path("a/b"), Path("a") / "b"),
}
OTHER: dict[str, tuple[Any, Any]] = {
    "zero and its negative": (0.0, -0.0),
    "zero and its negative, in a complex number": (complex(0.0, 0.0), complex(0.0, -0.0)),
    "in its real part": (complex(0.0, 0.0), complex(-0.0, 0.0)),
    "in a slice": (slice(0.0), slice(-0.0)),
    "a bool and an int": (True, 1),
    "an int and a float": (1, 1.0),
    "a float and a complex number": (1.0, 1 + 0j),
    "a bool and an int in a slice": (slice(True), slice(1)),
    "not a number and one": (math.nan, 1.0),
    "nearly": (1.0, 1.0 + 2**-52),
    "a word and one of a class": ("a", Word("a")),
    "a number and one of a class": (1.0, Number(1.0)),
    "words": ("a", "b"),
    "a word and bytes": ("a", b"a"),
    "none and false": (None, False),
    "an enum's member and its number": (Level.LOW, 1),
    "dtypes": (torch.float32, torch.float64),
    "devices": (torch.device("cuda"), torch.device("cuda:0")),
    "a size and a tuple": (torch.Size([1]), (1,)),
    "ranges": (range(3), range(4)),
    "huge numbers": (10**400, 10**400 + 1),
}


@pytest.mark.parametrize("name", SAME)
def test_the_same(name: str) -> None:
    a, b = SAME[name]
    assert same_value(a, b) and same_value(b, a)


@pytest.mark.parametrize("name", OTHER)
def test_not_the_same(name: str) -> None:
    a, b = OTHER[name]
    assert not same_value(a, b) and not same_value(b, a)


NOTED: dict[str, torch.Tensor] = {
    "values": torch.zeros(2, 3),
    "a view": torch.zeros(3, 2, 3)[0],
}
NOT_NOTED: dict[str, Any] = {
    "its shape": torch.ones(3, 2),
    "its dtype": torch.ones(2, 3, dtype=torch.float64),
    "that it is a parameter": nn.Parameter(torch.ones(2, 3)),
    "its layout": torch.ones(2, 3).to_sparse(),
    "its class": torch.ones(2, 3).as_subclass(type("Sub", (torch.Tensor,), {})),
    "a pending negation": torch._neg_view(torch.ones(2, 3)),
    "that it is there": None,
    "that it is a tensor": np.ones((2, 3), dtype=np.float32),
}


@pytest.mark.parametrize("name", NOTED)
def test_a_tensor_as_good_as_what_was_there(name: str) -> None:
    assert TensorNote(torch.ones(2, 3)).fits(NOTED[name])


@pytest.mark.parametrize("name", NOT_NOTED)
def test_another_tensor(name: str) -> None:
    assert not TensorNote(torch.ones(2, 3)).fits(NOT_NOTED[name])


def test_a_pending_conjugation_is_told() -> None:
    tensor = torch.ones(2, dtype=torch.complex64)
    assert what_a_tensor_is(tensor) != what_a_tensor_is(tensor.conj()) and what_a_tensor_is(tensor) == what_a_tensor_is(
        tensor.conj().resolve_conj()
    )


def test_a_tensor_of_another_class_is_itself_only() -> None:
    cls = type("Sub", (torch.Tensor,), {})
    tensor, other = torch.ones(2).as_subclass(cls), torch.ones(2).as_subclass(cls)
    assert TensorNote(tensor).fits(tensor) and not TensorNote(tensor).fits(other)


def test_a_note_holds_no_tensor() -> None:
    tensor = torch.ones(2)
    note, ref = TensorNote(tensor), weakref.ref(tensor)
    del tensor
    assert ref() is None and note.fits(torch.zeros(2))


def test_what_is_asked_for() -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable")
    plain = Plain()
    assert answer(variable) is None
    variable.set(3)
    assert answer(variable) == 3 and answer(weakref.ref(plain)) is True
    values = bytearray(b"ab")
    assert answer(values) == answer(memoryview(values)) == b"ab"
    ones = np.ones(2)
    assert answer(ones) == answer(np.ones(2))
    for other in (np.zeros(2), np.ones(3), np.ones((1, 2)), np.ones(2, dtype=np.float32), -np.zeros(2)):
        assert answer(ones) != answer(other)
    assert answer(np.zeros(1)) != answer(-np.zeros(1)) and answer(np.float32(1)) != answer(np.float64(1))
