"""Did the module change below a trace? Everything that steered the forward besides its arguments is compared here.

It is asked at every call, so it has to be quick: what is watched is looked up and compared in one go, in C, and only where something differs
each module is looked at more closely. SD1.5's UNet, 850 modules: 0.35 ms; comparing the modules' dicts took 0.9, and a replay 5.4.
"""

from __future__ import annotations

import copy
import itertools
import operator
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .called import FUNCTIONS
from .classes import ClassGuard
from .closures import ClosureGuard
from .equality import CONTAINERS, SIMPLE, equal, plain, unchanged
from .objects import ObjectGuard, functions_of, objects_of
from .places import Places

LEAVES = (torch.nn.Linear, torch.nn.modules.conv._ConvNd, torch.nn.GroupNorm, torch.nn.LayerNorm, torch.nn.Embedding)
#: What steers such a layer besides its weights. Seamless tiling sets a convolution's padding, or replaces what pads.
_STEERING: tuple[tuple[type, tuple[str, ...]], ...] = (
    (torch.nn.modules.conv._ConvNd, ("padding_mode", "padding", "_reversed_padding_repeated_twice", "stride", "dilation", "groups", "_conv_forward")),
    (torch.nn.GroupNorm, ("num_groups", "eps")),
    (torch.nn.LayerNorm, ("normalized_shape", "eps")),
)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_CONTENTS = ("_modules", *_HOOKS)  #: the dicts inside a module's dict that are watched
_PRIVATE = frozenset({"_active_adapter", "_disable_adapters"})  # where PEFT's layers keep which LoRA is on
#: Code whose hooks only hand on what layers return, within one call: transformers collects ``hidden_states`` so.
_TRANSPARENT = frozenset({"transformers.utils.output_capturing"})


