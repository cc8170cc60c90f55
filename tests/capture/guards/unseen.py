"""What a forward does where no read set sees it, and what others do to hooks: each raises an error where it goes
unnoticed.
"""

from __future__ import annotations

import builtins
import heapq
import random
import threading
import types
from collections.abc import Callable
from operator import methodcaller
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

import sfast_core
from sfast_core import CompileConfig, compile
from tests.models import Forward
from tests.settings import set_to
from tests.tracing import guarded

X = torch.ones(2, 8)
#: Code of this package's, which is not read.
_UNREAD: dict[str, Any] = {"torch": torch, "__name__": "unread"}
exec(
    builtins.compile(
        "def let():\n    begin.set(), end.wait(60)\n"
        "def shorten(net):\n    net.maps.clear()\n"
        "def turn(net):\n    net.maps[0] = None\n"
        "def add(x):\n    with torch._C.DisableTorchFunction():\n        x.add_(1)\n",
        sfast_core.__file__,
        "exec",
    ),
    _UNREAD,
)
#: Code of Python's own library, which is not read either.
_LIBRARY: dict[str, Any] = {"random": random, "__name__": "heapq"}
exec(builtins.compile("def drawn():\n    return random.random()\n", heapq.__file__, "exec"), _LIBRARY)


def made(forward: Callable[..., Any], **attributes: Any) -> Any:
    net = Forward(forward, linear=nn.Linear(8, 8)).requires_grad_(False)
    for name, value in attributes.items():
        setattr(net, name, value)
    return net


def leaves_no_trace(forward: Callable[[Any, torch.Tensor], Any], **attributes: Any) -> None:
    handle = compile(made(forward, **attributes), CompileConfig(allow_cpu=True))
    with torch.no_grad():
        handle(X.clone())
    assert not any(on.entries.programs() for on in handle.engine.devices)


def drawn_by_a_library(net: Any, x: torch.Tensor) -> torch.Tensor:
    return net.linear(x) * _LIBRARY["drawn"]()  # type: ignore[no-any-return]


