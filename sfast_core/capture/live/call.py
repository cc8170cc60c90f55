"""What a graph calls for code that runs live: it is handed copies of the program's tensors and this call's own
options.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from sys import getrefcount
from typing import Any, Protocol

import torch

from ..call_tensors import Given, Slot
from ..errors import AnotherStructure
from ..rebuilding import rebuilt
from ..torch_state import changed_setting, torch_state
from .aliases import Alias, aliases_of
from .contents import outlines
from .form import Form, copies
from .kept import Holders, among
from .lent import Handing, Lent, Ref, Written, references, referred_to, version_of
from .modules import InModule, contents, new_items
from .own import Own, OwnMethod
from .structure import Pattern, Structure, match
from .surroundings import Surroundings
from .template import Filling, Template

Body = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
Bring = Callable[[], AbstractContextManager[None]]  # weights are there while what it returns is entered


class Where(Protocol):
    """Which live code it is."""

    @property
    def name(self) -> str: ...

    @property
    def key(self) -> Hashable: ...

    def find(self, around: Surroundings) -> Callable[..., Any]: ...


@dataclass(eq=False)
class Recalled:
    """One way in which live code called a function of the model's own: a graph of its own.

    Attributes:
        key: how its arguments were built.
        graph: placeholders for the arguments' tensors, then for values of the graph around it, and weights.
        given: the recorded arguments' tensors.
        forms: of these.
        result: with the indices of the graph's outputs (:class:`Slot`), or of arguments that are handed back
            (:class:`Given`), in it.
        out_forms: of the outputs.
        written: arguments that the function writes to, each an output behind the result's.
        outer: for each of those values, which of the live call's it is.
        numbers: which of the model's tensors the arguments' are, and which of its values are in them.
        expected: what the recorded function returned and wrote.
    """

    key: Hashable
    graph: Any
    given: list[torch.Tensor]
    forms: tuple[Form, ...]
    result: Any
    out_forms: tuple[Form, ...]
    written: tuple[int, ...]
    outer: tuple[int, ...] = ()
    numbers: tuple[tuple[int, int], ...] = ()
    expected: list[torch.Tensor] = field(default_factory=list)


@dataclass(eq=False, repr=False)
class LiveCall:
    """One live call of a program; calling conventions of a graph's node: ``target(handed, outer)``.

    Attributes:
        where: what is called.
        arguments: of it.
        handing: which tensors it is handed.
        pattern: how its result is built.
        used: its results that the model uses.
        out_forms: of the result's tensors.
        written: handed tensors that it writes to, as the model can see: results behind the others.
        watched: handed tensors that the model uses later, or that were there before the call, and to which it didn't
            write.
        aliases: of what each tensor of its result was one.
        placed: whether that is to be so again: something is written to these tensors, or to what was handed over.
        kept: places of the result whose tensors somebody else held; likewise of what it was handed, as ``~index``.
        taken: those whose tensors the model writes to later, or returns: nobody else may hold these.
        callbacks: the ways in which it called each function of the model's own.
        own: these functions, as far as they can be made at another call.
        handed: the recorded call's, for the proof; None in the place of those that were too much to keep.
        returned: likewise what it returned and wrote.
        left: plain values that a module puts into the model's own dicts, by the dict's number and key, with their
            classes.
        leaves: of anything else, what it leaves in the model's own containers, in outline, by the container's number.
        repeatable: it gives the same for the same, and leaves nothing behind.
        brought: what was there around it, by which it finds its weights on the device.
    """

    where: Where
    arguments: Template
    handing: Handing
    pattern: Pattern
    out_forms: tuple[Form, ...]
    written: tuple[int, ...]
    used: frozenset[int] = frozenset()
    watched: frozenset[int] = frozenset()
    aliases: tuple[Alias, ...] = ()
    placed: bool = False
    kept: frozenset[int] = frozenset()
    taken: frozenset[int] = frozenset()
    callbacks: list[list[Recalled]] = field(default_factory=list)
    own: Sequence[Own | OwnMethod | None] = ()
    handed: list[torch.Tensor | None] = field(default_factory=list)
    returned: list[torch.Tensor] = field(default_factory=list)
    left: dict[int, dict[Any, tuple[type, Any]]] = field(default_factory=dict)
    leaves: dict[int, Hashable] = field(default_factory=dict)
    repeatable: bool = False
    brought: tuple[Bring, ...] = ()

    def __post_init__(self) -> None:
        self.bytes = sum(math.prod(form.shape) * form.dtype.itemsize for form in self.out_forms)

    @property
    def __name__(self) -> str:
        return "live_call"

    def __call__(self, handed: Sequence[torch.Tensor], outer: Sequence[torch.Tensor]) -> Any:
        """A graph's nodes call something: this is run by :meth:`run` alone."""
        raise NotImplementedError(f"{self.where.name} is run between segments")

    @property
    def live(self) -> bool:
        """Not to be captured, moved, shared or dropped."""
        return True

    def _written(self, handed: Sequence[torch.Tensor], changed: Sequence[int]) -> set[int]:
        """Which of these tensors may have been written to: one of inference mode doesn't tell."""
        return {*changed, *(index for index in self.written if handed[index].is_inference())}

    def _held_anyway(self, handed: Sequence[torch.Tensor], found: Sequence[torch.Tensor | None]) -> set[int]:
        """The ids of those of these tensors that are the very ones, or that somebody holds."""
        own = {id(handed[~place] if place < 0 else found[place]) for place in self.kept}
        return own.union(id(handed[index]) for index in self.handing.very)

    def forget_recorded(self) -> None:
        """Let go of the recorded call's tensors: it is proved, or never will be."""
        self.handed, self.returned = [], []
        for ways in self.callbacks:
            for way in ways:
                way.given, way.expected = [], []

    def run(
        self, given: Sequence[torch.Tensor], bodies: Callable[[int, int], Body], around: Surroundings
    ) -> list[torch.Tensor]:
        """Run it.

        Args:
            given: the program's tensors that it is handed copies of.
            bodies: runs the graph of a callback: by its number, and the way in which it is called.
            around: the call's own things.

        Returns:
            its result's tensors, and what it wrote, in whatever strides.

        Raises:
            AnotherStructure: it returns something built otherwise, writes elsewhere, calls back otherwise, or changes
                what the program rests on.
        """
        handed = self.handing.hand(given, around)
        called = (
            [_Callback(self, number, bodies, around) for number in range(len(self.callbacks))] if self.callbacks else ()
        )
        filling = Filling(handed, around, called)
        args, kwargs = self.arguments.fill(filling)
        for callback in called:
            callback.filling = filling
        versions, before = [version_of(tensor) for tensor in handed], around.contents((args, kwargs))
        meanwhile, referred = Written(around.watched), list(map(references, handed))
        counts = list(map(getrefcount, handed))
        of_module = isinstance(self.where, InModule)
        boxes = {number: contents(box) for number, box in around.boxes.items()} if of_module else {}
        settings, holders = around.settings or torch_state(), Holders(handed) if self.taken else None
        error: Exception | None = None
        box: list[Any] = [None]
        before_it = None if around.ran is None else len(around.ran)
        try:
            with ExitStack() as stack:
                for bring in self.brought:
                    stack.enter_context(bring())
                box[0] = around.run(self.where.find(around), args, kwargs)
        except torch.cuda.OutOfMemoryError:  # there may be room without our graphs: then it runs once more
            raise
        except Exception as raised:
            error = raised
        kept = frozenset[int]() if holders is None else holders.kept(box)
        result = box[0]
        left = [content.left() for content in before]
        changed = [index for index, tensor in enumerate(handed) if version_of(tensor) != versions[index]]
        taken_back = self.handing.taken_back(changed, around)
        written = [(handed[index], taken_back.get(index, handed[index])) for index in self._written(handed, changed)]
        late = [(tensor, tensor.detach().clone()) for tensor in meanwhile.beside(handed)]
        if around.ran is not None:
            del around.ran[before_it:]  # where it is given back, what ran in the model's functions isn't reached
        around.note_ran(self.where, (args, kwargs), result, handed, written, self.bytes, left, kept, error, late)
        if error is not None:
            try:
                raise error
            finally:
                error = None  # its traceback leads back here
        if any(callback.otherwise for callback in called):
            raise AnotherStructure(f"{self.where.name} calls the model back otherwise")
        if any(new_items(around.boxes[number], then) != self.left.get(number, {}) for number, then in boxes.items()):
            raise AnotherStructure(f"{self.where.name} changes what it is handed")
        around.settings = torch_state()
        if (setting := changed_setting(around.settings, settings)) is not None:
            raise AnotherStructure(f"{self.where.name} changes PyTorch's setting {setting!r}")
        around.look_around(self.where.name)
        if not of_module and (any(left) or self.leaves) and outlines(before, left, around) != self.leaves:
            raise AnotherStructure(f"{self.where.name} leaves something else in what it is handed")
        count = len(self.out_forms) - len(self.written)
        found: list[Any] = [None] * count
        if not match(self.pattern, result, self.used, found):
            raise AnotherStructure(f"{self.where.name} returns something built otherwise")
        if self.placed and any(
            tensor is not None and now != then
            for tensor, now, then in zip(found, aliases_of(found, handed), self.aliases, strict=True)
        ):
            raise AnotherStructure(f"{self.where.name} returns something that lies elsewhere")
        if any(among(handed[~place] if place < 0 else found[place], kept) for place in self.taken):
            raise AnotherStructure(f"{self.where.name} keeps what the model changes, which it didn't before")
        if taken_back or not self.watched.isdisjoint(changed):
            raise AnotherStructure(f"{self.where.name} writes to what it is handed, which it didn't before")
        if late:
            raise AnotherStructure(f"{self.where.name} writes to what was handed over before")
        if referred_to(handed, referred, found, self._held_anyway(handed, found)):
            raise AnotherStructure(f"{self.where.name} refers weakly to what it is handed, or returns")
        self.handing.keep(handed, found, around)
        if around.watched:
            around.watched = [ref for ref in around.watched if ref() is not None]
        # what somebody may have kept
        held = [index for index in self.watched if getrefcount(handed[index]) > counts[index]]
        around.watched += [Ref(handed[index]) for index in held if index not in self.handing.very]
        by_us = 5 if type(result) is torch.Tensor else 4
        around.watched += [Ref(tensor) for tensor in found if tensor is not None and getrefcount(tensor) > by_us]
        return [*found, *(handed[index] for index in self.written)]


