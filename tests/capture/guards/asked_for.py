"""What code asks for by a call, or of a tensor, and that is in no table of attributes: a forward that reads it, and
what changes it.
"""

from __future__ import annotations

import abc
import collections.abc
import configparser
import contextvars
import ctypes
import datetime
import decimal
import enum
import functools
import gc
import io
import locale
import logging
import os
import pathlib
import subprocess
import sys
import threading
import time
import tracemalloc
import types
import typing
import uuid
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

Patch = Any
#: The forward, what it has, and the change: of the module, of the whole process, with a folder of its own.
Case = tuple[Callable[[Any, torch.Tensor], Any], Callable[[], Any], Callable[[Any, Patch, Path], None]]

LOGGER = logging.getLogger("tests.asked_for.a")
CONTEXT: contextvars.ContextVar[dict[str, float]] = contextvars.ContextVar("asked_for", default={"k": 1.0})  # noqa: B039
KEPT: list[Any] = []
OF_A_FRAME = 1.0
RUNNING = threading.Event()
ENGINE = torch.backends.quantized.engine
OTHER_ENGINE = next(each for each in torch.backends.quantized.supported_engines if each not in (ENGINE, "none"))


def by_tracing(net: Any, x: torch.Tensor) -> torch.Tensor:
    from tracemalloc import is_tracing

    return x * (2 if is_tracing() else 1)


class Color(enum.Enum):
    RED = 1.0
    BLUE = 2.0


class Abstract(abc.ABC):  # noqa: B024
    """Somebody may register others as its subclasses."""


class Below(Abstract):
    """Likewise, and those are its base's, too."""


class Own:
    """Of no abstract class."""


@typing.runtime_checkable
class HasK(typing.Protocol):
    k: float


class Plugin:
    k = 1.0


class First(Plugin):
    k = 1.0


class Defaults(dict):  # type: ignore[type-arg]
    k = 1.0

    def __missing__(self, key: str) -> float:
        return self.k


def waiting() -> threading.Thread:
    RUNNING.clear()
    thread = threading.Thread(target=RUNNING.wait, daemon=True)
    thread.start()
    return thread


def named(x: torch.Tensor) -> torch.Tensor:
    """2.0"""
    return x * 2


@functools.lru_cache
def cached(k: int) -> int:
    return k


def raising(net: Any, x: torch.Tensor) -> torch.Tensor:
    try:
        warnings.warn("old", stacklevel=1)
    except UserWarning:
        return x * 3
    return x


def of_all_plugins(net: Any, x: torch.Tensor) -> torch.Tensor:
    for cls in net.value:
        x = x * (1 + len(cls.__subclasses__()))
    return x


def of_all_names(net: Any, x: torch.Tensor) -> torch.Tensor:
    for value in net.value:
        x = x * len(type(value).__name__)
    return x


def divided(net: Any, x: torch.Tensor) -> torch.Tensor:
    try:
        return x * float(np.float64(1) / np.float64(net.value))
    except FloatingPointError:
        return x * 3


def sets(owner: Callable[[Any], Any], name: str, value: Any) -> Callable[[Any, Patch, Path], None]:
    return lambda net, patch, folder: patch.setattr(owner(net), name, value)


def does(change: Callable[[], Any], back: Callable[[], Any]) -> Callable[[Any, Patch, Path], None]:
    def changed(net: Any, patch: Patch, folder: Path) -> None:
        patch.undoes(back)
        change()

    return changed


def of_net(change: Callable[[Any], Any]) -> Callable[[Any, Patch, Path], None]:
    return lambda net, patch, folder: change(net)


def nothing() -> None:
    return None


def another_plugin() -> None:
    KEPT.append(type("Second", (Plugin,), {"k": 10.0}))


