"""What one call of a torch function is in the graph: nodes for what it is given, what autocast does to that, the call,
and its results.
"""

from __future__ import annotations

import functools
import numbers
import sys
from types import BuiltinFunctionType, FrameType, MethodDescriptorType, MethodWrapperType, WrapperDescriptorType
from typing import Any

import torch

from ..reporting.reasons.records import READS_VALUE
from ..weights import WeightTable
from .autocast import NO_TREATMENT, Apart, Autocast, Treatment
from .compared import Number
from .decisions import Decisions
from .errors import CaptureError
from .fake_tensors import Value, leaves, mapped
from .functional import cast_like, element, functional_form, is_in_place, mutates, sets_the_same
from .guards.given import is_ours
from .in_place import InPlace
from .nodes import call_function, call_method
from .unvarying import READING, Unvarying
from .values import METADATA, PLAIN_CLASSES, RANGES, sizing, why_not_static
from .ways import uses_of, values_of

#: what functions take Python's types for
_DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
#: Functions of C, of which a process has so many and no more.
OF_C = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType, MethodWrapperType)
_VALUES = (*PLAIN_CLASSES, type(...))
_AS_THEY_ARE = frozenset(_VALUES)


def function_name(func: Any) -> str:
    """The name of a torch function; for an attribute of Tensor the attribute's name."""
    return _name_of_c(func) if type(func) in OF_C else _name_of(func)


def _name_of(func: Any) -> str:
    name: str = getattr(func, "__name__", "") or str(func)
    if name in ("__get__", "__set__"):
        return str(getattr(getattr(func, "__self__", None), "__name__", name))
    return name


_name_of_c = functools.lru_cache(maxsize=1024)(_name_of)


def _reader() -> FrameType | None:
    """The code that has called a function of torch's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def are_tensors(result: Any) -> bool:
    """Whether a function's several results are tensors, or nothing where one was not asked for."""
    return any(item is not None for item in result) and all(
        item is None or isinstance(item, torch.Tensor) for item in result
    )