def drawn_meanwhile(draws: Callable[[], Any], calls: int) -> None:
    """What other threads of a server draw of the process's random numbers is nothing of the call's: ``calls`` of them
    are made till there is a trace.
    """
    begin, end = threading.Event(), threading.Event()
    _UNREAD.update(begin=begin, end=end)

    def draw() -> None:
        begin.wait(60)
        draws()
        end.set()

    thread = threading.Thread(target=draw)
    thread.start()
    handle = compile(made(lambda net, x: (_UNREAD["let"](), net.linear(x))[1]), CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for _ in range(calls):
            handle(X.clone())
    thread.join()
    assert end.is_set() and any(on.entries.programs() for on in handle.engine.devices)


def hooked(put: Callable[[nn.Module, nn.Module], Any]) -> None:
    """A trace of a module with such a hook isn't to be trusted."""
    net = Forward(lambda net, x: net.linear(x), linear=nn.Linear(8, 8))
    handle = put(net, net.linear)
    try:
        _, _, guard = guarded(net, X)
    finally:
        if handle is not None:
            handle.remove()
    assert guard.hooked


def keeping_state(module: nn.Module) -> None:
    module.__dict__["_diffusers_hook"] = types.SimpleNamespace(
        hooks={"cache": types.SimpleNamespace(_is_stateful=True)}
    )


def beside_a_transparent_hook() -> None:
    def handing_on(module: Any, args: Any, y: torch.Tensor) -> None: ...

    handing_on.__module__ = "transformers.utils.output_capturing"
    net = Forward(lambda net, x: net.linear(x), linear=nn.Linear(8, 8))
    net.linear.register_forward_hook(handing_on)
    _, _, guard = guarded(net, X)
    assert not guard.hooked and guard.changed(net) is None
    net.linear.register_forward_hook(lambda module, args, y: y * 2)
    assert guard.changed(net)


def another_module() -> None:
    net, other = (Forward(lambda net, x: x * 2) for _ in range(2))
    assert guarded(net, X)[2].changed(other)


class Part(nn.Module):
    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.act = act


class Bare:
    """Nothing is kept by it, and it has no method."""


ONE = Bare()
PART, NO_NAME = "part", "no name"


def of_an_argument(forward: Callable[[Any, torch.Tensor, Any], torch.Tensor], *given: Any) -> None:
    net = Forward(forward)
    handle = compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for value in given:
            torch.testing.assert_close(handle(X, value), net._function(net, X, value))


def one_item(net: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * net.kept["k"]
    net.kept = {"k": 1.0, "n": 1.0}
    return y


def an_item_of_an_item(net: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * net.kept["in"]["k"]
    net.kept["in"] = {"k": 1.0, "n": 1.0}
    return y


def replaces(net: Any, x: torch.Tensor, given: Any) -> torch.Tensor:
    given[0] = Bare()
    return x * 2


def others_have_it_done(
    forward: Callable[[Any, torch.Tensor], Any], put: Callable[[Any, int], Any], done: Callable[[Any], bool], kept: Any
) -> None:
    """What the call does is done at each call, though others have undone it."""
    net = made(forward, kept=kept)
    handle = compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for step in range(6):
            put(net, step)
            handle(X)
            assert done(net), step


def cleared(net: Any, x: torch.Tensor) -> torch.Tensor:
    net.kept.clear()
    net.kept["a"] = 1
    return net.linear(x)


def taken_out(net: Any, x: torch.Tensor) -> torch.Tensor:
    del net.kept["b"]
    return net.linear(x)


def appended(net: Any, x: torch.Tensor) -> torch.Tensor:
    net.kept.append(1)
    return net.linear(x)


def passes(forward: Callable[[Any, torch.Tensor, Any], torch.Tensor], given: Any) -> None:
    """A list that is passed is changed by each call."""
    handle = compile(made(forward), CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for step in range(4):
            before = given[0]
            handle(X, given)
            assert given[0] is not before, step


def set_back_by_others(
    forward: Callable[[Any, torch.Tensor], torch.Tensor], kept: Callable[[float], Any], n_of: Callable[[Any], float]
) -> None:
    """The call puts a dict there that reads the same, and others put back what there was: it is put there at the next
    call, too.
    """
    net = Forward(forward)
    net.kept = kept(0.0)
    handle = compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for step in range(6):
            if step > 2:
                net.kept = kept(0.0)
            handle(X)
            assert n_of(net.kept) == 1.0, step


def a_setting() -> None:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        torch._C._set_cudnn_benchmark(True)
        return x * 2

    with set_to(torch.backends.cudnn, "benchmark", False):
        leaves_no_trace(forward)


UNSEEN: dict[str, Callable[[], None]] = {
    "random numbers": lambda: leaves_no_trace(lambda net, x: net.linear(x) * methodcaller("random")(random)),
    "random numbers that a library draws": lambda: leaves_no_trace(drawn_by_a_library),
    "random numbers that another thread draws": lambda: drawn_meanwhile(random.random, 1),
    "random numbers of PyTorch's that another thread draws": lambda: drawn_meanwhile(lambda: torch.rand(1), 2),
    "random numbers that nothing uses": lambda: leaves_no_trace(lambda net, x: (torch.rand(8), net.linear(x))[1]),
    "a write to the input": lambda: leaves_no_trace(lambda net, x: (_UNREAD["add"](x), net.linear(x))[1]),
    "a write to a large buffer": lambda: leaves_no_trace(
        lambda net, x: (net.linear(x) + net.table[:8], _UNREAD["add"](net.table))[0], table=torch.zeros(1 << 17)
    ),
    "a setting": a_setting,
    "a list that gets shorter": lambda: leaves_no_trace(
        lambda net, x: (net.maps.append(1), _UNREAD["shorten"](net), net.linear(x))[2], maps=[1, 2]
    ),
    "a list that begins with something else": lambda: leaves_no_trace(
        lambda net, x: (net.maps.append(1), _UNREAD["turn"](net), net.linear(x))[2], maps=[1, 2]
    ),
    "a number in a dict that is gone through": lambda: leaves_no_trace(
        lambda net, x: (net.kept.update(n=sum(net.kept.values()) + 1), net.linear(x))[1], kept={"n": 0}
    ),
    "a dict that is cleared": lambda: others_have_it_done(
        cleared,
        lambda net, step: net.kept.update(b=1) if step > 1 else None,
        lambda net: net.kept == {"a": 1},
        {"a": 0},
    ),
    "an item that is taken out": lambda: others_have_it_done(
        taken_out, lambda net, step: net.kept.update(b=1), lambda net: "b" not in net.kept, {}
    ),
    "another list to append to": lambda: others_have_it_done(
        appended, lambda net, step: setattr(net, "kept", []), lambda net: net.kept == [1], []
    ),
    "an object in a list that was passed": lambda: passes(replaces, [Bare()]),
    "a module's state": lambda: hooked(lambda net, layer: keeping_state(layer)),
    "the root's state": lambda: hooked(lambda net, layer: keeping_state(net)),
    "a hook of all modules": lambda: hooked(
        lambda net, layer: register_module_forward_hook(lambda module, args, y: None)
    ),
    "a hook beside a transparent one": beside_a_transparent_hook,
    "another module": another_module,
    "a part of an argument": lambda: of_an_argument(
        lambda net, x, given: given[PART].act(x),
        {PART: Part(nn.ReLU())},
        {PART: Part(nn.Tanh())},
        {PART: Part(nn.SiLU())},
    ),
    "an argument whose key is no name": lambda: of_an_argument(
        lambda net, x, given: x * (2 if {**given}[NO_NAME] is ONE else 1),
        {NO_NAME: Bare()},
        {NO_NAME: ONE},
        {NO_NAME: Bare()},
    ),
    "a dict that is put back": lambda: set_back_by_others(
        one_item, lambda n: {"k": 1.0, "n": n}, lambda kept: kept["n"]
    ),
    "an item that is put back": lambda: set_back_by_others(
        an_item_of_an_item, lambda n: {"in": {"k": 1.0, "n": n}}, lambda kept: kept["in"]["n"]
    ),
}
