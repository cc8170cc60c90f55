"""What a call that changes its own module leaves alone there: as long as that stays as it is, so does what the call does."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch

from .guard import LEAVES
from .places import Places

_CONTENTS = ("_modules", "_forward_hooks", "_forward_pre_hooks")
_CALLERS = ("forward", "_forward")  # of the root: what is there is its caller's business
_OURS = "_fast_compile"  # so begin the names of what leads to the compiled state


class BystanderGuard:
    """Tells when a call that changed its module may fare better: something that it had left alone is another object by now.

    An extension keeps attention maps by forwards that it puts on some layers, and takes these off again. What such a call itself changes is
    different each time, so it is no sign. Looked at are attributes of modules that aren't plain layers, instance-level forwards of those that
    are, children and hooks. The root is held weakly.

    Args:
        root: the module, before the call.

    Attributes:
        hooked: None: there is no trace that could not be trusted.
    """

    hooked: str | None = None

    def __init__(self, root: torch.nn.Module) -> None:
        self._root = weakref.ref(root)
        self._attributes = _attributes(root)
        found = list(_tables(root))
        self._paths = {id(table): path for path, table, _ in found}
        self._places = Places((table, name) for _, table, names in found for name in names)
        self._contents = [table for path, table, _ in found if path.endswith(_CONTENTS)]
        self._sizes = list(map(len, self._contents))

    def settle(self) -> None:
        """The call is over: what it has changed is not looked at any more."""
        then = zip(self._places.tables, self._places.names, self._places.then, strict=True)
        self._places = Places((table, name) for table, name, value in then if table.get(name) is value)
        sizes = zip(self._contents, self._sizes, strict=True)
        self._contents = [table for table, size in sizes if len(table) == size]
        self._sizes = list(map(len, self._contents))
        root = self._root()
        now = {} if root is None else _attributes(root)
        self._attributes = {name: value for name, value in self._attributes.items() if now.get(name) is value}

    def changed(self, module: torch.nn.Module) -> str | None:
        """What is another object than at the call, in words, or None."""
        if self._root() is not module:
            return "another module is in its place"
        if not self._places.same():
            places = zip(self._places.tables, self._places.names, self._places.then, strict=True)
            return next(f"{self._paths[id(table)]}.{name} changed" for table, name, value in places if table.get(name) is not value)
        if list(map(len, self._contents)) != self._sizes:
            sizes = zip(self._contents, self._sizes, strict=True)
            return next(f"{self._paths[id(table)]} changed" for table, size in sizes if len(table) != size)
        now = _attributes(module)
        return next((f"{name} changed" for name, value in self._attributes.items() if now.get(name) is not value), None)


def _tables(root: torch.nn.Module) -> Iterator[tuple[str, dict[str, Any], list[str]]]:
    """Modules' dicts, but the root's, and those of children and hooks in them: each with its path and the names in it that are looked at."""
    for path, module in root.named_modules():
        own = module.__dict__
        if module is root:
            yield "_modules", own["_modules"], list(own["_modules"])
            continue
        yield path, own, ["forward"] if isinstance(module, LEAVES) else list(_attributes(module)) + ["forward"]
        yield from ((f"{path}.{part}", own[part], list(own[part])) for part in _CONTENTS)


def _attributes(module: torch.nn.Module) -> dict[str, Any]:
    """A module's attributes, less what is torch's, ours or looked at apart."""
    own = module.__dict__.items()
    return {name: value for name, value in own if name not in _TORCHS and name not in _CALLERS and not name.startswith(_OURS)}


_TORCHS = frozenset(torch.nn.Module().__dict__) - {"training"}