class _Callback:
    """A function of the model's own, as live code gets it.

    Attributes:
        filling: what the live code's arguments were made of.
        otherwise: it was called in a way that wasn't recorded, and ran as it is: the original forward finishes the
            call, so that the next one is recorded. Code that keeps a state runs once all the same.
    """

    filling: Filling
    otherwise = False

    def __init__(self, call: LiveCall, number: int, bodies: Callable[[int, int], Body], around: Surroundings) -> None:
        self._call, self._number, self._bodies, self._around = call, number, bodies, around

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        structure = Structure((args, kwargs), self._around)
        ways = self._call.callbacks[self._number]
        way = next((index for index, way in enumerate(ways) if way.key == structure.key), None)
        if self._around.settle is not None:
            self._around.settle()
        if way is None:
            if (own := self._call.own[self._number]) is None:
                raise AnotherStructure(f"{self._call.where.name} calls the model back otherwise")
            self.otherwise = True
            return own.run(self.filling, args, kwargs)
        recalled = ways[way]
        start = time.perf_counter()
        for tensor, (number, value) in zip(structure.tensors, recalled.numbers, strict=True):
            self._around.lent[number] = Lent(tensor, value)
        settings, self._around.settings = self._around.settings, None
        outputs = list(self._bodies(self._number, way)(structure.tensors))
        self._around.settings = settings
        self._around.seconds -= time.perf_counter() - start
        count = len(outputs) - len(recalled.written)
        for index, output in zip(recalled.written, outputs[count:], strict=True):
            structure.tensors[index].copy_(output)
        made = copies(recalled.out_forms[:count], outputs[:count])

        def replace(value: Any, key: Any) -> Any:
            if isinstance(value, Slot):
                return made[value.index]
            if isinstance(value, Given):
                return structure.tensors[value.index]
            return value.fill(Filling((), self._around)) if isinstance(value, Template) else value

        return rebuilt(recalled.result, replace)