#: What is compared at each call.
COMPARED: dict[str, Case] = {
    "the precision of decimals": (lambda net, x: x * float(net.value / 3), lambda: decimal.Decimal(1), sets(lambda net: decimal.getcontext(), "prec", 2)),
    "the precision of decimals made there": (
        lambda net, x: x * float(decimal.Decimal(2) / decimal.Decimal(3)), nothing, sets(lambda net: decimal.getcontext(), "prec", 2)),
    "the precision of decimals in a list": (
        lambda net, x: x * float(sum(net.value) / 3), lambda: [decimal.Decimal(1)], sets(lambda net: decimal.getcontext(), "prec", 2)),
    "how decimals are rounded": (
        lambda net, x: x * len(decimal.getcontext().rounding), nothing, sets(lambda net: decimal.getcontext(), "rounding", decimal.ROUND_UP)),
    "the value of an enum's member": (lambda net, x: x * net.value.value, lambda: Color.RED, sets(lambda net: Color.RED, "_value_", 4.0)),
    "the value of one by its name": (lambda net, x: x * Color[net.value].value, lambda: "RED", sets(lambda net: Color.RED, "_value_", 4.0)),
    "the values of all members": (lambda net, x: x * sum(each.value for each in Color), nothing, sets(lambda net: Color.RED, "_value_", 4.0)),
    "the name of a member": (lambda net, x: x * len(net.value.name), lambda: Color.RED, sets(lambda net: Color.RED, "_name_", "CRIMSON")),
    "what is an abstract class's": (lambda net, x: x * (2 if isinstance(net.value, Abstract) else 1), lambda: type("Other", (Own,), {})(), lambda net, patch, folder: Abstract.register(type(net.value))),
    "what is an abstract class's, by one below": (
        lambda net, x: x * (2 if issubclass(type(net.value), Abstract) else 1), lambda: type("Other", (), {})(), lambda net, patch, folder: Below.register(type(net.value))),
    "what is a mapping": (
        lambda net, x: x * (2 if isinstance(net.value, collections.abc.Mapping) else 1), lambda: type("Like", (), {})(),
        lambda net, patch, folder: collections.abc.Mapping.register(type(net.value))),
    "what has a protocol's attributes": (
        lambda net, x: x * (2 if isinstance(net.value, HasK) else 1), types.SimpleNamespace, of_net(lambda net: setattr(net.value, "k", 1.0))),
    "a function's name": (lambda net, x: x * len(net.value.__name__), lambda: named, sets(lambda net: named, "__name__", "other_name")),
    "another function of the same code": (
        lambda net, x: x * len(net.value.__name__), lambda: named,
        of_net(lambda net: setattr(net, "value", types.FunctionType(named.__code__, named.__globals__, "n", None, None)))),
    "a function's words": (lambda net, x: x * float(net.value.__doc__), lambda: named, sets(lambda net: named, "__doc__", "3.0")),
    "a function's annotations": (
        lambda net, x: x * len(net.value.__annotations__), lambda: named, lambda net, patch, folder: patch.setitem(named.__annotations__, "k", int)),
    "a class's name": (lambda net, x: x * len(net.value.__class__.__qualname__), Own, does(lambda: setattr(Own, "__qualname__", "Another"), lambda: setattr(Own, "__qualname__", "Own"))),
    "the names of classes in a loop": (of_all_names, lambda: [Own()], does(lambda: setattr(Own, "__name__", "Another"), lambda: setattr(Own, "__name__", "Own"))),
    "which subclasses there are": (
        lambda net, x: x * sum(cls.k for cls in net.value.__subclasses__()), lambda: Plugin, lambda net, patch, folder: another_plugin()),
    "what a subclass has": (lambda net, x: x * sum(cls.k for cls in Plugin.__subclasses__()), nothing, sets(lambda net: First, "k", 3.0)),
    "which subclasses of what isn't known": (of_all_plugins, lambda: [Plugin], lambda net, patch, folder: another_plugin()),
    "a logger's level": (lambda net, x: x * (2 if LOGGER.isEnabledFor(20) else 1), nothing, does(lambda: LOGGER.setLevel(20), lambda: LOGGER.setLevel(0))),
    "the level of a logger above": (
        lambda net, x: x * (2 if LOGGER.getEffectiveLevel() == 5 else 1), nothing,
        does(lambda: logging.getLogger("tests.asked_for").setLevel(5), lambda: logging.getLogger("tests.asked_for").setLevel(0))),
    "the level of a logger by its name": (
        lambda net, x: x * (2 if logging.getLogger(net.value).level else 1), lambda: "tests.asked_for.b",
        does(lambda: logging.getLogger("tests.asked_for.b").setLevel(5), lambda: logging.getLogger("tests.asked_for.b").setLevel(0))),
    "whether all logging is off": (
        lambda net, x: x * (2 if LOGGER.isEnabledFor(50) else 1), nothing, does(lambda: logging.disable(50), lambda: logging.disable(0))),
    "a thread's name": (lambda net, x: x * len(threading.current_thread().name), nothing, sets(lambda net: threading.current_thread(), "name", "t")),
    "an attribute of a thread": (
        lambda net, x: x * getattr(threading.current_thread(), "k", 1.0), nothing,
        lambda net, patch, folder: patch.setattr(threading.current_thread(), "k", 2.0, raising=False)),
    "which folder is the current one": (lambda net, x: x * len(os.getcwd()), nothing, lambda net, patch, folder: patch.chdir("/")),
    "likewise by a path": (lambda net, x: x * len(str(pathlib.Path.cwd())), nothing, lambda net, patch, folder: patch.chdir("/")),
    "how deep calls may go": (
        lambda net, x: x * sys.getrecursionlimit(), nothing,
        does(lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 7), lambda: sys.setrecursionlimit(sys.getrecursionlimit() - 7))),
    "a file that only the forward imports": (by_tracing, nothing, does(tracemalloc.start, tracemalloc.stop)),
    "the locale": (
        lambda net, x: x * len(locale.setlocale(locale.LC_NUMERIC)), nothing,
        does(lambda: locale.setlocale(locale.LC_NUMERIC, "C.UTF-8"), lambda: locale.setlocale(locale.LC_NUMERIC, "C"))),
    "whether a warning is an error": (raising, nothing, does(lambda: warnings.simplefilter("error", UserWarning), lambda: warnings.filters.pop(0))),
    "what a context variable has by default": (lambda net, x: x * CONTEXT.get()["k"], nothing, of_net(lambda net: CONTEXT.get().update(k=CONTEXT.get()["k"] + 1))),
    "how NumPy divides by zero": (divided, lambda: 0.0, does(lambda: np.seterr(divide="raise"), lambda: np.seterr(divide="warn"))),
    "how NumPy prints": (
        lambda net, x: x * len(str(net.value)), lambda: np.array([1.23456789]),
        does(lambda: np.set_printoptions(precision=2), lambda: np.set_printoptions(precision=8))),
    "the number of threads": (
        lambda net, x: x * torch.get_num_threads(), nothing,
        does(lambda: torch.set_num_threads(torch.get_num_threads() + 1), lambda: torch.set_num_threads(torch.get_num_threads() - 1))),
    "whether anomalies are looked for": (
        lambda net, x: x * (2 if torch.is_anomaly_enabled() else 1), nothing,
        does(lambda: torch.autograd.set_detect_anomaly(True), lambda: torch.autograd.set_detect_anomaly(False))),
    "what autocast would compute in": (
        lambda net, x: x * (2 if torch.get_autocast_dtype("cpu") is torch.float16 else 1), nothing,
        does(lambda: torch.set_autocast_dtype("cpu", torch.float16), lambda: torch.set_autocast_dtype("cpu", torch.bfloat16))),
    "whether autocast keeps what it casts": (
        lambda net, x: x * (2 if torch.is_autocast_cache_enabled() else 1), nothing,
        does(lambda: torch.set_autocast_cache_enabled(False), lambda: torch.set_autocast_cache_enabled(True))),
    "a setting of torch's by a function": (
        lambda net, x: x * (2 if torch.__future__.get_overwrite_module_params_on_conversion() else 1), nothing,
        does(lambda: torch.__future__.set_overwrite_module_params_on_conversion(True), lambda: torch.__future__.set_overwrite_module_params_on_conversion(False))),
    "a setting of a backend's": (
        lambda net, x: x * sum(map(ord, torch.backends.quantized.engine)), nothing,
        does(lambda: setattr(torch.backends.quantized, "engine", OTHER_ENGINE), lambda: setattr(torch.backends.quantized, "engine", ENGINE))),
    "whether a lock is held": (
        lambda net, x: x * (2 if net.value.locked() else 1), threading.Lock, of_net(lambda net: net.value.acquire())),
    "whether an event has come": (lambda net, x: x * (2 if net.value.is_set() else 1), threading.Event, of_net(lambda net: net.value.set())),
    "whether a thread still runs": (lambda net, x: x * (2 if net.value.is_alive() else 1), waiting, of_net(lambda net: (RUNNING.set(), net.value.join()))),
    "whether a finalizer has run": (
        lambda net, x: x * (2 if net.value.alive else 1), lambda: weakref.finalize(RUNNING, int), of_net(lambda net: net.value())),
    "a number of C's": (lambda net, x: x * net.value.value, lambda: ctypes.c_double(1.0), of_net(lambda net: setattr(net.value, "value", 2.0))),
    "an array of C's": (lambda net, x: x * net.value[0], lambda: (ctypes.c_double * 2)(1.0), of_net(lambda net: net.value.__setitem__(0, 2.0))),
    "what a dict of its own class has for others": (lambda net, x: x * net.value["k"], Defaults, of_net(lambda net: setattr(net.value, "k", 2.0))),
    "whether a file is imported": (
        lambda net, x: x * (2 if "asked_for_made_up" in sys.modules else 1), nothing,
        lambda net, patch, folder: patch.setitem(sys.modules, "asked_for_made_up", types.ModuleType("asked_for_made_up"))),
    # Of weights, and of tensors from elsewhere.
    "whether any weight wants a gradient": (
        lambda net, x: net.lin(x) * (2 if any(each.requires_grad for each in net.parameters()) else 1), nothing, of_net(lambda net: net.lin.bias.requires_grad_(True))),
    "whether a weight has a gradient": (
        lambda net, x: net.lin(x) * (2 if net.lin.weight.grad is None else 1), nothing, of_net(lambda net: setattr(net.lin.weight, "grad", torch.ones(8, 8)))),
    "whether a tensor in a list wants a gradient, where it is": (
        lambda net, x: net.lin(x) * (2 if net.value[0].requires_grad else 1) + net.value[0], lambda: [torch.ones(8)], of_net(lambda net: net.value[0].requires_grad_(True))),
    "whether two tensors are one": (
        lambda net, x: net.lin(x) * (2 if net.value is net.second else 1) + net.value, lambda: torch.ones(8), of_net(lambda net: setattr(net, "second", net.value))),
}  # fmt: skip


