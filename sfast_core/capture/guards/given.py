"""What belongs to Python, PyTorch, NumPy and einops: its code isn't read, since nobody steers a forward by it."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import FrameType, FunctionType, MethodType
from typing import Any

import torch

#: What PyTorch computes with itself, and einops, which keeps tables of shapes and of kinds of tensors alone.
_LIBRARIES = ("numpy", "triton", "functorch", "sympy", "mpmath", "einops")
_EINOPS_LAYERS = os.path.join(os.sep, "einops", "layers", "")
_GIVEN = sys.stdlib_module_names | {"torch", *_LIBRARIES}
_MARK = "_fast_compile_stands_for"
_NONE: dict[str, Any] = {}

_PACKAGE = __name__.rsplit(".", 3)[0] + "."  #: this package, wherever it is
# As the code that lies there names its files, links and all: a host's folder of extensions may have but a link to this.
_OURS = os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + os.sep
_TORCH = os.path.dirname(torch.__file__) + os.sep
_LAYERS = tuple(_TORCH + part.replace("/", os.sep) for part in ("nn/modules/", "nn/functional.py", "nn/utils/"))
_RANDOM = (_TORCH + "random.py", _TORCH + os.path.join("cuda", "random.py"))
_FUNCTIONAL = _TORCH + os.path.join("nn", "functional.py")
#: what this reads of each module, its call, is known beforehand
_CALLING = _TORCH + os.path.join("nn", "modules", "module.py")
_STANDARD = tuple(
    {str(Path(sysconfig.get_path(name)).resolve()) + os.sep for name in ("stdlib", "platstdlib")}
    | {str(Path(os.__file__).parent) + os.sep}
)
_SHOWS = f"{os.sep}tqdm{os.sep}"  #: how far a loop is: what it writes is heard, and what it reads steers nothing else
_PACKAGES = ("site-packages", "dist-packages")
IMPORTING = os.path.join("importlib", "__init__.py")
# of Python's own: these keep what users set
_STEERING = (
    IMPORTING,
    "os.py",
    "random.py",
    "collections/__init__.py",
    "collections" + os.sep + "__init__.py",
    "unittest/mock.py",
)
#: Of Python's own: these look at files and at the clock for themselves, to show a line of source or to wait.
_FOR_ITSELF = frozenset(
    "asyncio concurrent importlib inspect linecache logging multiprocessing queue threading tokenize traceback"
    " warnings".split()
)
FAR = 200  # frames
_FROZEN = ("<frozen os>",)


class PartialInPlace(functools.partial[Any]):
    """A partial that is put into the place of another one for a while, in any thread: ``called`` is called."""

    __slots__ = ("called", "original")
    called: Callable[..., Any]
    original: functools.partial[Any]

    def __new__(cls, original: functools.partial[Any], called: Callable[..., Any]) -> PartialInPlace:
        made = super().__new__(cls, original.func)
        state = original.func, original.args, original.keywords, original.__dict__
        made.__setstate__(state)  # type: ignore[attr-defined]  # with the very dicts
        made.original, made.called = original, called
        return made

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.called(*args, **kwargs)


_STANDING = frozenset({FunctionType, MethodType, PartialInPlace})


def stands_for(function: Any, original: Any) -> None:
    """Have a function that is put into the place of another for a while, in any thread, be no change. Likewise a method
    of this function, where ``original`` is one.
    """
    # which are its own where its attributes are another's
    function.__kwdefaults__ = {**(function.__kwdefaults__ or {}), _MARK: itself(original)}


def itself(value: Any) -> Any:
    """What a value stands for, see :func:`stands_for`; nearly always itself."""
    if type(value) not in _STANDING:
        return value
    if type(value) is PartialInPlace:
        return value.original
    function = value.__func__ if type(value) is MethodType else value
    return (function.__kwdefaults__ or _NONE).get(_MARK, value) if type(function) is FunctionType else value


def is_given(module: object) -> bool:
    """Whether a module of this name belongs to Python, PyTorch, NumPy or einops."""
    return isinstance(module, str) and module.partition(".")[0] in _GIVEN


def is_of_ours(value: object) -> bool:
    """Whether a value is an object of this package's, such as what stands in the place of a compiled module's forward:
    it leads to all that is known.
    """
    return str(type(value).__module__).startswith(_PACKAGE)


def is_ours(path: str) -> bool:
    """Whether a file is one of this package's."""
    return path.startswith(_OURS)