class Calls(InPlace):
    """Bookkeeping of calls.

    Attributes:
        autocast: knows what autocast does to each.
        decisions: what Python has read of the inputs' values.
        instead: what the code that read one gets in its place.
    """

    def __init__(self, inputs: list[torch.Tensor], table: WeightTable) -> None:
        super().__init__(inputs, table)
        self.autocast = Autocast()
        self.decisions = Decisions(list(self.graph.nodes))
        self._unvarying = Unvarying()
        self.instead: Number | None = None

    def in_place_of(self, result: Any) -> Any:
        """What a function's caller gets: its result, or what stands for it."""
        instead, self.instead = self.instead, None
        return result if instead is None else instead

    def _arguments(self, name: str, args: Any, kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        """The call's arguments with nodes for tensors; None when it asks for metadata only, or marks a range."""
        if name in METADATA and not (name == "type" and len(args) > 1):
            return None
        if name in RANGES or sets_the_same(name, args):
            return None
        if kwargs.get("out") is not None:
            if not isinstance(kwargs["out"], torch.Tensor):
                raise CaptureError(f"{name} writes to several tensors by out=")
            kwargs = {key: value for key, value in kwargs.items() if key != "out"}
        reason = why_not_static(name, args, kwargs)
        if reason and not self._unvarying.all(self._reads(self._map(sizing(name, args, kwargs), name))):
            raise CaptureError(reason)
        if name == "__deepcopy__":  # its memo knows tensors by ids, which others have later
            args = args[:1]
        if name == "__setitem__":  # the target may be outdated by the very view that is put back
            self._settle(args[0], args[1], args[2])
        return tuple([item if type(item) in _AS_THEY_ARE else self._map(item, name) for item in args]), {
            key: item if type(item) in _AS_THEY_ARE else self._map(item, name) for key, item in kwargs.items()
        }

    def _map(self, value: Any, name: str) -> Any:
        kind = type(value)
        if kind in _AS_THEY_ARE:
            return value
        if isinstance(value, torch.Tensor):
            return self._node(value, name)
        if kind is tuple:
            return tuple([self._map(item, name) for item in value])
        if kind is list:
            return [self._map(item, name) for item in value]
        if kind is dict:
            return {key: self._map(item, name) for key, item in value.items()}
        if kind is slice:
            return slice(self._map(value.start, name), self._map(value.stop, name), self._map(value.step, name))
        return self._map_subclass(value, name)

    def _map_subclass(self, value: Any, name: str) -> Any:
        if isinstance(value, numbers.Real):  # numpy scalars and IntEnums: their repr is no literal
            return int(value) if isinstance(value, numbers.Integral) else float(value)
        if isinstance(value, _VALUES):
            return value
        if isinstance(value, (tuple, list)):  # torch.Size
            return tuple(self._map(item, name) for item in value)
        if isinstance(value, dict):
            return {key: self._map(item, name) for key, item in value.items()}
        if isinstance(value, type) and value in _DTYPES:
            return _DTYPES[value]
        raise CaptureError(f"{name} was given a {type(value).__name__}")

    def _record(
        self, func: Any, name: str, call: tuple[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        if name == "__deepcopy__":
            func, name, args = torch.Tensor.clone, "clone", args[:1]
        if kwargs.get("out") is not None:
            return self._record_out(func, name, call, kwargs["out"])
        in_place = is_in_place(name) or call[1].get("inplace") is True
        if mutates(func) and not (in_place and functional_form(name)):
            return self._record_changing(func, name, call, args, kwargs, result)
        if in_place:
            self._record_in_place(func, name, call, args)
            if result is not None and self.autocast.treatment(func, name, args, kwargs, result) != NO_TREATMENT:
                raise CaptureError(f"autocast casts what {name} gets, which changes a tensor in place")
            return
        # a conversion that had nothing to do
        if isinstance(result, torch.Tensor) and any(result is arg for arg in args):
            return
        if isinstance(result, torch.Tensor) or (isinstance(result, (tuple, list)) and are_tensors(result)):
            treatment = self.autocast.treatment(func, name, args, kwargs, result)
            if isinstance(treatment, Apart):
                return self._record_apart(treatment, name, args, kwargs, result)
            call = self._cast(call, treatment)
        if isinstance(result, torch.Tensor):
            if name == "repeat_interleave" and any(isinstance(arg, torch.Tensor) for arg in args[1:2]):
                # else it asks the GPU how much that is
                dim = call[0][2] if len(call[0]) > 2 else call[1].get("dim")
                call = call[0], {"output_size": result.shape[dim or 0], **call[1]}
            self._bind(result, self._call(func, name, call, result))
        elif isinstance(result, (tuple, list)) and are_tensors(result):
            node = self._call(func, name, call, None)
            for index, item in enumerate(result):
                if item is not None:
                    self._bind(item, self._value(call_function(self.graph, element, (node, index)), item))
        elif result is NotImplemented or (
            getattr(func, "__name__", "") == "__get__" and not isinstance(result, torch.Tensor)
        ):
            return  # compared with what is no tensor; shape, dtype, device, ndim, ...
        elif (read := self._reads(call)) and name in READING and self._unvarying.all(read):
            return
        elif read and not self.decisions.add(func, name, tuple(call[0]), call[1], result):
            if name not in ("item", "__float__") or not self._is_compared(func, name, tuple(call[0]), result):
                raise CaptureError(READS_VALUE(name=name))

    def _is_compared(self, func: Any, name: str, args: tuple[Any, ...], result: Any) -> bool:
        """Whether the code that has read a number only compares it, and that is noted: as it is done where the number
        can tell, else with all that it may be compared with.
        """
        if (frame := _reader()) is None or (uses := uses_of(frame.f_code, frame.f_lasti)) is None:
            return False
        if name == "item" and not uses.as_float:
            self.instead = self.decisions.number(func, args, result)
            return self.instead is not None
        comparisons = values_of(uses, frame)
        return comparisons is not None and self.decisions.compared(func, args, result, comparisons)

    def _cast(self, call: tuple[Any, Any], treatment: Treatment) -> tuple[Any, Any]:
        """The call's arguments as autocast hands them on."""
        if treatment is NO_TREATMENT or treatment == NO_TREATMENT:
            return call
        args, kwargs = torch.fx.node.map_arg((tuple(call[0]), call[1]), lambda node: self._cast_node(node, treatment))
        return args, {**kwargs, **treatment.keywords()}

    def _cast_node(self, node: torch.fx.Node, treatment: Treatment) -> torch.fx.Node:
        val: torch.Tensor = node.meta["val"]
        dtype = treatment.cast(val.dtype, node.meta["device"])
        if dtype == val.dtype:
            return node
        cast = call_function(self.graph, cast_like, (node, dtype))
        cast.meta["val"], cast.meta["device"] = val.to(dtype), node.meta["device"]
        return cast

    def _record_apart(
        self, apart: Apart, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """The operators that a call is made of, in the call's place."""
        nodes = dict(enumerate(self._node(tensor, name) for tensor in leaves((args, kwargs), torch.Tensor)))
        given = len(nodes)
        for step in apart.steps:
            taken = mapped(
                lambda leaf: nodes[leaf.number] if isinstance(leaf, Value) else leaf, (step.args, step.kwargs)
            )
            node = call_function(self.graph, step.op, *taken)
            for index, value in enumerate([step.result] if isinstance(step.result, Value) else step.result):
                part = node if isinstance(step.result, Value) else call_function(self.graph, element, (node, index))
                part.meta["val"], part.meta["device"] = value.meta, value.device
                nodes[value.number] = part
        for value, tensor in zip(leaves(apart.result, Value), leaves(result, torch.Tensor), strict=True):
            node = nodes[value.number]
            self._bind(tensor, node if value.number < given else self._value(node, tensor))

    def _call(self, func: Any, name: str, call: tuple[Any, Any], result: torch.Tensor | None) -> torch.fx.Node:
        if getattr(func, "__name__", "") == "__get__":
            node = call_function(self.graph, getattr, (call[0][0], name))
        elif getattr(torch.Tensor, name, None) is func:
            node = call_method(self.graph, name, tuple(call[0]), call[1])
        else:
            node = call_function(self.graph, func, tuple(call[0]), call[1])
        return node if result is None else self._value(node, result)

    @staticmethod
    def _reads(call: tuple[Any, Any]) -> list[torch.fx.Node]:
        found: list[torch.fx.Node] = []
        torch.fx.node.map_arg((tuple(call[0]), call[1]), found.append)
        return found
