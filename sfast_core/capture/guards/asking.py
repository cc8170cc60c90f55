"""What code asks Python, the operating system, PyTorch or NumPy for by a call: a state that no table of attributes has.

What can be asked again at each call without a trace of it is a question. What nobody can compare (the clock, files) is
a reason to leave no trace. Either counts where it is called in the recorded call, however the code came to the
function. PyTorch's settings alone count where one is mentioned: asking for one again costs nothing.
"""

from __future__ import annotations

import builtins
import concurrent.futures
import contextlib
import datetime
import decimal
import functools
import gc
import importlib
import locale
import logging
import multiprocessing.process
import os
import sys
import threading
import time
import uuid
import warnings
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from .given import is_given, is_of_torch
from .kinds import Kind, kind_of
from .questions import decimals

Question = Callable[[], Any]

_CLOCK = "asks for the time, which is another at each call"
LOOKS = "looks at files, or at what else is outside of the process: there is nothing to compare"
_CHANCE = "asks for random numbers that have no state"
OBJECTS = "asks for what holds an object, or how many there are: there is nothing to compare"
_ELSEWHERE = "has something done in another thread or process, where it isn't seen what that reads"
VARIABLES = "looks at what other functions have in their variables, where it isn't seen what it reads"
#: Another tells it while a call is recorded than else.
MODES = "asks whether functions of tensors are watched"
_SEEDS = "sets where random numbers begin"
_SETS = "sets what all code of the process goes by"
_WATCHERS = "asks who is told of the functions that run, or sets that"
#: Reasons that aren't one where an installed package asks, as psutil looks at files for whoever asks how much memory is
#: free.
FOR_THEMSELVES = (_CLOCK, LOOKS, OBJECTS, _ELSEWHERE)
_HARMLESS = frozenset(
    "fspath putenv unsetenv _exit strerror device_encoding get_inheritable waitstatus_to_exitcode abort uname".split()
)
_SETTING_OTHERWISE: tuple[tuple[Any, str], ...] = (
    (torch.autograd.set_detect_anomaly, "__init__"),
    (torch.autograd.detect_anomaly, "__init__"),
    (torch.autograd, "set_detect_anomaly"),  # as Python 3.12 tells of it
    (torch.autograd, "detect_anomaly"),
    (torch.backends.mha, "set_fastpath_enabled"),
)
#: Of PyTorch's: what the signature has is compared when the call is over, and may be put back within it.
_SETTERS = (
    "set_num_threads set_num_interop_threads set_flush_denormal set_printoptions set_warn_always set_vital"
    " set_anomaly_enabled set_autocast_dtype set_autocast_cpu_dtype set_autocast_gpu_dtype set_autocast_cache_enabled"
).split()
_GETTERS = ("is_", "are_", "get_", "current_")
#: Of PyTorch's: what stays for the life of a process, or is refused elsewhere.
_SETTLED = (
    "is_available is_built get_device_ get_arch rng seed is_compiling is_scripting is_tracing is_exporting".split()
)
#: Those that are part of each signature, and may be others in a part of a call.
_SIGNED = frozenset(
    "is_grad_enabled is_inference_mode_enabled get_default_dtype get_default_device"
    " are_deterministic_algorithms_enabled is_deterministic_algorithms_warn_only_enabled get_deterministic_debug_mode"
    " get_float32_matmul_precision".split()
)
_NAMES = ("__name__", "__qualname__", "__module__", "__doc__")
#: What a function or a class is called, and its like: in no table of its own. Of a class what is said of it is.
TOLD = frozenset({*_NAMES, "__annotations__"})
OF_CLASSES = frozenset({"__name__", "__qualname__", "__subclasses__"})


def asked_by(function: Any) -> Question | str | None:
    """What a call of ``function`` depends on besides its arguments.

    Returns:
        a question, the words for a reason against a trace, or None where it is nothing of the kind.
    """
    if type(function) is MethodType:
        function = function.__func__
    found: Question | str | None = functions_that_ask().get(id(function))
    if found is None and of_a_class(function):
        owner = next((cls for cls in function.__self__.__mro__ if function.__name__ in vars(cls)), type)
        found = functions_that_ask().get(id(vars(owner).get(function.__name__)))
    return found


def asks_for_itself(function: Any, path: str) -> bool:
    """Whether PyTorch's own code, in the file at ``path``, asks whether functions of tensors are watched: of which it
    has one more way to call them, and no other result.
    """
    return asked_by(function) == MODES and is_of_torch(path)


def of_a_class(function: Any) -> bool:
    """Whether it is a class's own function of C, which is another object each time that it is looked up:
    ``datetime.now``.
    """
    return type(function) is BuiltinFunctionType and type(function.__self__) is type


