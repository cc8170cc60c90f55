"""Objects that come to a place during the call itself, one after the other: what is read of each of them there counts."""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, compile
from tests.models import Forward

X = torch.ones(2, 8)
CURRENT: Any = None
IN_A_DICT: dict[str, Any] = {}
NAMES = types.SimpleNamespace(current=None)
LOCAL = threading.local()


class Box:
    def __init__(self, k: float) -> None:
        self.k = k
        self.inner = types.SimpleNamespace(k=k)
        self.ks = {"k": k}

    def of(self, x: Any) -> Any:
        return x * self.k

    def change(self) -> None:
        self.k += 1
        self.inner.k += 1
        self.ks["k"] += 1


class Holder:
    """Has what it is given, and hands on what it is asked."""

    current: Any = None

    def hold(self, box: Any) -> None:
        self.current = box

    @property
    def k(self) -> Any:
        return self.current.k


def set_global(box: Any) -> None:
    global CURRENT
    CURRENT = box


@contextlib.contextmanager
def held(net: Any, box: Any) -> Iterator[None]:
    before, net.current = net.current, box
    try:
        yield
    finally:
        net.current = before


#: How an object gets to a place, and how it is found there.
WAYS = {
    "an attribute": ("net.current = BOX", "net.current"),
    "an attribute of an object": ("net.holder.current = BOX", "net.holder.current"),
    "an attribute by a method": ("net.holder.hold(BOX)", "net.holder.current"),
    "an attribute of the class": ("Holder.current = BOX", "net.holder.current"),
    "an attribute by its name": ("setattr(net, 'current', BOX)", "net.current"),
    "an attribute by map": ("list(map(setattr, [net], ['current'], [BOX]))", "net.current"),
    "an attribute by object": ("object.__setattr__(net, 'current', BOX)", "net.current"),
    "an attribute by __dict__": ("net.__dict__['current'] = BOX", "net.current"),
    "attributes by update": ("net.__dict__.update(current=BOX)", "net.current"),
    "the target of a loop": ("for net.current in [BOX]: pass", "net.current"),
    "a global": ("set_global(BOX)", "CURRENT"),
    "an item of a global": ("IN_A_DICT['current'] = BOX", "IN_A_DICT['current']"),
    "a name of a global": ("NAMES.current = BOX", "NAMES.current"),
    "of the thread": ("LOCAL.current = BOX", "LOCAL.current"),
    "an item of a dict": ("net.items.update(current=BOX)", "net.items['current']"),
    "an item that may be there": ("net.items['current'] = BOX", "net.items.get('current')"),
    "an item of a list": ("net.list[0] = BOX", "net.list[0]"),
    "another list": ("net.list = [BOX]", "net.list[0]"),
}
#: What is read of it.
READS = {
    "an attribute": "x * PLACE.k",
    "one below": "x * PLACE.inner.k",
    "an item": "x * PLACE.ks['k']",
    "by a method": "PLACE.of(x)",
    "by its name": "x * getattr(PLACE, 'k', 1.0)",
}


def compared(forward: Callable[..., Any]) -> Any:
    """Calls between which one of two objects is changed, each with what the forward makes then."""
    net: Any = Forward(forward, linear=nn.Linear(8, 8)).eval().requires_grad_(False)
    net.boxes, net.current, net.holder, net.items, net.list = (Box(2.0), Box(3.0)), None, Holder(), {}, [None]
    handle = compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for box in (None, None, None, *net.boxes, *net.boxes):
            if box is not None:
                box.change()
            for _ in range(2):
                torch.testing.assert_close(handle(X), net._function(net, X))
    return handle.engine.report


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("way", WAYS)
def test_each_object_that_was_at_a_place(way: str, read: str) -> None:
    (puts, place), reads = WAYS[way], READS[read]
    lines = ["x = net.linear(x)"]
    for box in ("net.boxes[0]", "net.boxes[1]"):
        lines += [puts.replace("BOX", box), f"x = {reads.replace('PLACE', place)}"]
    scope: dict[str, Any] = {}
    exec("\n    ".join(["def forward(net, x):", *lines, "return x"]), globals(), scope)
    assert compared(scope["forward"]).calls["fused"] >= 4


def in_line(net: Any, x: torch.Tensor) -> Any:
    for box in net.boxes:
        net.current = box
        x = x * net.current.k
    return net.linear(x)


def then_taken_away(net: Any, x: torch.Tensor) -> Any:
    for box in net.boxes:
        net.holder.current = box
        x = x * net.holder.current.k
    net.holder.current = None
    return net.linear(x)


def for_a_while(net: Any, x: torch.Tensor) -> Any:
    for box in net.boxes:
        with held(net, box):
            x = x * net.current.k
    return net.linear(x)


def by_a_function(net: Any, x: torch.Tensor) -> Any:
    def scale() -> Any:
        return net.current.k

    for box in net.boxes:
        with held(net, box):
            x = x * scale()
    return net.linear(x)


def handed_on(net: Any, x: torch.Tensor) -> Any:
    for box in net.boxes:
        net.holder.hold(box)
        x = x * net.holder.k
    return net.linear(x)


def filled_by_what_is_called(net: Any, x: torch.Tensor) -> Any:
    def fill(items: dict[str, Any], box: Any) -> None:
        items["box"] = box

    def scale(items: dict[str, Any]) -> Any:
        fill(items, net.boxes[0])
        k = items["box"].k
        fill(items, net.boxes[1])
        return k * items["box"].k

    return net.linear(x) * scale({})


def among_keywords(net: Any, x: torch.Tensor) -> Any:
    def prepare(keywords: dict[str, Any]) -> None:
        keywords.update(box=net.boxes[1])

    def scale(**keywords: Any) -> Any:
        prepare(keywords)
        return keywords["box"].k

    return net.linear(x) * scale(box=net.boxes[0])


def appended(net: Any, x: torch.Tensor) -> Any:
    def scale(boxes: list[Any]) -> Any:
        boxes.append(net.boxes[0])
        boxes.append(net.boxes[1])
        return boxes[0].k * boxes[1].k

    return net.linear(x) * scale([])


def in_the_global(net: Any, x: torch.Tensor) -> Any:
    global CURRENT
    CURRENT = net.boxes[0]
    k = CURRENT.k
    CURRENT = net.boxes[1]
    return net.linear(x) * k * CURRENT.k


FORWARDS = (
    in_line,
    then_taken_away,
    for_a_while,
    by_a_function,
    handed_on,
    filled_by_what_is_called,
    among_keywords,
    appended,
    in_the_global,
)


@pytest.mark.parametrize("forward", FORWARDS, ids=lambda each: each.__name__)
def test_whatever_code_puts_it_there(forward: Callable[..., Any]) -> None:
    assert compared(forward).calls["fused"] >= 4