def saved(tensor: torch.Tensor) -> bytes:
    file = io.BytesIO()
    torch.save(tensor, file)
    return file.getvalue()


#: Of what nobody can compare: the forward, what it has, and a word of the reason.
REFUSED: dict[str, tuple[Callable[[Any, torch.Tensor], Any], Callable[[], Any], str]] = {
    "what a function's file has, by its frame": (
        lambda net, x: x * sys._getframe().f_globals["OF_A_FRAME"],
        lambda: None,
        "variables",
    ),
    "whether a file is there": (
        lambda net, x: x * (2 if os.path.exists(net.value) else 1),
        lambda: "/nowhere",
        "files",
    ),
    "likewise by a path": (
        lambda net, x: x * (2 if net.value.exists() else 1),
        lambda: pathlib.Path("/nowhere"),
        "files",
    ),
    "likewise by a path made there": (
        lambda net, x: x * (2 if pathlib.Path(net.value).is_file() else 1),
        lambda: "/nowhere",
        "files",
    ),
    "what a file has in it": (lambda net, x: x * len(open(net.value).read()), lambda: __file__, "files"),
    "what is in a folder": (lambda net, x: x * (1 + len(os.listdir(net.value))), lambda: os.curdir, "files"),
    "how large a file is": (lambda net, x: x * os.stat(net.value).st_size, lambda: __file__, "files"),
    "what another process says": (lambda net, x: x * len(subprocess.check_output(["true"])), nothing, "files"),
    "the time": (lambda net, x: x * (1 if time.time() > 0 else 2), nothing, "the time"),
    "the time by a function that it has": (
        lambda net, x: x * (1 if net.value() > 0 else 2),
        lambda: time.perf_counter,
        "the time",
    ),
    "the time for a function of C's": (lambda net, x: x * next(iter(time.time, None)), nothing, "the time"),
    "the time by a partial function": (
        lambda net, x: x * net.value(),
        lambda: functools.partial(time.time),
        "the time",
    ),
    "files for a function of C's": (
        lambda net, x: x * len(list(map(os.stat, [net.value]))),
        lambda: os.curdir,
        "files",
    ),
    "files for a library of Python's": (
        lambda net, x: x * (1 + len(configparser.ConfigParser().read(net.value))),
        lambda: "/nowhere",
        "files",
    ),
    "a file of tensors": (lambda net, x: x * torch.load(io.BytesIO(net.value)), lambda: saved(torch.ones(8)), "files"),
    "the date": (
        lambda net, x: x * (1 if datetime.datetime.now() > datetime.datetime(2000, 1, 1) else 2),
        nothing,
        "the time",
    ),
    "random bytes of the system's": (lambda net, x: x * len(os.urandom(2)), nothing, "random"),
    "a random id": (lambda net, x: x * len(str(uuid.uuid4())), nothing, "random"),
    "who holds an object": (lambda net, x: x * sys.getrefcount(net.value), list, "holds"),
    "who refers to one weakly": (lambda net, x: x * (1 + weakref.getweakrefcount(net.value)), Own, "holds"),
    "whether the collector is on": (lambda net, x: x * (1 + gc.isenabled()), nothing, "holds"),
    "how often a function was called": (lambda net, x: x * (1 + cached.cache_info().hits), nothing, "called"),
    "the version of an input": (lambda net, x: x * (1 + x._version), nothing, "differs from call to call"),
    "whether an input is a view": (lambda net, x: x * (1 + x._is_view()), nothing, "value"),
    "how much memory an input is a part of": (lambda net, x: x * x.untyped_storage().nbytes(), nothing, "value"),
}


