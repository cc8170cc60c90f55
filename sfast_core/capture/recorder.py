"""Writes down the torch functions that one real call of a module uses, as an FX graph.

A ``TorchFunctionMode`` sees each call at the level at which the model was written (``linear``, ``group_norm``,
``scaled_dot_product_attention``), runs it as it is, and adds a node. So the recorded call's result is the host's own,
and recording costs little more than the forward. What autocast does to arguments becomes nodes too: the graph runs
without it. Values never enter the graph: tensors are inputs, weights (by address below the module) or computed by
recorded nodes, and whatever reads a value into Python ends the recording. It never raises: ``failure`` says why it
stopped, and the forward goes on as it would have.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..reporting.reason import reason_of
from ..reporting.reasons.records import READS_VALUE
from ..weights import WeightRef, WeightTable
from ..weights.part import is_plain
from .asked_tensors import AskedTensors
from .bookkeeping import HasParts
from .bound_weights import BoundWeights
from .calls import OF_C, are_tensors, function_name
from .errors import CaptureError
from .externals import Found
from .fake_tensors import leaves
from .functional import element
from .guards import KeptByHost, Pausing, Reader, Unwatched, reader_at
from .inside import Inside, spelled, wrapped
from .leaf import Leaf
from .live.modules import DRAWING, draws, modules_at_work
from .live.taking_in import TakingIn
from .nodes import call_function, drop_unused
from .replaced import asked_function, is_torchs
from .told import ASKED
from .unwritten import unwritten
from .values import METADATA, RANGES, UNFILLED, why_not_operator

_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)


class Recorder(TorchFunctionMode, TakingIn, AskedTensors, BoundWeights):
    """Records into ``graph`` while it is entered. ``failure`` is the reason why the recording is of no use, or None."""

    def __init__(self, inputs: list[torch.Tensor], table: WeightTable) -> None:
        TorchFunctionMode.__init__(self)
        TakingIn.__init__(self, inputs, table)
        self.watch: Pausing = Unwatched()
        self.failure: str | None = None
        self.passing = self.draws = self.drawn = False  # ``draws``: Python's random numbers; ``drawn``: PyTorch's
        self.raised: int | None = None  # the id of the error that the last torch function to fail raised
        self.plainly = False  # whether it was called just as the module's code calls it
        self.at_work: list[torch.nn.Module] = []  # the modules inside which the recording was given up, innermost first
        self.ended_in: Reader | None = None  # likewise the function
        self.drew: list[torch.nn.Module] = []  # likewise those inside which random numbers were drawn first
        self._paused = 0
        self._leaf: list[str] | None = None  # while a layer runs as it is: why it can't be captured
        self._insides: list[type] = []  # the classes that compute with their parts just now
        # attributes that say no more than how the host brings weights, of layers whose class has one
        self.left_to_host: frozenset[str] = frozenset()
        self.kept_by_host = KeptByHost()
        # whether what a library has put around a module computes by what came before
        self.keeps_state: Callable[[torch.nn.Module], bool] = lambda _: False
        self.closed: set[type] = set()  # classes whose computing with their parts ended the recording

    # -- what a host's leaf adapter uses ----------------------------------------------------------------------------

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Run torch functions unrecorded; what they return must be bound before it is used."""
        self._paused += 1
        self.watch.pause()
        try:
            yield
        finally:
            self._paused -= 1
            if not self._paused:
                self.watch.resume()

    @contextmanager
    def resumed(self) -> Iterator[None]:
        """Within :meth:`paused`, record again: live code calls the model back."""
        paused, live = self._paused, self._in_live
        self._paused = self._in_live = 0
        self.watch.resume()
        try:
            with nullcontext() if torch.overrides._get_current_function_mode() is self else self:
                yield
        finally:
            self._paused, self._in_live = paused, live
            self.watch.pause()

    def from_array(self, make: Callable[[Any], torch.Tensor], array: Any) -> torch.Tensor:
        """``make(array)``, which is ``torch.from_numpy`` of an array."""
        result = make(array)
        if not self._paused and not self.failure and self._leaf is None:
            with self.paused():
                self._bind_array(result)
        return result

    def run(self, function: Callable[..., torch.Tensor], *args: Any, **kwargs: Any) -> torch.Tensor:
        """``function(*args, **kwargs)``, which may be anything that depends on these alone, as one node: an op's
        meaning.
        """
        if self._paused or self.failure or self._leaf is not None:
            return function(*args, **kwargs)
        with self.paused():
            result = function(*args, **kwargs)
            try:
                given = self._map(args, function.__name__), self._map(kwargs, function.__name__)
                self._bind(result, self._value(call_function(self.graph, function, *given), result))
            except (CaptureError, HasParts) as error:
                self.refuse(reason_of(error) or f"{function.__name__} is given a tensor with parts")
        return result

    @property
    def table(self) -> WeightTable:
        """Where the weights are."""
        return self._table

    @property
    def writes_down(self) -> bool:
        """Whether torch functions become nodes just now."""
        return not (self._paused or self.failure or self.in_leaf)

    @property
    def in_leaf(self) -> bool:
        """Whether a layer runs as it is, or live code: nobody needs to know how that comes to its weights."""
        return self._leaf is not None or self._in_live > 0

    def run_leaf(
        self,
        module: torch.nn.Module,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        reason: str = "",
    ) -> Any:
        """Run a layer as it is: one node, whose results are what it returns.

        ``reason``: why no graph can hold what it does. Then what it keeps and reads is its own affair, at each call.
        """
        if self._paused or self.failure or self._leaf is not None:
            return call(*args, **kwargs)
        kind, given = type(module).__name__, leaves((args, kwargs), torch.Tensor)
        versions = _versions(given)
        because = [reason] if reason else []
        self._leaf = because
        if reason:
            self.watch.pause()
        try:
            result = call(*args, **kwargs)
        except Exception:
            self.refuse(f"a {kind} that runs as it is raised an error", passing=True)
            raise
        finally:
            self._leaf = None
            if reason:
                self.watch.resume()
        with self.paused():
            try:
                self._record_leaf(module, (args, kwargs), result, because)
            except (CaptureError, HasParts) as error:
                self.refuse(reason_of(error) or f"a {kind} that runs as it is is given a tensor with parts")
            if _versions(given) != versions:
                self.refuse(f"a {kind} that runs as it is changes its arguments")
        return result

    def _record_leaf(self, module: torch.nn.Module, given: Any, result: Any, because: list[str]) -> None:
        kind, name = type(module).__name__, self._table.path(module)
        if any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
            raise CaptureError(f"a {kind} that runs as it is under autocast")
        args, kwargs = self._map(given, name)
        weights = []
        for ref, tensor in self._table.weights_of(module):
            if ref is None:
                because.append(f"its weight is a {type(tensor).__name__}")
            else:
                weights.append(self._weight(ref, tensor))
        capturable = f"the {kind} {name} runs as it is: {because[0]}" if because else None
        node = call_function(self.graph, Leaf(module, name, capturable), (tuple(weights), args, kwargs))
        if isinstance(result, torch.Tensor):
            return self._bind(result, self._value(node, result))
        if not isinstance(result, (tuple, list)) or not are_tensors(result):
            raise CaptureError(f"a {kind} that runs as it is returns a {type(result).__name__}")
        for index, item in enumerate(result):
            if item is not None:
                self._bind(item, self._value(call_function(self.graph, element, (node, index)), item))

    def refuse(self, reason: str, passing: bool = False) -> None:
        """Give this recording up. ``reason``: one of a kind, or in words; ``passing``: another call of the same
        signature may fare better.
        """
        if self.failure is None:
            self.failure, self.passing = reason, passing
            self.closed.update(self._insides)
            self.at_work = modules_at_work()
            self.ended_in = reader_at(sys._getframe(1))
            self.blamed = self.others_at_work

    @property
    def weights(self) -> list[WeightRef]:
        """The weights that the graph computes with. Others were asked for their shape, or whether they are there."""
        return list(self.all_weights())

    @property
    def quantised_to(self) -> set[torch.dtype]:
        """The dtypes of 8 bits among the parts that the graph computes with; uint8 where two numbers share a byte."""
        parts = {
            ref: node.meta["val"]
            for ref, node in self.all_weights().items()
            if ref.part is not None and node.meta["val"].itemsize == 1
        }
        return {
            torch.uint8 if ref.part is not None and ref.part.packed(value) else value.dtype
            for ref, value in parts.items()
        }

    def reads(self, tensor: torch.Tensor) -> bool:
        """Whether a recorded function reads this tensor, which was there before the call, as a weight or where it was
        found.
        """
        node = self._nodes.get(tensor)
        if node is not None:
            if node.op != "placeholder" and any(tensor is each for found in self._inputs.values() for _, each in found):
                return True  # it was written to
            return node.op == "placeholder" and bool(node.users)
        ref = self._table.find(tensor)
        return ref is not None and ref in self.all_weights()

    def finish(self, result: list[torch.Tensor], found: Found) -> torch.fx.Graph | None:
        """Close the graph with ``result`` as its outputs; None where the recording failed.

        Args:
            result: tensors that the graph is to return, in front of what is in the inputs that the call has written to.
            found: says where a tensor is kept that is no input, no weight and wasn't computed.
        """
        if self.failure is None:
            try:
                nodes = tuple(self._node(tensor, "the result") for tensor in result)
                self.graph.output((*nodes, *self._written_inputs()))
                self._refuse_unwritten()
                self._unchanged.check()
                self._check_arrays()
                self._name_externals(found)
                self._finish_live(found)
            except CaptureError as error:
                self.failure = reason_of(error)
        return None if self.failure else self.graph

    def step_aside(self) -> None:
        """Code is about to ask whether somebody like this is there: it gets the answer that it gets without."""
        if torch.overrides._get_current_function_mode() is self:
            self.refuse("the call asks whether functions of tensors are watched")
            self.__exit__(None, None, None)

    def __exit__(self, *raised: Any) -> None:
        """Off the stack. Torch takes modes off for a moment itself, and an interruption just then leaves nothing to
        take off.
        """
        if torch.overrides._get_current_function_mode() is self:
            super().__exit__(*raised)

    # -- recording --------------------------------------------------------------------------------------------------

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        watched = not (self._paused or self.failure or self._leaf is not None)
        if watched:
            self.watch.pause()  # before anything of ours runs: each function that starts is told otherwise
        kwargs, self.plainly = kwargs or {}, bool(self.failure) and not self._paused
        try:
            if not isinstance(func, _OPERATORS) and not is_torchs(func):
                func = asked_function(func, sys._getframe(1))
            if isinstance(func, _OPERATORS):
                func, kwargs = spelled(func, args, kwargs)
            return self._run(func, types, args, kwargs)
        except Exception as error:
            self.raised = id(error)  # not the error: its traceback leads back here and would hold all tensors
            if watched:
                self.watch.resume()  # the module's code may go on
            raise

    def _run(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._paused or self.failure:
            return func(*args, **kwargs)
        name = function_name(func)
        if name in DRAWING and draws(name, args, kwargs):
            self.drawn, self.drew = True, self.drew or modules_at_work()
        if self._leaf is not None:
            return self._in_leaf(func, name, args, kwargs)
        if self._table.with_functions and (own := self._with_functions(args, kwargs)) is not None:
            self.watch.resume()
            with self:  # what the class makes of the call is recorded
                return own.__torch_function__(func, (own,), args, kwargs)  # type: ignore[attr-defined]
        if name == "__iter__":
            self.watch.resume()
            return iter(torch.Tensor.unbind(*args)) if args[0].dim() else func(*args)
        try:
            if isinstance(func, torch._ops.OpOverload) and (reason := why_not_operator(func, args)):
                raise CaptureError(reason)
            call = self._arguments(name, args, kwargs)
        except HasParts:
            return self._run_inside(func, name, args, kwargs)
        except Exception as error:
            self._refuse_for(error, name)
            self.watch.resume()
            return func(*args, **kwargs)
        # An operator of a library's is what PyTorch takes it for: it computes with its arguments, however its own code
        # does so.
        self._before(func, name, args, kwargs)
        # a tensor of a class of its own, or a mode, runs some
        python = types or type(func) not in OF_C or torch._C._len_torch_dispatch_stack()
        if python:
            self.watch.resume(installed=not isinstance(func, _OPERATORS))
        self.plainly = True
        result = func(*args, **kwargs)
        self.plainly = False
        if python:
            self.watch.pause()
        try:
            if call is not None:
                self._record(func, name, call, args, kwargs, result)
            if name.startswith(UNFILLED) and (node := self._nodes.get(result)) is not None:
                self._note_reader(node)
        except Exception as error:
            self._refuse_for(error, name)
        result = self.in_place_of(result)
        if name in ASKED and args:
            self._asked(name, args[0])
        self.watch.resume()
        return result

    def _with_functions(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> type | None:
        """The class of an argument that does something by itself where torch's functions are called with it, and hasn't
        yet.
        """
        if not torch._C._is_torch_function_enabled():
            return None
        return next(
            (
                type(tensor)
                for tensor in leaves((args, kwargs), torch.Tensor)
                if type(tensor) in self._table.with_functions
            ),
            None,
        )

    def _run_inside(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call with a tensor that has parts: what its class does with those is recorded in the call's place."""
        self._insides.append(type(next(wrapped((args, kwargs)))))
        try:
            with Inside(self):
                result = func(*args, **kwargs)
            for tensor in leaves(result, torch.Tensor):
                if is_plain(tensor) and tensor not in self._nodes and self._table.find(tensor) is None:
                    self.refuse(f"what {name} does with the parts of a {self._insides[-1].__name__} can't be seen")
            self.watch.resume()
        finally:
            self._insides.pop()
        return result

    def _in_leaf(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call within a layer that runs as it is."""
        result = func(*args, **kwargs)
        tensors = isinstance(result, torch.Tensor) or (isinstance(result, (tuple, list)) and are_tensors(result))
        if (
            self._leaf is not None
            and not tensors
            and result is not None
            and name not in METADATA
            and name not in RANGES
            and getattr(func, "__name__", "") != "__get__"
        ):
            self._leaf.append(READS_VALUE(name=name))
        return result

    def _refuse_for(self, error: Exception, name: str) -> None:
        self.refuse(
            reason_of(error)
            if isinstance(error, CaptureError)
            else f"{name} can't be recorded: {type(error).__name__}: {error}"
        )

    def _refuse_unwritten(self) -> None:
        drop_unused(self.graph)
        if (node := unwritten(self.graph)) is not None:
            self._blame_reader(node)
            raise CaptureError("memory from torch.empty is filled by a kernel that torch doesn't dispatch")


def _versions(tensors: list[torch.Tensor]) -> list[int | None]:
    with torch._C.DisableTorchFunction():
        return [None if tensor.is_inference() else tensor._version for tensor in tensors]