def is_read(path: str) -> bool:
    """Whether what the code of this file reads may steer a forward."""
    if path.startswith(_OURS):
        return False
    if path.startswith("<frozen"):
        return path in _FROZEN
    if path.startswith(_TORCH):
        return (path.startswith(_LAYERS) and path != _CALLING) or is_of_random_state(path)
    if _is_of_python(path):
        return path.endswith(_STEERING)
    if _EINOPS_LAYERS in path:
        return True
    if _SHOWS in path:
        return False
    return not any(f"{os.sep}{name}{os.sep}" in path for name in _LIBRARIES) and not path.endswith(
        "typing_extensions.py"
    )


def counts_unseen(cls: type) -> bool:
    """Whether it is a class of progress bars, whose code counts and isn't read."""
    return str(cls.__module__).partition(".")[0] == "tqdm"


def is_of_torch(path: str) -> bool:
    """Whether a file is PyTorch's."""
    return path.startswith(_TORCH)


def is_of_random_state(path: str) -> bool:
    """Whether a file is PyTorch's of the state of its random numbers: a seed is compared with nothing."""
    return path in _RANDOM


def may_ask(frame: FrameType | None) -> bool:
    """Whether whoever runs in a frame may ask for that state: this package, and PyTorch for its own use, as checkpoints
    do.
    """
    path = "" if frame is None else frame.f_code.co_filename
    return path.startswith(_OURS) or (path.startswith(_TORCH) and not is_of_random_state(path))


def is_functional(path: str) -> bool:
    """Whether a file is PyTorch's of functions of tensors: what these read is in their file, and nothing of their
    arguments steers but tensors.
    """
    return path == _FUNCTIONAL


def is_installed(path: str) -> bool:
    """Whether a file belongs to an installed package."""
    return any(f"{os.sep}{name}{os.sep}" in path for name in _PACKAGES)


def may_be_asker(path: str) -> bool:
    """Whether what the code of this file asks for may be asked for others: by a library of Python's, for whoever calls
    that.
    """
    if path.startswith(("<frozen importlib", "<frozen zipimport")):
        return False
    if _is_of_python(path):
        home = next(path.removeprefix(folder) for folder in _STANDARD if path.startswith(folder))
        return home.partition(os.sep)[0].removesuffix(".py") not in _FOR_ITSELF
    return is_read(path) or path.startswith("<frozen") or _SHOWS in path


def asker(frame: FrameType | None) -> FrameType | None:
    """For whose code a function is called in ``frame``: the first one behind Python's own library; None where that, or
    PyTorch, asks for itself.
    """
    while frame is not None and may_be_asker(path := frame.f_code.co_filename):
        if not path.startswith("<frozen") and not _is_of_python(path):
            name = frame.f_globals.get("__name__")
            # a dataclass's own code
            return None if path == "<string>" and (is_given(name) or str(name).startswith(_PACKAGE)) else frame
        frame = frame.f_back
    return None


def _is_of_python(path: str) -> bool:
    return path.startswith(_STANDARD) and not is_installed(path)


def is_standard(path: str) -> bool:
    """Whether a file is one of Python's own that is read all the same:
    by whom it is called tells whether that steers.
    """
    return path.endswith(_STEERING) or path in _FROZEN


def is_called_by_read(frame: FrameType) -> bool:
    """Whether it is called by code whose reads may steer a forward."""
    return frame.f_back is not None and is_read(frame.f_back.f_code.co_filename)


def is_importing(frame: FrameType | None) -> bool:
    """Whether a frame runs while some file is imported: what that reads, no call reads again.

    Within the recorded call, that is: the call itself may be made by a file that is being imported.
    """
    for _ in range(FAR):
        if frame is None or is_ours(frame.f_code.co_filename):
            return False
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False