def made(k: float = 1.0) -> torch.Tensor:
    return torch.full((2, 8), k)


def wanting() -> torch.Tensor:
    return made().requires_grad_()


def having() -> torch.Tensor:
    found = wanting()
    found.grad = made()
    return found


def computed() -> torch.Tensor:
    with torch.enable_grad():
        return wanting() * 1


def of_inference() -> torch.Tensor:
    with torch.inference_mode():
        return made() * 1


#: Of an input, in what two calls with other tensors of one layout differ: the forward, and what the two are given.
OF_INPUTS: dict[
    str, tuple[Callable[[Any, torch.Tensor], Any], Callable[[], torch.Tensor], Callable[[], torch.Tensor]]
] = {
    "whether it wants a gradient": (lambda net, x: net.lin(x) * (2 if x.requires_grad else 1), made, wanting),
    "whether it has one": (lambda net, x: net.lin(x) * (2 if x.grad is None else 1), wanting, having),
    "whether it was computed": (lambda net, x: net.lin(x) * (2 if x.grad_fn is None else 1), made, computed),
    "whether it is a leaf": (lambda net, x: net.lin(x) * (2 if x.is_leaf else 1), made, computed),
    "whether it is of inference mode": (lambda net, x: net.lin(x) * (2 if x.is_inference() else 1), made, of_inference),
    "whether it is shared": (
        lambda net, x: net.lin(x) * (2 if x.is_shared() else 1),
        made,
        lambda: made().share_memory_(),
    ),
    "whether it is a view": (
        lambda net, x: net.lin(x) * (2 if x._base is None else 1),
        made,
        lambda: torch.ones(4, 8)[:2],
    ),
    "where in memory it begins": (
        lambda net, x: net.lin(x) * (1 + x.storage_offset()),
        made,
        lambda: torch.ones(4, 8)[2:],
    ),
    "where a view of it begins": (
        lambda net, x: net.lin(x) * (1 + x[1:].storage_offset()),
        made,
        lambda: torch.ones(4, 8)[2:],
    ),
    "whether it is a parameter": (
        lambda net, x: net.lin(x) * (2 if isinstance(x, nn.Parameter) else 1),
        made,
        lambda: nn.Parameter(made(), requires_grad=False),
    ),
}