class StructureGuard:
    """The structure of a module at the time of a trace.

    Holds for every module below the root: its class and the methods in that, its children, an instance-level ``forward``, forward hooks,
    ``training``, the dtype of its first parameter, which weights are None (a bias that a LoRA may bring), of plain layers what steers them
    (how a convolution pads, the numbers that a host's own kind of Linear has), and of other modules their attributes: simple ones and
    containers of simple ones (a LoRA's scales) by value, others by identity (an attention processor, whose own attributes are watched
    alike). Holds also for the functions that all this code calls by name, for what functions that modules have of their own close over, and for
    hooks of all modules. Tensors are the weight store's to watch. The root's own ``forward``, ``_forward`` and hooks are its caller's business: they run around what is traced, or are put
    there for it. The root is held weakly.

    Attributes:
        hooked: why a trace of this module can't be trusted, or None: hooks may do anything besides computing.
    """

    def __init__(self, root: torch.nn.Module) -> None:
        self._root = weakref.ref(root)
        # Not what isn't watched: the compiled state is in there, and a cycle would keep a deleted model until the collector runs.
        self._attributes = _of_root(_snapshot(root.__dict__))
        self._places: list[tuple[str, str]] = []  # path and, where not all of the module's dict is watched, the part's name
        self._now: list[dict[str, Any]] = []
        self._then: list[dict[str, Any]] = []
        self._leaves: list[tuple[str, dict[str, Any], tuple[str, ...]]] = []  # path, dict and the names of what steers it
        self._typed: list[dict[str, Any]] = []
        self._typed_names: list[str] = []
        self._without: list[dict[str, Any]] = []  # parameters or buffers, with one that is None, and its name
        self._absent: list[str] = []
        self.hooked: str | None = None
        functions: list[tuple[str, Any]] = []  # that modules have of their own, and where
        kept: list[tuple[str, Any]] = []  # objects that are no modules, and where
        for hooks in (torch.nn.modules.module._global_forward_hooks, torch.nn.modules.module._global_forward_pre_hooks):
            self._watch("all modules", "hooks", hooks)
            if hooks:
                self.hooked = "all modules have forward hooks"
        for path, module in root.named_modules():
            self._add(path, module, module is root)
            own = _of_root(module.__dict__) if module is root else module.__dict__
            functions += functions_of(f"{path}." if path else "", own)
            kept += objects_of(f"{path}." if path else "", own)
        self._classes = ClassGuard(root, {type(value) for _, value in kept}, [function for _, function in functions])
        self._closures = ClosureGuard(functions)
        self._objects = ObjectGuard(kept, self._classes.used)
        self._leaf_state, self._dtypes = self._leaves_now(), self._dtypes_now()
        self._glance = self._look()

    def _add(self, path: str, module: torch.nn.Module, is_root: bool) -> None:
        own = module.__dict__
        if is_root:
            self._watch(path, "_modules", own["_modules"])
        elif isinstance(module, LEAVES):
            steering = (name for kind, names in _STEERING if isinstance(module, kind) for name in names)
            self._leaves.append((path, own, ("forward", "training", *steering, *_numbers(module))))
            for part in _CONTENTS:
                self._watch(path, part, own[part])
        else:
            self._watch(path, "", own)
        for table in (module._parameters, module._buffers):
            absent = [name for name, tensor in table.items() if tensor is None]
            self._absent += absent
            self._without += [table] * len(absent)
        name = next((name for name, parameter in module._parameters.items() if parameter is not None), None)
        if name is not None:
            self._typed.append(module._parameters)
            self._typed_names.append(name)
        hooks = [hook for part in _HOOKS for hook in own[part].values()]
        if not is_root and self.hooked is None and not all(map(_transparent, hooks)):
            self.hooked = f"{path} has forward hooks"
        if self.hooked is None and _keeps_state(own):
            self.hooked = f"{path or 'it'} has a hook of diffusers' that keeps state from step to step"

    def _watch(self, path: str, part: str, now: dict[str, Any]) -> None:
        self._places.append((path, part))
        self._now.append(now)
        self._then.append(dict(now) if part else _snapshot(now))

    def changed(self, module: torch.nn.Module | None = None) -> str | None:
        """What changed since the trace, in words, or None. ``module``: what should be the root, if that is asked too."""
        if module is not None and self._root() is not module:
            return "another module is in its place"
        if change := self._classes.changed() or self._closures.changed() or self._objects.changed():
            return change
        if not self._glance.same():
            for (path, part), now, then in zip(self._places, self._now, self._then, strict=True):
                if change := _part_change(path, part, now, then) if part else _module_change(path, now, then):
                    return change
                then.clear()  # what is different doesn't matter: take it over, so that the next call is quick again
                then.update(now if part else _snapshot(now))
            if (leaves := self._leaves_now()) != self._leaf_state:
                changed = next(index for index, state in enumerate(leaves) if state != self._leaf_state[index])
                path, own, names = self._leaves[changed]
                name = next(name for name, was in zip(names, self._leaf_state[changed], strict=True) if _steered(own, name) != was)
                return f"{path}.{name} changed"
            self._glance = self._look()
        if self._dtypes_now() != self._dtypes:
            return "the dtype of a weight changed"
        came = map(operator.is_not, map(dict.get, self._without, self._absent), itertools.repeat(None))
        if new := next(itertools.compress(self._absent, came), None):
            return f"a layer that had no {new} has one"
        root = self._root()
        return None if root is None else _attribute_change("", _of_root(root.__dict__), self._attributes)

    def _look(self) -> _Glance:
        return _Glance(self._now, self._then, [(own, name) for _, own, names in self._leaves for name in names])

    def _leaves_now(self) -> list[tuple[Any, ...]]:
        return [tuple(_steered(own, name) for name in names) for _, own, names in self._leaves]

    def _dtypes_now(self) -> list[torch.dtype | None]:
        weights = map(dict.get, self._typed, self._typed_names)
        return [None if weight is None else weight.dtype for weight in weights]


class _Glance:
    """Everything that is watched, in flat lists that C compares: which objects are there, which values, and how many of each.

    Args:
        now: the dicts that are watched: modules' own, and parts of such.
        then: copies of them.
        leaves: the own dicts of plain layers, of which the parts are among ``now``, each with the name of one thing in it.
    """

    def __init__(self, now: list[dict[str, Any]], then: list[dict[str, Any]], leaves: list[tuple[dict[str, Any], str]]) -> None:
        sized = [table for own in now for table in (own, *_parts(own))]
        self._empty = [table for table in sized if not table]  # most are, and this asks for nothing but that
        self._sized = [table for table in sized if table]
        self._sizes = list(map(len, self._sized))
        self._objects = Places([*leaves, *(place for own in now for place in _objects(own))])
        values = [(own, name, before[name]) for own, before in zip(now, then, strict=True) for name in own if _by_value(own, name)]
        self._values, self._copies = Places((own, name) for own, name, _ in values), [value for _, _, value in values]

    def same(self) -> bool:
        """Whether nothing is different."""
        return (
            not any(self._empty)
            and list(map(len, self._sized)) == self._sizes
            and self._objects.same()
            and equal(self._values.now(), self._copies)
        )