def setting_of(function: Any) -> Question | None:
    """A question for a function of PyTorch's that tells a setting; None for any other."""
    if type(function) not in (BuiltinFunctionType, FunctionType):
        return None
    # functions of C's have none, but for the file's that is their own
    home = str(function.__module__ or getattr(getattr(function, "__self__", None), "__name__", ""))
    return _of_torch(function) if home.partition(".")[0] == "torch" else None


def of_file(module: ModuleType, name: str) -> Question | None:
    """A question for an attribute of a file's that its class computes, as those of ``torch.backends`` are."""
    computes = hasattr(type(module), name) or hasattr(type(module), "__getattr__")
    if type(module) is ModuleType or name in vars(module) or not computes or not is_given(module.__name__):
        return None
    return partial(getattr, module, name) if _is_simple(answer_to(partial(getattr, module, name))) else None


def answer_to(question: Question) -> Any:
    """What is answered now; nobody records that it was asked."""
    with torch._C.DisableTorchFunction():
        try:
            return question()
        except Exception as error:
            return type(error)


def name_of(name: str, value: weakref.ref[Any]) -> Any:
    """An attribute that is in no table of a function's or a class's own."""
    return getattr(value(), name, None)


def _is_simple(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_simple, value))
    return kind_of(value) is Kind.VALUE


def _of_system(function: Any) -> Question | str | None:
    """A function of the operating system's: one that gets something without being told of what can be asked again."""
    name = function.__name__
    if name in _HARMLESS or not hasattr(os, name):
        return None
    if name.startswith(("get", "cpu_count")) and _is_simple(answer_to(function)):
        return function
    return _CHANCE if name in ("urandom", "getrandom") else LOOKS


def _of_process(function: Any) -> Question | str | None:
    """A function of C's that tells a setting of the process: one that needs to be told of what can't be asked again."""
    if function.__name__.startswith(("set", "signal", "alarm")):
        return _SETS
    if not function.__name__.startswith(("get", "is_")):
        return None
    return function if _is_simple(answer_to(function)) else LOOKS


def _of_torch(function: Any) -> Question | None:
    name = str(function.__name__)
    if type(function) is BuiltinFunctionType:
        name = name.lstrip("_")
    if not name.startswith(_GETTERS) or name in _SIGNED or any(part in name for part in _SETTLED):
        return None
    if "autocast" in name:
        return autocast
    return function if _gets(function) else None


@functools.cache
def _gets(function: Any) -> bool:
    """Whether a function of PyTorch's tells a setting, and nothing but that."""
    if isinstance(function, FunctionType):
        code, given = function.__code__, len(function.__defaults__ or ())
        if code.co_argcount > given or code.co_kwonlyargcount > len(function.__kwdefaults__ or ()):
            return False
    with contextlib.suppress(Exception), torch._C.DisableTorchFunction():
        return _is_simple(function())
    return False


def _thread() -> Any:
    thread = threading.current_thread()
    given = {
        name: value
        for name, value in vars(thread).items()
        if not name.startswith("_") and not isinstance(value, torch.Tensor)
    }
    return (threading.get_ident(), thread.name, thread.daemon, given)


def _process() -> Any:
    process = multiprocessing.current_process()
    return (process.name, process.daemon)


def _threads() -> Any:
    return " ".join(f"{thread.ident} {thread.name}" for thread in threading.enumerate())


def _loggers() -> Any:
    manager = logging.root.manager
    loggers = [
        (name, logger) for name, logger in list(manager.loggerDict.items()) if isinstance(logger, logging.Logger)
    ]
    # others are as good as none
    levels = (f"{name} {logger.level} {logger.disabled}" for name, logger in loggers if logger.level or logger.disabled)
    return (manager.disable, logging.root.level, " ".join(levels))


def _filters() -> Any:
    """Which warnings are errors, and which aren't said."""
    return "\n".join(map(str, warnings.filters))


def autocast() -> Any:
    """What autocast is set to, on devices for which it is off, too."""
    kinds = ("cpu", "cuda", "xpu", "mps", "hpu")
    of_each = [
        (answer_to(partial(torch.is_autocast_enabled, kind)), answer_to(partial(torch.get_autocast_dtype, kind)))
        for kind in kinds
    ]
    return (*of_each, torch.is_autocast_cache_enabled())


def _locale() -> Any:
    return locale.setlocale(locale.LC_ALL, None)


def _environment() -> Any:
    return "\n".join(f"{name}={value}" for name, value in os.environ.items())


