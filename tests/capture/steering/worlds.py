"""A file for each place and change: a module that is steered from that place, and functions that change what is there
and change it back.

Each is written to disk and imported, twice for each case: one module is compiled, its twin isn't.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

from tests.capture.steering.changes import CHANGES, DELETED, Change
from tests.capture.steering.places import PLACES, Place

PRELUDE = """
import array, collections, contextvars, dataclasses, enum, functools, math, operator, os, sys, threading, types, weakref
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

class Word(str): pass
class Number(float): pass
class Box:
    FACTOR = 1.0
    def __init__(self, k=1.0): self.k = k
    def times(self, y): return y * self.k
class Crate(Box):
    FACTOR = 3.0
    def times(self, y): return y * self.k + 1
class Kind(enum.Enum):
    A = 1.0
    B = 2.0
def shadowing(factor):
    box = Box()
    box.FACTOR = factor
    return box
def times(t, k): return t * k
def single(t): return t * 1
def double(t): return t * 2
def fresh(function): return types.FunctionType(function.__code__, globals())
def closing_over(k): return lambda t: t * k
def with_default(k): return lambda t, k=k: t * k
class Root(nn.Module):
    def __init__(self, child):
        super().__init__()
        self.child = child
    def forward(self, x): return self.child(x)
"""

#: How the value gets from where it is read to where it steers: for the forward, in front of the use, which reads
#: ``$v``.
WAYS: dict[str, str] = {
    "directly": "",
    "by a local name": "v = $r",
    "by a helper": "",
    "by a method": "v = self.own_value()",
    "by a lambda": "v = (lambda: $r)()",
    "by a comprehension": "v = [$r for _ in (0,)][0]",
    "by a generator": "v = next($r for _ in (0,))",
    "by two names": "u = $r; w = v = u",
}
_CALLS = {
    "nn.Linear": ("8, 8", "super().forward(x)"),
    "nn.Conv2d": ("2, 2, 1", "super().forward(x[..., None]).squeeze(-1)"),
    "nn.GroupNorm": ("2, 8", "super().forward(x)"),
    "nn.LayerNorm": ("8", "super().forward(x)"),
    "nn.Embedding": ("2, 8", "x + super().forward(torch.arange(2, device=x.device))"),
}


@dataclass(frozen=True)
class Case:
    """One place, one change, and the way between them."""

    place: Place
    change: Change
    way: str

    def __str__(self) -> str:
        return f"{self.place.name}: {self.change.name}, {self.way}"

    @property
    def refusable(self) -> bool:
        """Whether the forward may run as it was for ever."""
        return self.place.refusable or self.change.refusable

    def source(self) -> str:
        """The file."""
        place, change = self.place, self.change
        fill = lambda text: text.replace("$V", change.first)  # noqa: E731
        read, use, way = place.read, change.use, WAYS[self.way]
        arguments, computed = _CALLS.get(place.base, ("", "self.linear(x)"))
        forward = [f"y = {computed}"]
        helper = ""
        if change is DELETED:
            forward += [
                "try:",
                f"    found = {read}",
                "except (AttributeError, KeyError, NameError):",
                "    found = None",
                use,
            ]
        elif self.way == "by a helper":
            helper = f"def steer(y, v):\n{_in(use.replace('$v', 'v'))}\n    return y\n"
            forward += [f"y = steer(y, {read})"]
        else:
            forward += [way.replace("$r", read), use.replace("$v", "v" if way else f"({read})")]
        own_value = f"def own_value(self): return {read}\n" if self.way == "by a method" else ""
        linear = "" if arguments else "self.linear = nn.Linear(8, 8)\n"
        init = f"super().__init__({arguments})\n{linear}{fill(place.put if place.init is None else place.init)}"
        body = f"{fill(place.body)}\ndef __init__(self):\n{_in(init)}\n{own_value}def forward(self, x{fill(place.parameters)}):\n{_in(chr(10).join(forward))}\n    return y\n"
        model = f"class Model({place.base}):\n{_in(body)}\n"
        if place.enclosed:
            closed = "Box($V)" if place.read == "held.k" else "$V"
            accessors = "def put(value):\n    nonlocal held\n    held = value\nModel.put, Model.held = staticmethod(put), staticmethod(lambda: held)\nreturn Model"
            model = f"def make(held):\n{_in(model + accessors)}\nModel = make({fill(closed)})\n"
        made = "Model()" if place.is_root else "Root(Model())"
        changing, back = self._statements()
        return (
            f"{PRELUDE}\n{fill(place.top)}\n{helper}{model}\ndef build(): return {made}.eval().requires_grad_(False)\n"
            f"def change(self):\n{_in(changing)}\ndef change_back(self):\n{_in(back)}\n"
        ).replace("self.__scale", "self._Model__scale" if "__scale__" not in place.read else "self.__scale")

    def _statements(self) -> tuple[str, str]:
        place, change = self.place, self.change
        put = lambda value: place.put.replace("$V", value)  # noqa: E731
        if change.do == "delete":
            return place.delete, put(change.first)
        if change.then:
            return put(change.then), put(change.first)
        reach = place.read if not place.local else re.sub(r"\bheld\b", _reached(place), place.read)
        if place.enclosed:
            reach = place.read.replace("held", "Model.held()")
        if place.read.startswith("super()"):
            reach = "Mixin.K"
        return change.do.replace("$v", reach), change.undo.replace("$v", reach)


def _reached(place: Place) -> str:
    return "Model.forward.__kwdefaults__['held']" if "*," in place.parameters else "Model.forward.__defaults__[0]"


def _in(text: str) -> str:
    return textwrap.indent(text.strip("\n"), "    ") or "    pass"


def cases() -> Iterator[tuple[Case, bool]]:
    """All places with all changes that fit, and whether a case is one of those for each day: every place and every
    change is in some.
    """
    ways = list(WAYS)
    for row, place in enumerate(PLACES):
        number = 0
        for column, change in enumerate(CHANGES):
            if place.holds not in ("anything", change.needs):
                continue
            if (place.copies and change.do) or (place.binds and change.functions):
                continue
            way = ways[(row + 3 * column) % len(ways)]
            if place.local and way not in ("directly", "by a local name", "by two names", "by a helper"):
                way = "by a local name"
            yield Case(place, change, way), number == 0 or (row * 5 + column) % 29 == 0
            number += 1
        if place.delete:
            yield Case(place, DELETED, "directly"), True


@dataclass(frozen=True)
class World:
    """A file that was imported, and the module that it builds."""

    file: ModuleType
    module: nn.Module

    @property
    def steered(self) -> nn.Module:
        """The module that reads the place."""
        child = self.module._modules.get("child")
        return self.module if child is None else child

    def change(self) -> None:
        """Change what is in the place."""
        self.file.change(self.steered)

    def change_back(self) -> None:
        """Change it back."""
        self.file.change_back(self.steered)


@contextmanager
def two_worlds(source: str, folder: Path) -> Iterator[tuple[World, World]]:
    """The file imported twice, under two names, with modules that are equal."""
    names = ("steered", "steered_twin")
    worlds = []
    try:
        for name in names:
            path = folder / f"{name}.py"
            path.write_text(source, "utf-8")
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None and spec.loader is not None
            file = importlib.util.module_from_spec(spec)
            sys.modules[name] = file
            # not by the loader: it takes a file of the same second for the same
            exec(compile(source, str(path), "exec"), file.__dict__)
            torch.manual_seed(0)
            worlds.append(World(file, file.build()))
        yield worlds[0], worlds[1]
    finally:
        for name in names:
            sys.modules.pop(name, None)