@dataclass(frozen=True, eq=False)
class _This:
    """An object that only itself is equal to: one function bound twice to one layer may read other attributes the second time."""

    what: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _This) and other.what is self.what


def _numbers(layer: torch.nn.Module) -> list[str]:
    """The names of the numbers that a class derived from a plain layer's may compute with, its own and those of its layers."""
    spaces = [vars(cls) for cls in type(layer).__mro__ if not cls.__module__.startswith("torch.")]
    tables = [layer.__dict__, *spaces] if spaces[:-1] else []  # the last is object's
    return list(dict.fromkeys(name for table in tables for name in table if type(table[name]) in (int, float) and not name.startswith("_")))


def _steered(own: dict[str, Any], name: str) -> Any:
    """What steers a plain layer by that name, to be compared with what did so before."""
    value = own.get(name)
    return _This(value) if name == "_conv_forward" else list(value) if isinstance(value, list) else value


def _parts(own: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The watched dicts inside a module's own; none where ``own`` is such a part."""
    return (own[part] for part in _CONTENTS if part in own)


def _objects(own: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Where objects are that must stay the very same."""
    if "_modules" not in own:
        yield from ((own, name) for name in own)
        return
    yield own, "forward"
    yield from ((own, name) for name, value in own.items() if _watched(name, value) and not _by_value(own, name))
    for part in _parts(own):
        yield from ((part, name) for name in part)


def _by_value(own: dict[str, Any], name: str) -> bool:
    """Whether an attribute of a module is compared by its value."""
    return "_modules" in own and _watched(name, own[name]) and isinstance(own[name], (*SIMPLE, *CONTAINERS))


def _watched(name: str, value: Any) -> bool:
    """Whether an attribute counts: a public one, or one that is code (a block's ``_forward``). ``forward`` itself is looked at apart."""
    return name in _PRIVATE or (name != "forward" and (not name.startswith("_") or isinstance(value, FUNCTIONS)))


def _of_root(own: dict[str, Any]) -> dict[str, Any]:
    """The attributes that count of the root's."""
    return {name: value for name, value in own.items() if name != "_forward" and _watched(name, value)}


def _snapshot(own: dict[str, Any]) -> dict[str, Any]:
    """A copy of a module's dict that stays as it is when the module changes what is in a watched container."""
    then = dict(own)
    for name, value in own.items():
        if name in _CONTENTS:
            then[name] = dict(value)
        elif isinstance(value, CONTAINERS) and _watched(name, value) and plain(value):
            then[name] = copy.deepcopy(value)
    return then


def _keeps_state(own: dict[str, Any]) -> bool:
    """Whether diffusers has put a cache around this module: what that computes depends on the steps before, not on the arguments alone."""
    hooks = getattr(own.get("_diffusers_hook"), "hooks", None)
    return isinstance(hooks, dict) and any(getattr(hook, "_is_stateful", False) for hook in hooks.values())


def _transparent(hook: Any) -> bool:
    return getattr(hook, "__module__", None) in _TRANSPARENT


def _module_change(path: str, now: dict[str, Any], then: dict[str, Any]) -> str | None:
    for part in _CONTENTS:
        if change := _part_change(path, part, now[part], then[part]):
            return change
    if now.get("forward") is not then.get("forward"):
        return f"{path}.forward changed"
    return _attribute_change(f"{path}.", now, then)


def _part_change(path: str, part: str, now: dict[str, Any], then: dict[str, Any]) -> str | None:
    different = [key for key in {**then, **now} if now.get(key) is not then.get(key)]
    if part == "_modules":
        if now.keys() != then.keys():
            return f"{path or 'the module'} has other children"
        return f"{path}.{different[0]} was replaced" if different else None
    hooks = [table[key] for key in different for table in (now, then) if key in table]
    return None if all(map(_transparent, hooks)) else f"the forward hooks of {path} changed"


def _attribute_change(prefix: str, now: dict[str, Any], then: dict[str, Any]) -> str | None:
    for name in {**then, **now}:
        after, before = now.get(name), then.get(name)
        if (_watched(name, after) or _watched(name, before)) and not unchanged(after, before):
            return f"{prefix}{name} changed"
    return None
