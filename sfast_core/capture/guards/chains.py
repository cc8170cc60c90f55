"""What code reads and writes, as chains: an attribute of an item of an attribute of an argument, say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Key = tuple[str, Any]  # ("attribute", name) or ("item", constant)
ATTRIBUTE, ITEM = "attribute", "item"

_ATTRIBUTES = (ATTRIBUTE, "__dict__")
_DEEPEST = 8  # a chain that is longer (a linked list in a loop) counts as unknown


class Chain:
    """A place that code reads, and what it reads below that.

    Attributes:
        below: the attributes and items with constant keys that are read of what is there.
        loaded: the place itself is read.
        content: the value itself is used: called, compared, iterated over, handed on. If not, only what is ``below`` is
            read of it.
        written: the methods by which something is put into it, ``__setitem__`` for an item.
        stored: the place itself is written to.
        every: attributes of any name are read of what is there.
        every_item: and of whichever item of it.
        whole: and of all that it leads to, as a deep copy reads it.
        given: it is handed to a function, which may call it.
        handed: it goes on as what it is: it isn't only called, or asked whether it is true.
        identity: it is asked which object is there.
        numbered: by its ``id``.
        attributes_of: the chain whose ``__dict__`` this is, or None.
    """

    __slots__ = (
        "_attributes",
        "attributes_of",
        "below",
        "content",
        "depth",
        "every",
        "every_item",
        "given",
        "handed",
        "identity",
        "loaded",
        "numbered",
        "stored",
        "whole",
        "written",
    )

    def __init__(self, depth: int = 0) -> None:
        self.below: dict[Key, Chain] = {}
        self.depth = depth
        self.written: set[str] = set()
        self.attributes_of: Chain | None = None
        self.content = self.loaded = self.stored = self.every = self.every_item = self.given = self.handed = False
        self.identity = self.numbered = self.whole = False
        self._attributes: tuple[Below, ...] | None = None

    def at(self, key: Key) -> Chain | None:
        """What is read at ``key`` below; None where that is too deep."""
        if self.attributes_of is not None and key[0] == ITEM and isinstance(key[1], str):
            return self.attributes_of.at((ATTRIBUTE, key[1]))
        found = self.below.get(key)
        if found is None and self.depth < _DEEPEST:
            found = self.below[key] = Chain(self.depth + 1)
            if key == _ATTRIBUTES:
                found.attributes_of = self
        return found

    @property
    def attributes(self) -> tuple[Below, ...]:
        """The attributes below. To be asked for once the code is read."""
        if self._attributes is None:
            self._attributes = tuple(
                Below(name, below) for (what, name), below in self.below.items() if what == ATTRIBUTE
            )
        return self._attributes

    def forget(self) -> None:
        """Forget the attributes that were found: the chain says something else than before."""
        self._attributes = None

    @property
    def leads(self) -> bool:
        """Whether attributes are read below it."""
        return self.every or any(what == ATTRIBUTE or below.leads for (what, _), below in self.below.items())

    @property
    def used(self) -> bool:
        """Whether the place is read, and not only written to."""
        return self.loaded or self.followed

    @property
    def followed(self) -> bool:
        """Whether something is read of, or put into, what is there."""
        return bool(self.below) or self.content or bool(self.written) or self.every or self.identity


class Below:
    """An attribute that is read, or written to, below a chain.

    Thousands of layers are asked for it, so what the chain says is found out once.

    Attributes:
        name: of the attribute.
        chain: what is read of it.
        read: see :attr:`Chain.used`.
        followed: see :attr:`Chain.followed`.
        deep: even of a plain value something is read.
    """

    __slots__ = ("chain", "deep", "followed", "name", "read")

    def __init__(self, name: str, chain: Chain) -> None:
        self.name, self.chain = name, chain
        self.read, self.followed, self.deep = chain.used, chain.followed, bool(chain.below) or chain.identity


LOADED = Chain()  #: it matters what is there, and nothing below it
LOADED.loaded = True
USED = Chain()  #: a value is used as what it is
USED.content = True
GIVEN = Chain()  #: likewise, and C's code may call it
GIVEN.content = GIVEN.given = True
WITHIN = Chain()  #: likewise, by code that isn't read
WITHIN.content = True
WHOLE = Chain()  #: likewise all that it leads to
WHOLE.content = WHOLE.every = WHOLE.whole = True
ANYTHING = Chain()  #: attributes of it are read by names that aren't known
ANYTHING.content = ANYTHING.every = True
MAKES_ITEMS = Chain()  #: what a defaultdict makes its items by
MAKES_ITEMS.below[ATTRIBUTE, "default_factory"] = USED


@dataclass
class CodeReads:
    """What one code object reads and writes.

    Attributes:
        words: strings among its constants that could be names.
        variables: by the names of parameters and of free variables.
        globals: by name.
        imports: by module, level and whether the module itself (not its topmost package) is what the import gives.
        loose: names of attributes that are read of values which are not known.
        stored: names of attributes that are set or deleted, of whatever.
        stored_globals: names of globals that are.
        rebound: of those, and of keys of items, at which there may be something else from then on, but for what an
            object is made with.
        numbered: variables that are not followed, whose ids are asked for; None: anything may be that.
        compares: of each question whether two things are one, which of the two are names of a file's, or attributes of
            these, one below another.
        puts: items are put somewhere by keys that aren't known.
        leaves: something may be left elsewhere than in the code's own variables, and in tensors.
        any_file: a file is imported by a name that is computed.
        dynamic: attributes are read or set by names that are computed.
        anything: such attributes may be those of values that aren't known.
    """

    variables: dict[str, Chain] = field(default_factory=dict)
    globals: dict[str, Chain] = field(default_factory=dict)
    imports: dict[tuple[str, int, bool], Chain] = field(default_factory=dict)
    loose: set[str] = field(default_factory=set)
    words: set[str] = field(default_factory=set)
    stored: set[str] = field(default_factory=set)
    stored_globals: set[str] = field(default_factory=set)
    rebound: set[Any] = field(default_factory=set)
    numbered: set[str | None] = field(default_factory=set)
    compares: set[tuple[tuple[str, ...], ...]] = field(default_factory=set)
    puts: bool = False
    leaves: bool = False
    any_file: bool = False
    dynamic: bool = False
    anything: bool = False
    _leading: dict[Key, list[Chain]] | None = None

    def name_of(self, *chains: Chain) -> tuple[str, ...] | None:
        """The global that ``chains`` is, if it is one, or its attributes down to it; None for any other."""
        waiting: list[tuple[tuple[Any, ...], Chain]] = [((name,), chain) for name, chain in self.globals.items()]
        for names, chain in waiting:
            if len(chains) == 1 and chain is chains[0]:
                return names
            waiting += [((*names, name), below) for (what, name), below in chain.below.items() if what == ATTRIBUTE]
        return None

    @property
    def leading(self) -> dict[Key, list[Chain]]:
        """Chains below which attributes are read, by the name or key where they begin. To be asked for in the end."""
        if self._leading is None:
            self._leading = {}
            waiting = [((ATTRIBUTE, name), chain) for name, chain in self.globals.items()]
            waiting += [each for chain in self.variables.values() for each in chain.below.items()]
            for key, chain in waiting:
                waiting += chain.below.items()
                if chain.leads:
                    self._leading.setdefault(key, []).append(chain)
        return self._leading


def read_everything(reads: CodeReads) -> None:
    """Note that attributes by names that aren't known are read of whatever the code knows."""
    for chain in (*reads.variables.values(), *reads.globals.values()):
        read_every(chain)
    reads.dynamic = reads.anything = True


def read_every(chain: Chain) -> None:
    """Note that attributes by names that aren't known are read of one chain and of all below it."""
    chain.every = True
    chain.forget()
    for below in chain.below.values():
        read_every(below)


def read_whole(reads: CodeReads) -> None:
    """Note that all is read that is handed on, and what that leads to."""
    waiting = [*reads.variables.values(), *reads.globals.values()]
    for chain in waiting:
        chain.whole = chain.every = chain.every or chain.handed
        chain.forget()
        waiting += chain.below.values()
