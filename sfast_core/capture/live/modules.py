"""Modules and functions that run live, as code of others does: those in which something happens that no record can
hold.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..guards import CALLS_A_MODULE, Guard, code_of
from ..leaf import run_as_they_are
from .functions import InTable, found_as_live
from .left_out import LeftOut
from .surroundings import Surroundings

_FIRST_LOOK, _LAST_LOOK = 8, 1024  # calls
#: Names of functions that draw random numbers: which of them did is known when the call is over.
DRAWING = frozenset(
    "rand randn randint randperm rand_like randn_like randint_like normal normal_ uniform_ random_ bernoulli bernoulli_"
    " multinomial poisson exponential_ cauchy_ log_normal_ geometric_ dropout alpha_dropout feature_dropout dropout1d"
    " dropout2d dropout3d rrelu native_dropout gumbel_softmax".split()
)

_PLAIN = frozenset({bool, int, float, str, type(None)})
_SEQUENCES = frozenset({list, tuple, torch.Size})


def draws(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of a function among these draws: a dropout does while its module is trained."""
    return "dropout" not in name or bool(kwargs.get("training", args[2] if len(args) > 2 else True))


@dataclass(frozen=True)
class InModule:
    """A module that runs live."""

    path: str
    kind: str
    reason: str

    @property
    def key(self) -> tuple[str, str]:
        return ("module", self.path)

    @property
    def name(self) -> str:
        """Which module it is and why it runs live, in words."""
        return f"{self.kind} {self.path} ({self.reason})"

    def find(self, around: Surroundings) -> Callable[..., Any]:
        """The module that is there now."""
        assert around.module is not None
        return around.module.get_submodule(self.path)


def contents(container: Any) -> list[tuple[Any, Any]]:
    """What is in a list or a dict, by its place."""
    return list(container.items()) if isinstance(container, dict) else list(enumerate(container))


def other_contents(now: Sequence[tuple[Any, Any]], then: Sequence[tuple[Any, Any]]) -> bool:
    """Whether a container holds something else than before, or at another place."""
    return len(now) != len(then) or any(
        one[0] != other[0] or one[1] is not other[1] for one, other in zip(now, then, strict=True)
    )


def new_items(now: Any, then: Sequence[tuple[Any, Any]]) -> dict[Any, tuple[type, Any]] | None:
    """What a dict has got since it held ``then``, by key and with its class, where that is plain values and sequences
    of such, as they are now; None where it has changed otherwise.

    Nothing for a list that has not.
    """
    if not other_contents(contents(now), then):
        return {}
    before = dict(then)
    if not isinstance(now, dict) or before.keys() - now.keys():
        return None
    new = {key: item for key, item in now.items() if key not in before or before[key] is not item}
    if not all(type(each) in _PLAIN for item in new.values() for each in items_of(item)):
        return None
    return {key: (type(item), items_of(item)) for key, item in new.items()}


def items_of(item: Any) -> tuple[Any, ...]:
    """What is in a sequence, such as the size of a block's input; anything else by itself."""
    return tuple(item) if type(item) in _SEQUENCES else (item,)


def modules_at_work() -> list[torch.nn.Module]:
    """The modules that are being called in this thread, the innermost first."""
    found: list[torch.nn.Module] = []
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is CALLS_A_MODULE and isinstance(module := frame.f_locals.get("self"), torch.nn.Module):
            found.append(module)
        frame = frame.f_back  # type: ignore[assignment]
    return found


def _kind_of(module: torch.nn.Module) -> Any:
    """What a module does that others do too: the code that was put into the place of its forward, or its class, where
    that is a model's own.

    None where it is a layer of PyTorch's, or made of one: what one of these does says nothing of the others.
    """
    if "forward" in module.__dict__:
        return code_of(module.__dict__["forward"])
    layers = (
        base
        for base in type(module).__mro__
        if base.__module__.startswith("torch.nn.modules") and base is not torch.nn.Module
    )
    return type(module) if next(layers, None) is None else None


