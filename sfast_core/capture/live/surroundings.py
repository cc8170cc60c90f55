"""What a call brings along for code that runs live between its segments: its own options and functions, and what has
run so far.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ..errors import AnotherStructure
from ..fake_tensors import autocast_switched
from ..guards import Change, KeptState, Lead
from .aliases import Alias, aliases_of, given_back
from .contents import Content, Left, contents_of
from .lent import Lent, Ref, version_of

if TYPE_CHECKING:
    from ..torch_state import State
    from .call import Where
    from .options import Traced
    from .taken_in import TakenIn

Path = tuple[Any, ...]
_KEPT = 512 * 2**20  # bytes of results that are kept in case the call has to be finished by the original forward
_DEEPEST = 8
_NONE_IN = frozenset({bool, int, float, str, type(None)})  # PyTorch's isinstance takes its time


@dataclass(frozen=True)
class Attribute:
    """A step of a path that is an attribute."""

    name: str


@dataclass
class Ran:
    """One live call that is over: what it returned, and which of that lies in what it was handed, by id; what it left
    in tensors, and in containers, that it was handed, by their place, and what it was handed; what it wrote to tensors
    that others were handed; or what it raised.
    """

    where: Where
    result: Any
    aliases: dict[int, tuple[torch.Tensor, Alias]] = field(default_factory=dict)
    written: list[tuple[int, torch.Tensor]] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    handed: list[tuple[int, Ref]] = field(default_factory=list)
    kept: list[torch.Tensor] = field(default_factory=list)
    late: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()
    error: Exception | None = None


class Surroundings:
    """One call's own things.

    Args:
        options: the call's options as the caller gave them: functions, and whatever else travels along. Paths lead into
            these.
        module: the module that is called.

    Attributes:
        key: the names of the options: code that copies them all copies these.
        boxes: containers that the model makes and hands to live code, by number: one for the whole call, as in the
            recorded one.
        inputs: the call's own, as its signature numbers them.
        lent: the tensors that live code has for those of the model's that are handed on later, by their numbers.
        watched: those that the model uses later, and that live code may still have.
        settings: PyTorch's, as they were behind the last live call.
        live: what runs live in the program that is run.
        ran: the live calls that are over, in order; None where their results were too much to be kept.
        seconds: what they took, for the host's thread.
        raised: the id of what the last one raised that raised anything.
        traced: makes the options that a recorded forward gets.
        given: these, as it got them.
        settle: to be called when live code is over: it may have run the module, which lays weights out otherwise.
        another: whether live code has returned something built otherwise than in the recorded call.
        unread: options that the forward isn't expected to look for, by name.
        mentioned: those of them that the code of the recorded call mentions all the same.
        inside: the modules, the innermost first, inside which one of them was looked at that no signature can have.
        finish: runs the original forward from the start; its live calls go by :meth:`again`.
        functions: those of others among the options, by their paths.
        taken_in: knows which of these are recorded with the model's own code; None: none is.
        inside_paths: theirs.
        state: in which an earlier call of this signature found what it changed of what they keep; None: there was none.
        placed: tensors where they have read others in earlier calls, by the ways to them: inputs of this call.
        find_placed: finds these.
        inside_kinds: the names, by their kinds, of those that were recorded so in the recorded call.
        watch: says what live code has changed by now of what was read.
        set_live: what live code has changed of what the model's own code reads later, in words.
        copied: where the original forward finishes the call, copies that live code has, and what they are copies of.
        touched: the option that such a function has just looked at, and that its trace can't have.
    """

    def __init__(self, options: Mapping[str, Any] | None = None, module: torch.nn.Module | None = None) -> None:
        self.options = options or {}
        self.key: Hashable = frozenset(self.options) or None
        self.module = module
        self.boxes: dict[int, Any] = {}
        self.inputs: Sequence[torch.Tensor] | None = None
        self.lent: dict[int, Lent] = {}
        self.watched: list[Ref] = []
        self.settings: State | None = None
        self.live: Sequence[Where] = ()
        self.ran: list[Ran] | None = []
        self.seconds = 0.0
        self.raised: int | None = None  # not the error itself: its traceback leads back here
        self.traced: Traced | None = None
        self.given: Any = None
        self.finish: Callable[[], Any] | None = None
        self.settle: Callable[[], None] | None = None
        self.another = False
        self.unread: frozenset[str] = frozenset()
        self.mentioned: set[str] = set()
        self.inside: list[torch.nn.Module] = []
        self.functions: dict[Path, Any] = {}
        self.taken_in: TakenIn | None = None
        self.inside_paths: frozenset[Path] = frozenset()
        self.state: KeptState | None = None
        self.placed: Mapping[Lead, torch.Tensor] = {}
        self.find_placed: Callable[[], Mapping[Lead, torch.Tensor]] = dict
        self.inside_kinds: dict[Any, str] = {}
        self.watch: Callable[[], Change | None] | None = None
        self.set_live: str | None = None
        self.touched: str | None = None
        self.copied: list[tuple[Ref, torch.Tensor]] = []
        self._lasting: list[torch.Tensor] = []
        self._kept = 0
        self._found: dict[Path, Any] = {}
        self._paths: dict[int, Path] | None = None
        self._grad = torch.is_grad_enabled()
        self._autocast = list(filter(torch.is_autocast_enabled, ("cuda", "cpu")))

    def afresh(self) -> Surroundings:
        """The same call's own things, of which nothing has run yet."""
        fresh = Surroundings(self.options, self.module)
        fresh._grad, fresh._autocast = self._grad, self._autocast
        return fresh

    def close(self) -> None:
        """The call is over: let go of what leads back here."""
        self.finish = self.settle = self.traced = self.given = self.watch = None
        self.inputs = None
        self.boxes.clear()
        self.lent.clear()
        self.inside.clear()

    def at(self, path: Path) -> Any:
        """What is there now.

        Raises:
            LookupError: nothing.
        """
        found = self._found.get(path, self)
        if found is self:
            found = self.options
            for step in path:
                found = getattr(found, step.name) if isinstance(step, Attribute) else found[step]
            self._found[path] = found
        return found

    def path(self, value: Any) -> Path | None:
        """Where this very object is among the options, or None."""
        if self._paths is None:
            self._paths = {}
            self._walk(self.options, (), 0)
        return self._paths.get(id(value))

    def _walk(self, value: Any, path: Path, depth: int) -> None:
        assert self._paths is not None
        if depth:
            self._paths.setdefault(id(value), path)
        if depth == _DEEPEST or not isinstance(value, (dict, list, tuple)):
            return
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if not isinstance(item, (bool, int, str, type(None))):
                self._walk(item, (*path, key), depth + 1)

    def is_unread(self, key: Any, value: Any) -> bool:
        """Whether a plain value is that of an option that only travels along: it is another in another call."""
        if key not in self.unread or not isinstance(value, (bool, int, float, str, type(None))):
            return False
        now = self.options.get(key)
        return type(now) is type(value) and now == value

    @contextlib.contextmanager
    def as_called(self) -> Iterator[None]:
        """Gradients and autocast as they were where the call began."""
        with contextlib.ExitStack() as stack:
            if self._grad:
                stack.enter_context(torch.enable_grad())
            if self._autocast:
                stack.enter_context(autocast_switched(self._autocast, True))
            yield

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``function(*args, **kwargs)`` as the caller of this call would have run it, and timed."""
        start = time.perf_counter()
        try:
            if self._grad or self._autocast:
                with self.as_called():
                    return function(*args, **kwargs)
            return function(*args, **kwargs)
        except BaseException as error:
            self.raised = id(error)
            raise
        finally:
            self.seconds += time.perf_counter() - start

    def contents(self, args: Any) -> list[Content]:
        """What is in the containers of a live call's arguments, but for the call's own options, which are there for the
        original forward, too.
        """
        return list(contents_of(args, self))

    def note_ran(
        self,
        where: Where,
        args: Any,
        result: Any,
        handed: Sequence[torch.Tensor],
        changed: Sequence[tuple[torch.Tensor, torch.Tensor]],
        size: int,
        left: Sequence[Left] = (),
        kept: frozenset[int] = frozenset(),
        error: Exception | None = None,
        late: Sequence[tuple[torch.Tensor, torch.Tensor]] = (),
    ) -> None:
        """Note what a live call was handed, returned and left: it is over.

        Args:
            where: which one.
            args: its arguments.
            result: what it returned.
            handed: the program's tensors among its arguments.
            changed: the tensors among its arguments that it wrote to, each with what was in it then.
            size: the bytes of what it returned.
            left: what it left in the containers among its arguments.
            kept: the ids of what somebody holds by now of what it was handed.
            error: what it raised.
            late: as ``changed``, tensors that other live calls were handed.
        """
        if self.ran is None:
            return
        self._kept += size + sum(value.nbytes for _, value in (*changed, *late))
        if self._kept > _KEPT:
            self.ran = None
            return
        returned = tensors_in(result)
        lie = any(alias.handed is not None for alias in aliases_of(returned, handed))
        given = tensors_in(args) if handed or changed else []  # as they are numbered where the call is finished
        places = {id(tensor): place for place, tensor in enumerate(given)}
        aliases = zip(returned, aliases_of(returned, given), strict=True) if lie else ()
        self.ran.append(
            Ran(
                where,
                result,
                {id(tensor): (tensor, alias) for tensor, alias in aliases if alias.handed in range(len(given))},
                [(places[id(tensor)], value) for tensor, value in changed if id(tensor) in places],
                list(left),
                [(places[id(tensor)], Ref(tensor)) for tensor in handed if id(tensor) in places],
                [tensor for tensor in handed if id(tensor) in kept],
                late,
                error,
            )
        )

    def look_around(self, name: str) -> None:
        """Live code of this name is over: see whether what was read is as it was.

        Raises:
            AnotherStructure: it isn't. A function of others that reads it runs live from the next call on.
        """
        if self.watch is None or (found := self.watch()) is None:
            return
        if found.others is not None and self.taken_in is not None:
            self.taken_in.refuse([found.others], f"{name} changes {found.what}", list(self.functions.values()))
        if found.others is None and found.key is not None:
            self.set_live = found.what
        raise AnotherStructure(f"{name} changes {found.what}, which was read")

    def again(
        self, where: Hashable, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A live call of the original forward that finishes this call: what has run already isn't run again."""
        if self.ran and self.ran[0].where.key == where:
            ran = self.ran.pop(0)
            for left in ran.left:
                left.leave((args, kwargs))
            given = tensors_in((args, kwargs))  # numbered as they were behind it, with what it has left
            for place, written in ran.written:
                given[place].copy_(written)
            self.copied += [(ref, given[place]) for place, ref in ran.handed if ref() is not given[place]]
            self._lasting += ran.kept
            for tensor, value in ran.late:
                for ref, own in self.copied:
                    if ref() is tensor:
                        own.copy_(value)
            if (error := ran.error) is not None:
                ran.error = None
                try:
                    raise error
                finally:
                    error = None  # its traceback leads back here
            return given_back(ran.result, ran.aliases, given)
        if where not in self.inside_paths:  # what was recorded with the model's code has no result of its own
            self.ran = None
        return self._with_copies(function, args, kwargs) if self.copied else function(*args, **kwargs)

    def _with_copies(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Its result, where it is handed the copies that live code has by now, which may ask whether it has them."""
        pairs = [(copy, own) for ref, own in self.copied if (copy := ref()) is not None]
        copies = {id(own): copy for copy, own in pairs}
        own_of = {id(copy): own for copy, own in pairs}
        with torch.no_grad():
            for copy, own in pairs:
                copy.copy_(own)
        versions = [version_of(copy) for copy, _ in pairs]
        try:
            result = function(*exchanged(args, copies), **exchanged(kwargs, copies))
        finally:
            exchanged((args, kwargs), own_of)
            with torch.no_grad():
                for (copy, own), version in zip(pairs, versions, strict=True):
                    if version_of(copy) != version:
                        own.copy_(copy)
        return exchanged(result, own_of)

    def finished(self) -> None:
        """The original forward has finished the call: what live code keeps is as the model has it."""
        for ref, own in self.copied:
            if (copy := ref()) is not None:
                copy.copy_(own)
        self.copied.clear()
        self._lasting.clear()


def exchanged(value: Any, others: Mapping[int, torch.Tensor]) -> Any:
    """``value`` with other tensors in it, by the ids of those that are there; lists and dicts are the very ones."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        return others.get(id(value), value)
    if kind is tuple:
        return tuple([exchanged(item, others) for item in value])
    if kind in (list, dict):
        for key, item in list(value.items() if kind is dict else enumerate(value)):
            if (other := exchanged(item, others)) is not item:
                value[key] = other
    return value


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Each distinct tensor in tuples, lists and dicts, in order, as templates number them."""
    return list({id(tensor): tensor for tensor in every_tensor_in(value)}.values())


def every_tensor_in(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in a value, each as often as it is there."""
    kind = type(value)
    if kind in (tuple, list, dict):
        for item in value.values() if kind is dict else value:
            if type(item) not in _NONE_IN:
                yield from every_tensor_in(item)
    elif kind is torch.Tensor or isinstance(value, torch.Tensor):
        yield value
