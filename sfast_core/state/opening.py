"""Takes a call's caches apart into values that can be part of a signature, rebuilds them for a recorded call, and finds
what the call has left in them.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch.utils import _pytree

from ..capture import CaptureError, Region, apart
from ..reporting.reasons.calls import NOT_KEYED
from .recipe import Computed, Constant, Given, Known, Making, New, Outcome, Recipe, Row, Table, Within

_CACHES = "transformers.cache_utils"  #: the module whose classes are caches
_PLAIN = (type(None), bool, int, float, str)
_CONSTANT = (torch.dtype, torch.device, torch.Size, type, FunctionType, BuiltinFunctionType, functools.partial)
_UNDERSTOOD = (torch.Tensor, tuple, list, dict, *_PLAIN, *_CONSTANT)  #: what a cache may hold besides caches


def is_cache(value: Any) -> bool:
    """Whether a value is one of transformers' caches, or a layer of one."""
    return any(base.__module__ == _CACHES for base in type(value).__mro__[:-1])


class Constants:
    """Numbers values, so that a number can stand for one in a signature: by value where values compare, else by
    identity.
    """

    def __init__(self) -> None:
        self._values: list[Any] = []
        self._numbers: dict[Hashable, int] = {}

    def __getitem__(self, number: int) -> Any:
        return self._values[number]

    def number(self, value: Any) -> int:
        """The number of this value, which is kept alive."""
        if isinstance(value, Outcome):
            number = next(
                (number for number, known in enumerate(self._values) if isinstance(known, Outcome) and known == value),
                len(self._values),
            )
        else:
            key = (type(value), value if isinstance(value, (torch.dtype, torch.device, torch.Size)) else id(value))
            number = self._numbers.setdefault(key, len(self._values))
        if number == len(self._values):
            self._values.append(value)
        return number


class _Object(tuple[Any, ...]):
    """In a signature, stands for an object: the number of its class, and its attributes."""


class _Again(tuple[int]):
    """In a signature, stands for the object or container of this number, which occurred before."""


class _Constant(tuple[int]):
    """In a signature, stands for the constant of this number."""


class Opening:
    """A call's own caches, and the lists and dicts among its arguments.

    Attributes:
        objects: all of them, each once, in the order in which they are found.
        given: the tensors in them, likewise.
    """

    def __init__(self, constants: Constants) -> None:
        self._constants = constants
        self.objects: list[Any] = []
        self.given: list[torch.Tensor] = []
        self._numbers: dict[int, int] = {}
        self._tensors: set[int] = set()

    @property
    def caches(self) -> frozenset[type]:
        """The classes of the objects."""
        return frozenset(type(each) for each in self.objects if not isinstance(each, (list, dict)))

    def of(self, value: Any, name: str, inside: bool = False) -> Any:
        """A value in the form in which it is part of a signature.

        Args:
            value: the value.
            name: where it was found, for errors.
            inside: whether it was found in an object or a container.

        Raises:
            CaptureError: a cache holds what isn't understood.
        """
        kind = type(value)
        if kind in _PLAIN:  # as most are
            return value
        if isinstance(value, torch.Tensor):
            if inside and id(value) not in self._tensors:
                self._tensors.add(id(value))
                self.given.append(value)
            return value
        if kind is tuple:
            return tuple([self.of(item, name, inside) for item in value])
        if kind not in (list, dict) and not is_cache(value):
            if not inside or isinstance(value, _PLAIN) or not isinstance(value, _CONSTANT):
                return value
            return _Constant((self._constants.number(value),))
        if id(value) in self._numbers:
            return _Again((self._numbers[id(value)],))
        self._numbers[id(value)] = len(self.objects)
        self.objects.append(value)
        if kind is list:
            return [self.of(item, name, True) for item in value]
        if kind is dict:
            return {key: self.of(item, name, True) for key, item in value.items()}
        return _Object((self._constants.number(kind), self._attributes(value, name)))

    def _attributes(self, cache: Any, name: str) -> dict[str, Any]:
        found = {}
        for key, value in _table(cache, name).items():
            if not (isinstance(value, _UNDERSTOOD) or is_cache(value)):
                raise CaptureError(NOT_KEYED(place=name, kind=f"{type(value).__name__} in its {key}"))
            found[key] = self.of(value, name, True)
        return found

    def refuse_overlaps(self) -> None:
        """A write to one tensor is a write to another where they have elements in common, which none sees that gets
        copies.

        Raises:
            CaptureError: two have.
        """
        lie = [tensor for tensor in self.given if tensor.layout is torch.strided]
        memory = [tensor.untyped_storage()._cdata for tensor in lie]
        if len(set(memory)) == len(memory):  # nearly always
            return
        for number, tensor in enumerate(lie):
            for other in range(number):
                if memory[other] == memory[number] and not apart(Region.of(tensor), Region.of(lie[other])):
                    raise CaptureError("two tensors of a cache have elements in common")


