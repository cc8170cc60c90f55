"""Functions of Python's own that read all of what they are given, and whether code calls one by whatever name."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import pickle
import pprint
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from .chains import ATTRIBUTE, CodeReads
from .notes import Table


def calls_one(reads: CodeReads, names: Table) -> bool:
    """Whether code that reads this, of a file with these names, may call such a function."""
    return not _functions().isdisjoint(map(id, _named(reads, names)))


def _named(reads: CodeReads, names: Table) -> Iterator[Any]:
    for name, chain in reads.globals.items():
        value = names.get(name)
        if isinstance(value, ModuleType):
            yield from (vars(value).get(key) for what, key in chain.below if what == ATTRIBUTE)
        else:
            yield value


@functools.cache
def _functions() -> frozenset[int]:
    functions: tuple[Any, ...] = (
        *(dataclasses.fields, dataclasses.asdict, dataclasses.astuple, dataclasses.replace),
        *(copy.copy, copy.deepcopy, pickle.dump, pickle.dumps, pprint.pformat, pprint.pp, pprint.pprint, inspect.getmembers),
    )
    return frozenset(map(id, functions))
