"""Records calls of one module, each with what tells later whether its trace, or the reason why there is none, still
holds.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import replace
from typing import Any

import torch

from ..reporting.reason import reason_of
from ..reporting.reasons.calls import WRITES_ARGUMENTS
from ..reporting.reasons.records import LIVE_NOW, MAY_READ, NOT_READ
from .call import Call
from .errors import CaptureError
from .guards import Guard, KeptState, Reader, ReadSet, has_read, hooked_below
from .guards.containers import containers_in
from .live import Surroundings, TakenIn
from .live.modules import LiveModules
from .record import LeafScope, record
from .routed import is_mixture, why_live
from .signature import Signature
from .trace import Trace, Untraceable

_ATTEMPTS = 16  # recordings that come to nothing before a model stays as it is


class Tracer:
    """Records calls of one module. It holds neither the module nor any trace.

    Args:
        leaf_scope: a host's context around recorded calls, see :func:`record`.

    Attributes:
        live: modules that run live, since no record can hold what they do.
        taken_in: functions of others that are recorded with the model's code.
    """

    def __init__(self, leaf_scope: LeafScope | None = None) -> None:
        self._leaf_scope = leaf_scope
        self._changing: set[Hashable] = set()  # signatures whose last recorded call changed the module
        self._states: dict[Hashable, KeptState] = {}  # by signature: in which these found what they changed
        self._closed: set[type] = set()  # classes of weights that can't be recorded by their parts
        self.words: set[str] = set()  # in the code that ran in recorded calls
        self.taken_in = TakenIn()
        self.live = LiveModules(self.taken_in.there)
        self._attempts = 0
        # signatures with a reason against a trace that may pass, and functions of others in it
        self._passed: frozenset[Hashable] = frozenset()
        self._read: set[Hashable] = set()  # slots of objects among arguments of which a call has read

    def why_not(self, signature: Signature) -> str | None:
        """Why no call with this signature is recorded, or None: it has an object of which the module was seen to read
        before.
        """
        return next((found.reason for found in signature.objects if found.slot in self._read), None)

    def forget(self) -> None:
        """What was found out about earlier calls may not hold any more."""
        self._changing.clear()
        self._states.clear()
        self._passed = frozenset()
        self._closed.clear()
        self._read.clear()
        self.live.clear()
        self.taken_in.clear()
        self._attempts = 0

    def record(self, call: Call, device: torch.device) -> tuple[Any, Trace | Untraceable, Guard | None]:
        """Run a signed call once and record it.

        As :func:`record`, and a call that changes what it reads leaves no trace.

        Returns:
            the call's own result, its trace or why there is none, and how long that holds: until the guard says that
            something changed.

        Raises:
            CaptureError: a torch function failed, perhaps only because it was recorded; its error is the cause.
            Exception: what the module's own code raised.
        """
        module, signature, around = call.module, call.signature, call.around
        around.state = self._states.get(signature.key)
        try:
            reads = ReadSet(module, call.forward, call.collecting)
        except Exception as error:  # a module of TorchScript's has other tables
            raise CaptureError(NOT_READ(error=f"{type(error).__name__}: {error}")) from error
        for below in module.modules():
            if is_mixture(below) and (why := why_live(below)):
                self.live.add(module, (below,), why, None)
        states = getattr(call.forward, "states", None)
        if states is None:  # who has some finds them in the result
            reads.given.update(map(id, containers_in((call.args, call.kwargs), inside=False)))
            reads.callers_own = call.callers_own()
        try:
            result, trace, guard = record(
                call.run,
                signature.tensors,
                module,
                device,
                reads,
                self._leaf_scope,
                self._closed,
                self.live,
                around,
                returns_each=states is not None,
                writes_arguments=call.writes_arguments,
            )
        except CaptureError as error:
            reads.finish()
            error.guard = Guard(reads)
            if error.others:
                error.passing = self._let_live(error.others, reason_of(error), around)
            if around.inside:
                error.passing = self._may_cut() and self.live.add(module, around.inside, reason_of(error), error.guard)
            raise
        if guard is None:
            return result, trace, None
        if isinstance(trace, Trace) and states is not None:
            trace = replace(trace, outputs=replace(trace.outputs, states=states(result, signature.tensors)))
        self.words |= reads.words
        if isinstance(trace, Untraceable) and trace.state:
            self._states[signature.key] = trace.state
        if mentioned := around.unread & reads.words:
            around.mentioned |= mentioned
            reason = MAY_READ(names=", ".join(sorted(map(repr, mentioned))))
            return result, Untraceable(reason, passing=True), guard
        read = [found for found in signature.objects if has_read(reads, found.value, found.name)]
        self._read.update(found.slot for found in read)
        if read:  # what it is may change from call to call, whether the call was recorded or not
            trace = Untraceable(read[0].reason)
        else:
            trace = self._fit(call, trace, guard) if isinstance(trace, Trace) else self._or_another(call, trace, guard)
        if isinstance(trace, Untraceable) and not trace.cut and self._suspected(signature, trace, around):
            trace = replace(trace, passing=True, cut=True)
        # what it sets is as it was found: a setting of another node's, not a state that goes on
        if isinstance(trace, Trace):
            self._changing.discard(signature.key)
        return result, trace, guard

    def _fit(self, call: Call, trace: Trace, guard: Guard) -> Trace | Untraceable:
        """A trace, unless nobody may use it."""
        if guard.hooked:
            live = [
                each
                for each in hooked_below(call.module)
                if self.live.add(call.module, (each,), "it has hooks", guard, alone=True)
            ]
            if live:
                what = "it runs" if len(live) == 1 else "such modules run"
                return Untraceable(LIVE_NOW(why=guard.hooked, what=what), passing=True, cut=True)
        return Untraceable(WRITES_ARGUMENTS()) if call.writes_arguments() else trace

    def _or_another(self, call: Call, trace: Untraceable, guard: Guard) -> Untraceable:
        """Why there is no trace, and whether there may be one of another call."""
        key = call.signature.key
        if trace.changing:  # a counter, a kept result; or a cache that is filled once: then the next call fares better
            again = key not in self._changing
            self._changing.add(key)
            if trace.others:
                cut = again or self._let_live(trace.others, trace.reason, call.around)
                return replace(trace, passing=cut, cut=cut)
            cut = not again and self._cut(call.module, trace, guard)
            return replace(trace, passing=cut or again, cut=cut)
        if trace.others:
            cut = self._let_live(trace.others, trace.reason, call.around)
            return replace(trace, passing=cut, cut=cut)
        if trace.closed - self._closed:  # the next call runs the layers with such as they are
            self._closed |= trace.closed
            return replace(trace, passing=True)
        if not trace.passing and self._cut(call.module, trace, guard):
            return replace(trace, passing=True, cut=True)
        return trace

    def note_change(
        self, root: torch.nn.Module, change: str, guard: Guard, kinds: Collection[Any], sampling: int, useless: bool
    ) -> bool:
        """Something that a trace rests on is another now. Whether something runs live from now on because of that.

        Args:
            root: the model.
            change: in words, as the guard says it.
            guard: that has found it.
            kinds: of functions of others that are a part of the trace.
            sampling: the last one in which the trace was used.
            useless: several traces in a row have served no call.
        """
        reader = guard.reader()
        blamed = kinds if reader is None else [reader.others] if reader.others is not None else ()
        if sampling == self.taken_in.sampling:  # else somebody has set it anew
            self.taken_in.changed(blamed, change)
        by_live = sampling == self.taken_in.sampling and guard.by_others.may_be_set(guard.what)
        return (useless or by_live) and not blamed and self.cut_changing(root, change, guard)

    def cut_changing(self, root: torch.nn.Module, change: str, guard: Guard) -> bool:
        """Let the code run live that reads what is another at each call; whether there is some that didn't already.

        Args:
            root: the model.
            change: in words, as the guard says it, which begins with where that is.
            guard: that has found it.
        """
        reader, steady = guard.reader(), guard.steady(root)
        return self.live.add(root, _named(root, change), change, steady, alone=True) or (
            reader is not None and self._cut_reader(root, reader, change, guard, steady)
        )

    def _cut_reader(
        self, root: torch.nn.Module, reader: Reader, reason: str, guard: Guard, steady: Guard | None
    ) -> bool:
        """The function, wherever the model's code has it from; else the module."""
        homes = [] if reader.function is None else guard.homes_of(reader.function)
        if homes:
            return any([self.live.add_function(root, *home, reason, steady) for home in homes])
        module = None if reader.module is None else reader.module()
        return module is not None and self.live.add(root, (module,), reason, steady)

    def _let_live(self, kinds: Collection[Any], reason: str, around: Surroundings) -> bool:
        """Let functions of others of these kinds run live; whether there are any that didn't."""
        return self.taken_in.refuse(kinds, reason, list(around.functions.values()))

    def _suspected(self, signature: Signature, trace: Untraceable, around: Surroundings) -> bool:
        """A recording has come to nothing for a reason that may be that of functions of others in it: the second time,
        if it may pass.
        """
        if not around.inside_kinds:
            return False
        again, self._passed = signature.key in self._passed, self._passed | {signature.key}
        return (again or not trace.passing) and self._let_live(list(around.inside_kinds), trace.reason, around)

    def not_fused(self, trace: Trace, reason: str, around: Surroundings) -> bool:
        """A trace is of no use: perhaps because of functions of others in it. Whether the next one has less of them."""
        return self._let_live(list(trace.others), reason, around)

    def _cut(self, root: torch.nn.Module, trace: Untraceable, guard: Guard) -> bool:
        """Let the innermost module run live in which a recording came to nothing; whether the next one may fare better
        by that.
        """
        if not self._may_cut():
            return False
        return self.live.add(root, [*_named(root, trace.reason), *trace.inside], trace.reason, guard) or any(
            [self._cut_reader(root, reader, trace.reason, guard, guard) for reader in trace.readers]
        )

    def _may_cut(self) -> bool:
        self._attempts += 1
        return self._attempts <= _ATTEMPTS


def _named(root: torch.nn.Module, words: str) -> list[torch.nn.Module]:
    """The modules that a reason begins with the place of: ``blocks.0.attn1.heads changed``.

    The innermost first, never the root.
    """
    parts = words.split(" ", 1)[0].split(".")
    if len(parts) < 2:
        return []
    modules = dict(root.named_modules())
    inside = (modules.get(".".join(parts[:length])) for length in range(len(parts) - 1, 0, -1))
    return [module for module in inside if module is not None]