class Standing:
    """The caches that a recorded call gets: new objects of the same classes, whose tensors it may write to."""

    def __init__(self, constants: Constants) -> None:
        self._constants = constants
        self._objects: list[Any] = []
        self._given: list[torch.Tensor] = []
        self._versions: list[int] = []
        self._lies_alike: list[bool] = []
        self._sizes: dict[tuple[int, str], Any] = {}
        self._copies: dict[int, torch.Tensor] = {}

    def of(self, value: Any, inside: bool = False) -> Any:
        """The value that a part of a signature stands for."""
        if isinstance(value, torch.Tensor):
            return self._copy(value) if inside else value
        kind = type(value)
        if kind is tuple:
            return tuple([self.of(item, inside) for item in value])
        if kind is _Again:
            return self._objects[value[0]]
        if kind is _Constant:
            return self._constants[value[0]]
        if kind is list:
            row: list[Any] = []
            self._objects.append(row)
            row += [self.of(item, True) for item in value]
            return row
        if kind is dict:
            table: dict[Any, Any] = {}
            self._objects.append(table)
            table.update((key, self.of(item, True)) for key, item in value.items())
            return table
        if kind is not _Object:
            return value
        cls = self._constants[value[0]]
        made: Any = object.__new__(cls)
        self._objects.append(made)
        vars(made).update((key, self.of(item, True)) for key, item in value[1].items())
        self._sizes.update(_sizes(made))
        return made

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        copy = self._copies.get(id(tensor))
        if copy is None:
            with torch.inference_mode(False), torch.no_grad():  # of others it can't be told whether they are written to
                copy = self._copies[id(tensor)] = tensor.clone()
            self._given.append(copy)
            self._lies_alike.append(copy.stride() == tensor.stride())
            self._versions.append(copy._version)
        return copy

    def outcome(self, result: Any) -> tuple[Outcome, list[torch.Tensor]]:
        """What the call has left, and the tensors that this is made of.

        Raises:
            CaptureError: the result or a cache holds what isn't understood.
        """
        return self._outcome(result, _Finding(self._objects, self._given, self._versions, self._lies_alike))

    def leave(self, result: Any, opening: Opening) -> Any:
        """Bring the caller's own objects to where the call has left these, which is done for this call alone: what
        isn't understood is what it is. Returns the call's result.
        """
        finding = _FindingAny(self._objects, self._given, self._versions, self._lies_alike)
        outcome, tensors = self._outcome(result, finding)
        with torch._C.DisableTorchFunction():
            left = outcome.apply(Making(tensors, opening.objects, opening.given))
        of_caller = zip((*self._objects, *self._given), (*opening.objects, *opening.given), strict=True)
        _hand_over(finding.unknown, {id(mine): theirs for mine, theirs in of_caller})
        return left

    def hand_over(self, module: torch.nn.Module, opening: Opening) -> bool:
        """Have a module that keeps one of these by now keep the caller's own. Whether it does."""
        of_caller = {id(mine): theirs for mine, theirs in zip(self._objects, opening.objects, strict=True)}
        return _hand_over([vars(below) for below in module.modules()], of_caller, (list, dict))

    def _outcome(self, result: Any, finding: _Finding) -> tuple[Outcome, list[torch.Tensor]]:
        with torch._C.DisableTorchFunction():  # a recorder is at work
            states = tuple([finding.content(each) for each in self._objects])
            leaves, tree = _pytree.tree_flatten(result, is_leaf=finding.is_leaf)
            found = tuple([finding.of(leaf, "the result") for leaf in leaves])
        return Outcome(tree, found, states, self._grown()), finding.tensors

    def _grown(self) -> frozenset[str]:
        now = {place: size for each in self._objects if is_cache(each) for place, size in _sizes(each).items()}
        return frozenset(place[1] for place, size in self._sizes.items() if place in now and now[place] != size)


