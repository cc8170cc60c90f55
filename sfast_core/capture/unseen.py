"""Functions of libraries whose kernels no recorder sees, each one call of the graph: what they return depends on their
arguments alone.

They are SageAttention's, which hosts, nodes and diffusers call in attention's place. Nothing here imports a library:
whoever calls it has.
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
from .live.reach import below
from .thread_function import in_cell, in_table, one_recording

if TYPE_CHECKING:
    from .recorder import Recorder

#: how the names begin, by package
_FUNCTIONS = {"sageattention": "sageattn", "sageattn3": "sageattn3", "spas_sage_attn": "spas_sage"}
_DEEPEST, _MOST = 8, 500  # of what functions of others lead to


@contextmanager
def unseen_as_one(recorder: Recorder, others: Sequence[Any]) -> Iterator[None]:
    """Such functions, while a call is recorded: under their names in whatever file, and in what functions of others
    close over.

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
    """Where functions close over one of those that are wanted, be it by way of what else they lead to."""
    found: dict[int, CellType] = {}
    waiting = [(function, 0) for function in others]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST:
        value, depth = waiting.pop()
        if id(value) in seen or depth > _DEEPEST:
            continue
        seen.add(id(value))
        if type(value) is FunctionType:
            found.update(
                (id(cell), cell) for cell in value.__closure__ or () if any(content_of(cell) is each for each in wanted)
            )
            waiting += [(each, depth + 1) for each in vars(value).values()]
        waiting += [(each, depth + 1) for each in below(value)]
    return list(found.values())


def _as_one(recorder: Recorder, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if recorder.in_leaf or kwargs.get("return_lse") or any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
        return original(*args, **kwargs)
    return recorder.run(original, *args, **kwargs)
