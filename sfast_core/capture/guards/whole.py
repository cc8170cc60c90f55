"""Functions of Python's own that read all of what they are given, and those that tell whether it is still there;
whether code calls one by whatever name.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import operator
import pickle
import pprint
import sys
import weakref
from collections.abc import Iterator
from types import ModuleType, WrapperDescriptorType
from typing import Any

from .chains import ATTRIBUTE, CodeReads
from .notes import Table
from .stack import GETTING, NAMING, OTHERS

_COPYING = (copy.copy, copy.deepcopy, pickle.dump, pickle.dumps, pprint.pformat, pprint.pp, pprint.pprint)
_OF_DATACLASSES = (dataclasses.fields, dataclasses.asdict, dataclasses.astuple, dataclasses.replace)
_READING_ALL = frozenset(map(id, (*_COPYING, *_OF_DATACLASSES, inspect.getmembers)))
_MAKING_WEAK = frozenset(map(id, (weakref.ref, weakref.proxy, weakref.finalize, weakref.WeakMethod)))
_BY_NAME = (getattr, setattr, hasattr, delattr, vars, eval, exec, operator.attrgetter, operator.methodcaller)


def reads_all(reads: CodeReads, names: Table) -> bool:
    """Whether code that reads this, of a file with these names,
    may call a function that reads all of what it is given.
    """
    return not _READING_ALL.isdisjoint(map(id, _named(reads, names)))


def asks_by_name(reads: CodeReads, names: Table) -> bool:
    """Whether such code may call a function, kept under a name of the file's own, that is told the name of the
    attribute to read or set.
    """
    return any(_asks_by_name(names.get(name)) for name in reads.globals.keys() - NAMING)


def _asks_by_name(value: Any) -> bool:
    if isinstance(value, WrapperDescriptorType):  # object's
        return value.__name__ in GETTING
    if isinstance(value, (operator.attrgetter, operator.methodcaller)):
        named = value.__reduce__()[1]
        return not all(OTHERS.isdisjoint(name.split(".")) for name in named if isinstance(name, str))
    return any(value is function for function in _BY_NAME)


def makes_weak(reads: CodeReads, names: Table) -> bool:
    """Whether such code may make a weak reference: to something that is gone within the call, perhaps, and is to be
    gone then.
    """
    return not _MAKING_WEAK.isdisjoint(map(id, _named(reads, names)))


def _named(reads: CodeReads, names: Table) -> Iterator[Any]:
    for name, chain in reads.globals.items():
        value = names.get(name)
        if isinstance(value, ModuleType):
            yield from (vars(value).get(key) for what, key in chain.below if what == ATTRIBUTE)
        else:
            yield value
    for (name, level, _), chain in reads.imports.items():
        file = None if level else sys.modules.get(name)
        yield from (vars(file).get(key) for what, key in chain.below if what == ATTRIBUTE) if file is not None else ()
