"""What a call reads inside of other things: of what is in containers, of objects of Python's and PyTorch's own, of all
that a deep copy reads.

As in :mod:`test_easily_overlooked`: the forward, what is in ``value`` at first, and the change.
"""

from __future__ import annotations

import collections
import concurrent.futures
import copy
import dataclasses
import mmap
import multiprocessing
import queue
import signal
import socket
import sys
import threading
import types
import typing
import weakref
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

Forward = Callable[[Any, torch.Tensor], torch.Tensor]
ABSENT = "absent_of_inside"


@dataclasses.dataclass
class Data:
    k: float = dataclasses.field(default=1.0, metadata={"k": 1.0})
    inner: Any = None


class Node:
    def __init__(self, k: float = 1.0, next: Any = None) -> None:  # noqa: A002
        self.k, self.next = k, next


@typing.runtime_checkable
class Goes(typing.Protocol):
    def go(self) -> None: ...


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.k = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.k


class Mode(TorchDispatchMode):
    k = 1.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {})) * (self.k if func is torch.ops.aten.relu.default else 1)


def with_fields(metadata: dict[str, float]) -> Any:
    @dataclasses.dataclass
    class Made:
        k: float = dataclasses.field(default=1.0, metadata=metadata)

    return Made()


def pair(*defaults: float) -> Any:
    return collections.namedtuple("Pair", "k", defaults=defaults)  # type: ignore[misc]  # noqa: PYI024


def nodes(count: int) -> Node:
    first = Node()
    for _ in range(count):
        first = Node(1.0, first)
    return first


def last(node: Any) -> Any:
    while node.next is not None:
        node = node.next
    return node


def sum_of(node: Any) -> float:
    total = 0.0
    while node is not None:
        total += node.k
        node = node.next
    return total


def set_k(of: Any) -> None:
    of.k = 2.0


def imports(net: Any, x: torch.Tensor) -> torch.Tensor:
    try:
        import absent_of_inside  # type: ignore[import-not-found]
    except ImportError:
        return x
    return x * absent_of_inside.k


def comes(net: Any) -> None:
    file = types.ModuleType(ABSENT)
    file.k = 2.0  # type: ignore[attr-defined]
    sys.modules[ABSENT] = file


def by_a_thread(net: Any, x: torch.Tensor) -> torch.Tensor:
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(net.value.k))
    thread.start()
    thread.join()
    return x * found[0]


def by_a_pool(net: Any, x: torch.Tensor) -> torch.Tensor:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return x * sum(pool.map(lambda each: each.k, [net.value]))


def under_a_mode(net: Any, x: torch.Tensor) -> torch.Tensor:
    with net.value:
        return torch.relu(x)


def lambda_that_adds(k: float) -> Any:
    return lambda box, other, k=k: other + k


def made_class() -> Any:
    made = type("Made", (), {})
    made.__add__ = lambda self, other: other * 1.0  # type: ignore[operator]
    made.__add__ = lambda_that_adds(1.0)  # type: ignore[operator]
    return made()


def buffer(value: torch.Tensor) -> nn.Module:
    module = nn.Identity()
    module.register_buffer("b", value)
    return module


