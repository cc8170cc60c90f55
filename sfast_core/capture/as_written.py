"""What ``torch.compile`` has compiled inside a module, while a call of that is recorded."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from .switch import Switch


@contextmanager
def as_written() -> Iterator[None]:
    """Functions and modules that ``torch.compile`` has compiled run as they were written in here: what it makes of them
    can't be recorded.

    It is a switch of the whole process: other threads' run so too meanwhile.
    """
    if "torch._dynamo" not in sys.modules or not hasattr(torch.compiler, "set_stance"):  # nobody has compiled any
        yield
        return
    with _switch().on(None):
        yield


@functools.cache
def _switch() -> Switch[None]:
    return Switch(_run_as_written)


def _run_as_written() -> Callable[[], None]:
    stance = torch.compiler.set_stance("force_eager")
    stance.__enter__()
    return functools.partial(stance.__exit__, None, None, None)
