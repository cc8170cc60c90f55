"""Hooks on modules: they run around what is traced, and may do anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ...reporting.reasons.records import HOOKS, HOOKS_OF_ALL, KEEPS_STATE
from .notes import Row
from .seen_objects import OF_ALL, OF_HOOKS

#: What a layer has that says what runs around it, and how.
HOOKING = (*OF_HOOKS, "_call_impl")
#: Code whose hooks only hand on what layers return, within one call: transformers collects ``hidden_states`` so.
_TRANSPARENT = frozenset({"transformers.utils.output_capturing"})


def transparent(hook: Any) -> bool:
    """Whether a hook does nothing but hand on what a layer returns."""
    return getattr(hook, "__module__", None) in _TRANSPARENT


def hooked_below(root: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules below ``root`` that have hooks which may do anything."""
    tables = (
        (module, module.__dict__.get(part)) for module in root.modules() if module is not root for part in OF_HOOKS
    )
    return list(
        dict.fromkeys(module for module, table in tables if table and not all(map(transparent, table.values())))
    )


class Hooks:
    """The forward hooks of modules and of all modules, as they were.

    Attributes:
        reason: why a trace can't be trusted with these, or None.
    """

    def __init__(
        self, tables: list[tuple[Any, dict[Any, Any]]], reason: str | None, owners: list[tuple[Any, dict[str, Any]]]
    ) -> None:
        self._tables = tables
        self._owners = owners
        self._empty = [table for _, table in tables if not table]
        self._filled = [(name, table, list(table.values())) for name, table in tables if table]
        self.reason = reason

    def changed(self) -> str | None:
        """Which hooks changed, in words, or None."""
        if any(self._empty):
            for name, table in self._tables:
                if table and not all(map(transparent, table.values())) and any(table is empty for empty in self._empty):
                    return f"the forward hooks of {name} changed"
        for name, table, then in self._filled:
            now = list(table.values())
            if len(now) != len(then) or any(a is not b for a, b in zip(now, then, strict=True)):
                if not all(map(transparent, (*now, *then))):
                    return f"the forward hooks of {name} changed"
        return None

    def have_changed(self) -> bool:
        """Whether any hook changed."""
        return self.changed() is not None

    def among(self, rows: Iterable[Row]) -> list[Row]:
        """These rows, and in them that each layer's tables of hooks are the ones that they were, and how it is
        called.
        """
        found = list(rows)
        known = {id(row.table): row for row in found}
        for origin, owner in self._owners:
            if (row := known.get(id(owner))) is None:
                row = Row(owner, origin)
                found.append(row)
            for name in HOOKING:
                if name in owner and name not in row.names:
                    row.names.append(name)
                    row.then.append(owner[name])
                elif name not in owner and name not in row.absent:
                    row.absent.append(name)
        return found

    @property
    def owned(self) -> frozenset[int]:
        """The ids of the layers' tables of hooks: no other is as good, since these are the ones that are looked at."""
        return frozenset(id(table) for _, table in self._tables)


def hooks_of(
    modules: Sequence[tuple[Any, torch.nn.Module | None]],
    root: torch.nn.Module | None,
    keeps_state: Callable[[torch.nn.Module], bool],
) -> Hooks:
    """The hooks of these modules, each with its name; the root's own are its caller's business.

    ``keeps_state``: whether a library's own kind of hook around a module computes by what came before.
    """
    shared = torch.nn.modules.module
    tables: list[tuple[Any, dict[Any, Any]]] = [("all modules", vars(shared)[part]) for part in OF_ALL]
    reason = HOOKS_OF_ALL() if any(table for _, table in tables) else None
    owners = []
    for name, module in modules:
        if module is None or module is root:
            continue
        if all(part in module.__dict__ for part in OF_HOOKS):
            owners.append((name, module.__dict__))
        for part in OF_HOOKS:
            table = module.__dict__.get(part)
            if table is None:
                continue
            tables.append((name, table))
            if table and reason is None and not all(map(transparent, table.values())):
                reason = HOOKS(whose=f"{name} has")
        if reason is None and keeps_state(module):
            reason = KEEPS_STATE(name=name)
    if reason is None and root is not None and keeps_state(root):
        reason = KEEPS_STATE(name="it")
    return Hooks(tables, reason, owners)
