"""Objects that came with a call's arguments: did the call read anything of them?

Nothing of them is in a call's signature but their class. A call that reads no more of one is the same call with any
other of its class.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch

from .given import is_given
from .kinds import carried
from .read_set import ReadSet
from .seen_objects import PARTS

_OF_CLASSES = frozenset(
    "__module__ __doc__ __dict__ __weakref__ __annotations__ __slots__ __static_attributes__ __firstlineno__".split()
)


def has_read(reads: ReadSet, value: Any, name: str | None) -> bool:
    """Whether a call may have read, or written, anything of an object.

    Args:
        reads: what the call read; it is over.
        value: the object, of a kind that :func:`.kinds.is_object` knows.
        name: the name that it has among the arguments. None: it has none.
    """
    words = (reads.words, *reads.others_words.values())
    if id(value) in reads.seen or (
        name is not None and (any(name in each for each in words) or not name.isidentifier())
    ):
        return True
    # Found without its name, in a loop say: then by an attribute of its own, or a method of its class has run.
    names = reads.loose | reads.stored
    return reads.anything or any(cls is type(value) for cls, _ in reads.receivers) or not names.isdisjoint(_kept(value))


def _kept(value: Any) -> set[str]:
    """The names of what an object keeps, and of what its class has besides functions, which show when they run."""
    try:
        table = object.__getattribute__(value, "__dict__")
    except AttributeError:
        table = {}
    names = set(table)
    if isinstance(value, torch.nn.Module):
        names = names.union(*(table.get(part) or () for part in PARTS)) - vars(torch.nn.Module()).keys()
    for owner in type(value).__mro__[:-1]:
        if not is_given(owner.__module__):
            names |= {name for name, found in vars(owner).items() if not isinstance(carried(found), FunctionType)}
    return names - _OF_CLASSES
