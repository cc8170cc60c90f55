"""Functions of libraries whose kernels no recorder sees, each one call of the graph: what they return depends on their arguments alone.

They are SageAttention's, which hosts, nodes and diffusers call in attention's place. Nothing here imports a library: whoever calls it has.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import CellType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import torch

from .guards.notes import content_of
from .thread_function import in_cell, in_table, one_recording

if TYPE_CHECKING:
    from .recorder import Recorder

_FUNCTIONS = {"sageattention": "sageattn", "sageattn3": "sageattn3", "spas_sage_attn": "spas_sage"}  #: how the names begin, by package
_DEEPEST = 6


@contextmanager
def unseen_as_one(recorder: Recorder, others: Sequence[Any]) -> Iterator[None]:
    """Such functions, while a call is recorded: under their names in whatever file, and in what functions of others close over.

    Args:
        recorder: of the call.
        others: the functions of others that the call brings along.
    """
    wanted = dict(_known())
    if not wanted:
        yield
        return
    ours = partial(_as_one, recorder)
    with one_recording("unseen functions").lock, ExitStack() as replaced:
        for module in list(sys.modules.values()):
            table = vars(module) if isinstance(module, ModuleType) else {}
            for name, function in wanted.items():
                if table.get(name) is function:
                    replaced.enter_context(in_table(table, name, ours))
        for cell in _cells(others, list(wanted.values())):
            replaced.enter_context(in_cell(cell, ours))
        yield


def _known() -> Iterator[tuple[str, Callable[..., Any]]]:
    for package, begins in _FUNCTIONS.items():
        for name, value in list(vars(there).items()) if (there := sys.modules.get(package)) is not None else ():
            if name.startswith(begins) and callable(value) and not isinstance(value, type):
                yield name, value


def _cells(others: Sequence[Any], wanted: list[Any]) -> list[CellType]:
    """Where functions close over one of those that are wanted, be it by way of others."""
    found: dict[int, CellType] = {}
    waiting: list[tuple[Any, int]] = [(function, 0) for function in others]
    seen: set[int] = set()
    while waiting:
        function, depth = waiting.pop()
        function = getattr(function, "__func__", getattr(function, "func", function))  # of a method, of a partial
        if type(function) is not FunctionType or id(function) in seen or depth > _DEEPEST:
            continue
        seen.add(id(function))
        waiting += [(value, depth + 1) for value in vars(function).values()]
        for cell in function.__closure__ or ():
            content = content_of(cell)
            if any(content is each for each in wanted):
                found[id(cell)] = cell
            else:
                waiting.append((content, depth + 1))
    return list(found.values())


def _as_one(recorder: Recorder, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if recorder.in_leaf or kwargs.get("return_lse") or any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
        return original(*args, **kwargs)
    return recorder.run(original, *args, **kwargs)