class _Finding:
    """Finds the recipes for what a recorded call leaves."""

    def __init__(
        self, objects: list[Any], given: list[torch.Tensor], versions: list[int], lies_alike: list[bool]
    ) -> None:
        self.tensors: list[torch.Tensor] = []
        self._known = {id(each): number for number, each in enumerate(objects)}
        self._given = {id(tensor): number for number, tensor in enumerate(given)}
        self._versions = versions
        self._bases = [tensor for tensor, alike in zip(given, lies_alike, strict=True) if alike]
        self._computed: dict[int, Recipe] = {}
        self._made: dict[int, int] = {}

    def is_leaf(self, value: Any) -> bool:
        """Whether a part of the result isn't taken apart further."""
        return id(value) in self._known or is_cache(value)

    def content(self, target: Any) -> Recipe:
        """The recipe for what an object or a container holds now."""
        name = f"a {type(target).__name__}"
        if isinstance(target, list):
            return Row(list, tuple([self.of(item, name) for item in target]))
        table = target if isinstance(target, dict) else _table(target, name)
        return Table(tuple([(key, self.of(item, name)) for key, item in table.items()]))

    def of(self, value: Any, name: str) -> Recipe:
        """The recipe for one value."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if id(value) in self._known:
            return Known(self._known[id(value)])
        if isinstance(value, _PLAIN) or (name != "the result" and isinstance(value, _CONSTANT)):
            return Constant(value)
        if type(value) is tuple:
            return Row(tuple, tuple([self.of(item, name) for item in value]))
        if is_cache(value):
            number = self._made.setdefault(id(value), len(self._made))
            return New(type(value), number, None if number < len(self._made) - 1 else self._inside(value))
        if type(value) not in (list, dict) or id(value) in self._made:
            return self._unknown(value, f"{name} holds a {type(value).__name__}")
        self._made[id(value)] = len(self._made)
        return self.content(value)

    def _unknown(self, value: Any, why: str) -> Recipe:
        """What isn't understood, or comes again."""
        raise CaptureError(f"{why} twice" if id(value) in self._made else why)

    def _inside(self, cache: Any) -> Table:
        content = self.content(cache)
        assert isinstance(content, Table)
        return content

    def _tensor(self, tensor: torch.Tensor) -> Recipe:
        recipe = self._computed.get(id(tensor))
        if recipe is None:
            number = self._given.get(id(tensor))
            if number is None and (within := self._within(tensor)) is not None:
                self._computed[id(tensor)] = within
                return within
            if number is not None and tensor._version == self._versions[number]:
                recipe = Given(number)
            else:
                recipe = Computed(len(self.tensors)) if number is None else Given(number, len(self.tensors))
                self.tensors.append(tensor)
                if number is None and _is_plain(tensor) and tensor.is_contiguous():
                    self._bases.append(tensor)
            self._computed[id(tensor)] = recipe
        return recipe

    def _within(self, tensor: torch.Tensor) -> Within | None:
        """The recipe for a view of a tensor that is known already."""
        if not _is_plain(tensor):
            return None
        for base in self._bases:
            if (
                base.dtype == tensor.dtype
                and _is_plain(base)
                and base.untyped_storage()._cdata == tensor.untyped_storage()._cdata
            ):
                offset = tensor.storage_offset() - base.storage_offset()
                last = offset + sum(
                    (count - 1) * step for count, step in zip(tensor.shape, tensor.stride(), strict=True)
                )
                of = self._tensor(base)
                if 0 <= offset and last < base.numel() and isinstance(of, (Given, Computed)):
                    return Within(of, tuple(tensor.shape), tensor.stride(), offset)
        return None


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is no more than a region of memory."""
    return tensor.layout is torch.strided and not (tensor.is_conj() or tensor.is_neg() or tensor.numel() == 0)


class _FindingAny(_Finding):
    """For one call alone."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.unknown: list[Any] = []

    def _unknown(self, value: Any, why: str) -> Recipe:
        self.unknown.append(value)
        return Constant(value)


def _hand_over(objects: list[Any], of_caller: dict[int, Any], into: tuple[type, ...] = (object,)) -> bool:
    """Have objects that hold what a call was given, or hold objects of these classes that do, hold what is the caller's
    in its place. Whether some do.
    """
    found = False
    seen: set[int] = set()
    for each in objects:
        table = each if isinstance(each, (list, dict)) else getattr(each, "__dict__", None)
        if id(each) in seen or not isinstance(table, (list, dict)):
            continue
        seen.add(id(each))
        for key, value in list(table.items()) if isinstance(table, dict) else enumerate(table):
            if id(value) in of_caller:
                table[key], found = of_caller[id(value)], True
            elif isinstance(value, into) and not isinstance(value, (torch.nn.Module, type)):
                objects.append(value)
    return found


def size_of(value: Any) -> Any:
    """A tensor's shape, or an integer, which may be a count; None for anything else."""
    return value.shape if isinstance(value, torch.Tensor) else value if type(value) is int else None


def _sizes(cache: Any) -> dict[tuple[int, str], Any]:
    return {(id(cache), key): size for key, value in vars(cache).items() if (size := size_of(value)) is not None}


def _table(cache: Any, name: str) -> dict[str, Any]:
    table = getattr(cache, "__dict__", None)
    if type(table) is not dict:
        raise CaptureError(f"{name} is a {type(cache).__name__} without attributes of its own")
    return table