class LiveModules:
    """Which modules of one model run live, by path, and why, and which functions that its code calls.

    It holds none of the modules.

    Attributes:
        left_out: what live code of any kind left out of the model in recordings so far.

    A module runs so from the next recorded call on, and with it those of its class, where that is one of the model's
    own: what one expert does all do. Likewise those in which the same code was put into the place of the forward.

    Args:
        apart: a table of what comes and goes from call to call: it is no cause.
    """

    def __init__(self, apart: dict[str, Any] | None = None) -> None:
        self._apart: dict[str, Any] = {} if apart is None else apart
        self.left_out = LeftOut()
        self._cut: dict[str, str] = {}
        self._functions: list[InTable] = []
        self._guards: list[Guard] = []  # of the recordings that came to nothing: what steered them
        self._referred: list[Guard] = []  # those of them that hold what others refer to weakly
        self._left = self._every = _FIRST_LOOK

    def __bool__(self) -> bool:
        return bool(self._cut or self._functions)

    def clear(self) -> None:
        """Let all modules and functions be recorded again."""
        self._end()
        self.left_out.clear()
        self._left = self._every = _FIRST_LOOK

    def _end(self) -> None:
        self._cut.clear()
        self._functions.clear()
        self._guards.clear()
        self._referred.clear()

    def over(self, root: torch.nn.Module) -> str | None:
        """What changed of that which made them run live, in words: then none does any more. None where nothing did.

        Asked at each call, and looked at once in a while: 8 calls, and twice as many each time that something has
        changed. At each call where code may ask by a weak reference whether something is still there.
        """
        if not self._guards or not self:
            return None
        self._left -= 1
        if self._left > 0 and not self._holds_the_last(root):
            return None
        self._left = self._every
        change = next((found for guard in self._guards if (found := guard.changed(root)) is not None), None)
        if change is not None:
            self._every = min(2 * self._every, _LAST_LOOK)
            self._left = self._every
            self._end()
        return change

    def let_die(self, root: torch.nn.Module) -> None:
        """As :meth:`over`, where what is held here may be the last of something to which others refer weakly."""
        if self._holds_the_last(root):
            self.over(root)

    def _holds_the_last(self, root: torch.nn.Module) -> bool:
        return any(guard.changed(root) is not None for guard in self._referred)

    def add(
        self,
        root: torch.nn.Module,
        modules: Iterable[torch.nn.Module],
        reason: str,
        guard: Guard | None,
        alone: bool = False,
    ) -> bool:
        """Let the first of these that is below ``root`` run live; whether there was one that didn't already.

        Args:
            root: the model.
            modules: of which one explains the reason, the innermost first.
            reason: in words.
            guard: tells when it may be gone.
            alone: it is that module's own, and no other's.
        """
        paths = {id(module): path for path, module in root.named_modules() if path}
        cut = next((module for module in modules if id(module) in paths), None)
        if cut is None or self._inside(paths[id(cut)]):
            return False
        kind = None if alone else _kind_of(cut)
        for path, module in root.named_modules():
            if path and (module is cut or (kind is not None and _kind_of(module) is kind)) and not self._inside(path):
                self._cut[path] = reason
        self._watch(root, guard)
        return True

    def add_function(
        self, root: torch.nn.Module, table: dict[str, Any], place: str, reason: str, guard: Guard | None
    ) -> bool:
        """Let the function run live that is in ``table`` at ``place``; whether it didn't already.

        ``guard`` tells when that may be over.
        """
        if any(each.table is table and each.place == place and each.there for each in self._functions):
            return False
        self._functions.append(InTable(table, place, table[place], reason))
        self._watch(root, guard)
        return True

    def functions(self) -> list[InTable]:
        """The functions that run live, as far as they are where they were."""
        self._functions[:] = [each for each in self._functions if each.there]
        return list(self._functions)

    def _watch(self, root: torch.nn.Module, guard: Guard | None) -> None:
        # else it would always find something
        if guard is not None and (guard := guard.apart_from(self._apart)).changed(root) is None:
            self._guards.append(guard)
            if guard.keeps_alive():
                self._referred.append(guard)

    def _inside(self, path: str) -> bool:
        return any(path == cut or path.startswith(f"{cut}.") for cut in self._cut)

    def of(self, root: torch.nn.Module) -> dict[int, InModule]:
        """The modules of this model that run live, by their ids: the outermost ones."""
        found = {}
        for path, reason in self._cut.items():
            if not any(path.startswith(f"{other}.") for other in self._cut):
                try:
                    module = root.get_submodule(path)
                except AttributeError:
                    continue
                found[id(module)] = InModule(path, type(module).__name__, reason)
        return found


def finishing(root: torch.nn.Module, around: Surroundings, eager: Callable[[], Any]) -> Callable[[], Any]:
    """Runs the original forward to finish a call: live code that has run in it already isn't run again, whatever runs
    live by now.
    """

    def finish() -> Any:
        ran = [*(each.where for each in around.ran or ()), *around.live]
        below = dict(root.named_modules())
        modules = {
            id(module): each
            for each in ran
            if isinstance(each, InModule) and (module := below.get(each.path)) is not None
        }
        functions = list({each.key: each for each in ran if isinstance(each, InTable) and each.there}.values())

        def run(
            module: torch.nn.Module, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> Any:
            return around.again(modules[id(module)].key, call, args, kwargs)

        def run_function(
            which: InTable, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> Any:
            return around.again(which.key, call, args, kwargs)

        apart = [below[each.path] for each in modules.values()]
        with run_as_they_are(apart, run), found_as_live(functions, run_function):
            result = (around.finish or eager)()
        around.finished()
        return result

    return finish