CASES: dict[str, tuple[Forward, Callable[[], Any], Callable[[Any], Any]]] = {
    # What is noted of a dataclass, and all that is below an object.
    "what a field is noted with": (
        lambda net, x: x * dataclasses.fields(net.value[0])[0].metadata["k"], lambda: [with_fields(METADATA)], lambda net: METADATA.update(k=2.0)),
    "a field's default": (
        lambda net, x: x * dataclasses.fields(net.value)[0].default, lambda: with_fields({}), lambda net: setattr(net.value.__dataclass_fields__["k"], "default", 2.0)),
    "an object in a list in a dataclass, by asdict": (
        lambda net, x: x * dataclasses.asdict(net.value)["inner"][0]["k"], lambda: Data(inner=[Data()]), lambda net: set_k(net.value.inner[0])),
    "an object in a dict in a list, by a deep copy": (
        lambda net, x: x * vars(copy.deepcopy(net.value)[0]["a"])["k"], lambda: [{"a": Node()}], lambda net: set_k(net.value[0]["a"])),
    # What is in containers.
    "whether an event in a dict is set": (
        lambda net, x: x * (1 + sum(each.is_set() for each in net.value.values())), lambda: {"a": threading.Event()}, lambda net: net.value["a"].set()),
    "whether a lock in a list is held": (
        lambda net, x: x * (1 + sum(each.locked() for each in net.value)), lambda: [threading.Lock()], lambda net: net.value[0].acquire()),
    "a queue in a list": (lambda net, x: x * (1 + sum(each.qsize() for each in net.value)), lambda: [queue.SimpleQueue()], lambda net: net.value[0].put(1)),
    "memory in a list": (lambda net, x: x * (1 + sum(each[0] for each in net.value)), lambda: [mmap.mmap(-1, 8)], lambda net: net.value[0].write(b"a")),
    "a view of a dict in a list": (lambda net, x: x * sum(sum(each) for each in net.value), lambda: [TABLE.values()], lambda net: TABLE.update(k=2.0)),
    "attributes of a dict's keys": (lambda net, x: x * sum(each.k for each in net.value), lambda: {Node(): 1}, lambda net: set_k(next(iter(net.value)))),
    "attributes of weak keys": (
        lambda net, x: x * sum(each.k for each in net.value), lambda: weakref.WeakKeyDictionary({NODE: 1}), lambda net: set_k(NODE)),
    "the last of many objects that lead to each other": (lambda net, x: x * sum_of(net.value), lambda: nodes(30), lambda net: set_k(last(net.value))),
    # Objects of classes whose code isn't read.
    "a process's event": (lambda net, x: x * (1 + net.value.is_set()), multiprocessing.Event, lambda net: net.value.set()),
    "an element of a tree": (
        lambda net, x: x * float(net.value.find("b").get("k")),
        lambda: ElementTree.ElementTree(ElementTree.fromstring("<a><b k='1'/></a>")),  # noqa: S314
        lambda net: net.value.find("b").set("k", "2"),
    ),
    "coefficients of a polynomial": (lambda net, x: x * float(net.value(2.0)), lambda: np.polynomial.Polynomial([1.0, 2.0]), lambda net: net.value.coef.fill(3.0)),
    "an array behind a property": (lambda net, x: x * float(net.value(2.0)), lambda: np.poly1d([1.0, 2.0]), lambda net: net.value.coeffs.fill(3.0)),
    "a number of a transform of PyTorch's": (
        lambda net, x: net.value(x), lambda: torch.distributions.transforms.AffineTransform(0.0, 1.0), lambda net: setattr(net.value, "scale", 2.0)),
    "a schedule's last rate": (
        lambda net, x: x * net.value.get_last_lr()[0],
        lambda: torch.optim.lr_scheduler.StepLR(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0), 1),
        lambda net: setattr(net.value, "_last_lr", [2.0]),
    ),
    "an attribute of a module of TorchScript's": (lambda net, x: x * net.value.k, lambda: torch.jit.script(Scripted()), lambda net: set_k(net.value)),
    "likewise in a list": (lambda net, x: x * sum(each.k for each in net.value), lambda: [torch.jit.script(Scripted())], lambda net: set_k(net.value[0])),
    "a number of a mode": (under_a_mode, Mode, lambda net: set_k(net.value)),
    # What wasn't there.
    "a method that comes to a class": (
        lambda net, x: x * (2 if isinstance(net.value, Goes) else 1), lambda: type("Made", (), {})(), lambda net: setattr(type(net.value), "go", lambda self: None)),
    "an attribute that comes to the class of what is in a list": (
        lambda net, x: x * sum(getattr(each, "k", 1.0) for each in net.value), lambda: [type("Made", (), {})()], lambda net: set_k(type(net.value[0]))),
    "a truth that comes to a class": (
        lambda net, x: x * (2 if net.value else 1), lambda: type("Made", (), {})(), lambda net: setattr(type(net.value), "__bool__", lambda self: False)),
    "another truth of a class": (
        lambda net, x: x * (2 if net.value else 1), lambda: type("Made", (), {"__bool__": lambda self: True})(),
        lambda net: setattr(type(net.value), "__bool__", lambda self: False)),
    "a file that comes": (imports, lambda: None, comes),
    "a default of a named tuple": (lambda net, x: x * net.value().k, lambda: pair(1.0), lambda net: setattr(net.value.__new__, "__defaults__", (2.0,))),
    "an operator that is a function of another name": (
        lambda net, x: net.value + x, made_class, lambda net: setattr(type(net.value), "__add__", lambda_that_adds(2.0))),
    # Weights that are gone through.
    "the dtype of a buffer that is gone through": (
        lambda net, x: x * next(net.value.buffers()).element_size(), lambda: buffer(torch.ones(2)), lambda net: net.value.double()),
    "the size of a buffer by its path": (
        lambda net, x: x * net.get_buffer("value.b").numel(), lambda: buffer(torch.ones(2)), lambda net: setattr(net.value, "b", torch.ones(3))),
    "strides of a tensor of four dimensions": (
        lambda net, x: x * (2 if net.value.is_contiguous() else 1),
        lambda: torch.ones(1, 4, 3, 3),
        lambda net: setattr(net, "value", net.value.to(memory_format=torch.channels_last)),
    ),
    "hooks of a tensor": (
        lambda net, x: x * (1 + len(net.value[0]._backward_hooks or {})), lambda: [torch.ones(2, requires_grad=True)], lambda net: net.value[0].register_hook(torch.neg)),
    # By others.
    "what another thread computes": (by_a_thread, Node, lambda net: set_k(net.value)),
    "what a pool computes": (by_a_pool, Node, lambda net: set_k(net.value)),
    "who handles a signal": (
        lambda net, x: x * (2 if signal.getsignal(signal.SIGUSR1) is net.value else 1), lambda: ignored, lambda net: signal.signal(signal.SIGUSR1, ignored)),
    "how long sockets wait": (lambda net, x: x * (socket.getdefaulttimeout() or 1), lambda: None, lambda net: socket.setdefaulttimeout(2)),
    "what a process is called": (
        lambda net, x: x * len(multiprocessing.current_process().name), lambda: None, lambda net: setattr(multiprocessing.current_process(), "name", "another")),
    "whether others trace": (lambda net, x: x * (1 if sys.gettrace() is TRACED else 2), lambda: None, lambda net: sys.settrace(ignored)),
}  # fmt: skip
METADATA, TABLE, NODE = {"k": 1.0}, {"k": 1.0}, Node()
TRACED = sys.gettrace()


def ignored(*_: Any) -> None:
    """Neither a signal nor a line counts."""


def put_back() -> None:
    """What cases have changed of the process."""
    METADATA["k"] = TABLE["k"] = NODE.k = 1.0
    sys.modules.pop(ABSENT, None)
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    socket.setdefaulttimeout(None)
    multiprocessing.current_process().name = "MainProcess"
    sys.settrace(TRACED)