def _home() -> Any:
    return (os.environ.get("HOME"), os.environ.get("USERPROFILE"))


def functions_that_ask() -> dict[int, Question | str]:
    """What is asked by which function, by the function's id: all of these live as long as the process.

    What Python's own library builds of them asks by them.
    """
    return _functions_that_ask()[0]


def asking_functions() -> list[Any]:
    """The functions that ask, in the order in which they are noted."""
    return _functions_that_ask()[1]


@functools.cache
def _functions_that_ask() -> tuple[dict[int, Question | str], list[Any]]:
    found: dict[int, Question | str] = {}
    functions: list[Any] = []

    def note(owner: Any, names: Iterable[str], what: Question | str | None) -> None:
        for name in names:
            value: Any = vars(owner).get(name)
            if value is not None:
                found[id(value)] = what if what is not None else value
                functions.append(value)

    def of_c(owner: ModuleType, *but: str) -> list[str]:
        return [
            name for name, value in vars(owner).items() if isinstance(value, BuiltinFunctionType) and name not in but
        ]

    system = sys.modules[os.name]
    for name in of_c(system):
        if (what := _of_system(vars(system)[name])) is not None:
            note(system, (name,), what)
    for name in ("_socket", "_tracemalloc", "faulthandler", "resource"):  # a function may be what imports them first
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for settings in filter(
        None, map(sys.modules.get, ("sys", "_signal", "_socket", "_tracemalloc", "faulthandler", "resource"))
    ):
        for name in of_c(settings):
            if (what := _of_process(vars(settings)[name])) is not None:
                note(settings, (name,), what)
    note(torch, _SETTERS, _SETS)
    for owner, name in _SETTING_OTHERWISE:
        note(owner, (name,), _SETS)
    note(sys, ("setprofile", "settrace"), _WATCHERS)
    if not hasattr(sys, "monitoring"):  # it would be told of ours
        note(sys, ("getprofile",), _WATCHERS)
    modes = ("_get_current_function_mode", "_get_current_function_mode_stack", "_is_torch_function_mode_enabled")
    note(torch.overrides, (*modes, *(name for name in vars(torch.overrides) if "has_torch_function" in name)), MODES)
    note(torch._C, ("_len_torch_function_stack", "_get_function_stack_at", "_is_torch_function_mode_enabled"), MODES)
    note(threading.Thread, ("start",), _ELSEWHERE)
    note(sys.modules["_thread"], ("start_new_thread", "start_new", "start_joinable_thread"), _ELSEWHERE)
    pools = concurrent.futures
    for pool in (pools.Executor, pools.ThreadPoolExecutor, pools.ProcessPoolExecutor):
        note(pool, ("submit", "map"), _ELSEWHERE)
    note(multiprocessing.process, ("current_process",), _process)
    note(builtins, ("open", "input"), LOOKS)
    note(sys.modules["io"], ("open_code",), LOOKS)
    note(os.path, ("expanduser",), _home)
    note(os.path, ("expandvars",), _environment)
    note(torch, ("load", "from_file"), LOOKS)
    if (numpy := sys.modules.get("numpy")) is not None:
        note(numpy, ("load", "loadtxt", "genfromtxt", "fromfile"), LOOKS)
        note(numpy.random, ("seed", "set_state", "set_bit_generator"), _SEEDS)
    note(time, of_c(time, "sleep", "mktime", "strptime"), _CLOCK)
    note(datetime.datetime, ("now", "utcnow"), _CLOCK)
    note(datetime.date, ("today",), _CLOCK)
    note(uuid, ("uuid1", "uuid6", "uuid7", "getnode"), _CHANCE)
    note(gc, of_c(gc), OBJECTS)
    note(sys, ("getrefcount", "getallocatedblocks", "getsizeof"), OBJECTS)
    note(weakref, ("getweakrefcount", "getweakrefs"), OBJECTS)
    note(threading, ("current_thread", "currentThread", "main_thread", "get_ident", "get_native_id"), _thread)
    note(threading, ("active_count", "activeCount", "enumerate"), _threads)
    note(decimal, ("getcontext", "localcontext"), decimals)
    note(logging, ("getLogger", "getLevelName", "getHandlerByName"), _loggers)
    note(
        locale,
        ("setlocale", "getlocale", "localeconv", "format_string", "currency", "str", "atof", "strcoll", "strxfrm"),
        _locale,
    )
    note(warnings, ("warn", "warn_explicit"), _filters)
    return found, functions


@functools.cache
def codes_that_ask() -> dict[int, Any]:
    """The functions that ask and are written in Python, by the ids of their code."""
    return {id(function.__code__): function for function in asking_functions() if type(function) is FunctionType}
