"""A graph as a list of instructions and a loop over it.

FX would generate Python source and compile it: 0.2 s for SDXL's 4,300 nodes, at every new signature. The loop costs a
fraction of a microsecond a node more, where a launch costs several, and a replayed graph runs neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from ..capture.nodes import function_of


class Instruction(NamedTuple):
    """One call of a function, whose arguments may be values: results of earlier calls."""

    function: Callable[..., Any]
    args: tuple[Any, ...]  #: None where a value goes
    kwargs: dict[str, Any]
    #: for each value its index in args and its place among the values. None where some values are inside containers or
    #: keyword arguments: then :class:`_Value` stands for each
    values: tuple[tuple[int, int], ...] | None
    result: int  #: the place of the call's result
    last_used: tuple[int, ...]  #: the places of values that nobody needs afterwards


class Function:
    """A graph as a function of its placeholders, in order, that returns its outputs.

    Intermediate results are dropped behind their last use.

    Attributes:
        instructions: in order.
        given: the places of its arguments among its values.
        outputs: the places of its results.
        size: how many values there are.
    """

    def __init__(
        self, instructions: Sequence[Instruction], given: Sequence[int], outputs: Sequence[int], size: int
    ) -> None:
        self.instructions, self.given, self.outputs, self.size = instructions, given, outputs, size

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        values: list[Any] = [None] * self.size
        for index, argument in zip(self.given, arguments, strict=True):
            values[index] = argument
        run_all(self.instructions, values)
        return tuple(values[index] for index in self.outputs)


def as_function(graph: Graph) -> Function:
    """A function of the graph's placeholders. The graph may be changed or dropped afterwards.

    Raises:
        NotImplementedError: the graph refers to attributes or modules.
    """
    place = {node: index for index, node in enumerate(graph.nodes)}
    program, outputs = instructions_of(graph, place)
    return Function(program, [place[node] for node in graph.nodes if node.op == "placeholder"], outputs, len(place))


def instructions_of(graph: Graph, place: dict[Node, int]) -> tuple[list[Instruction], tuple[int, ...]]:
    """What a graph calls, in order, and where its outputs are: each value at the place of its node.

    Raises:
        NotImplementedError: the graph refers to attributes or modules.
    """
    last_use = {used: node for node in graph.nodes for used in node.all_input_nodes}
    program: list[Instruction] = []
    outputs: tuple[int, ...] = ()
    for node in graph.nodes:
        if node.op == "output":
            outputs = tuple(place[used] for used in node.args[0])
        elif node.op in ("call_function", "call_method"):
            program.append(_instruction(node, place, last_use))
        elif node.op != "placeholder":
            raise NotImplementedError(f"a graph with {node.op} can't be run: {node}")
    return program, outputs


def run_all(instructions: Sequence[Instruction], values: list[Any]) -> None:
    """Run instructions on the values so far, and put their results at their places."""
    for function, args, kwargs, wanted, result, dead in instructions:
        if wanted is None:
            args, kwargs = _filled(args, values), _filled(kwargs, values)
        elif wanted:
            filled = list(args)
            for index, source in wanted:
                filled[index] = values[source]
            args = tuple(filled)
        values[result] = function(*args, **kwargs)
        for index in dead:
            values[index] = None


def read_by(instruction: Instruction) -> list[int]:
    """The places of the values that an instruction reads."""
    if instruction.values is not None:
        return [source for _, source in instruction.values]
    found: list[int] = []
    _collect((instruction.args, instruction.kwargs), found)
    return found


class _Value:
    """Stands for a node's value inside lists, slices and keyword arguments."""

    def __init__(self, index: int) -> None:
        self.index = index


def _filled(arg: Any, values: Sequence[Any]) -> Any:
    """``arg`` with each :class:`_Value` replaced by the value itself, and FX's immutable containers by plain ones."""
    if isinstance(arg, _Value):
        return values[arg.index]
    if isinstance(arg, (tuple, list)):
        if isinstance(arg, list):
            return [_filled(item, values) for item in arg]
        return tuple(_filled(item, values) for item in arg)
    if isinstance(arg, dict):
        return {name: _filled(item, values) for name, item in arg.items()}
    if isinstance(arg, slice):
        return slice(_filled(arg.start, values), _filled(arg.stop, values), _filled(arg.step, values))
    return arg


def _collect(arg: Any, found: list[int]) -> None:
    if isinstance(arg, _Value):
        found.append(arg.index)
    elif isinstance(arg, (tuple, list)):
        for item in arg:
            _collect(item, found)
    elif isinstance(arg, dict):
        _collect(list(arg.values()), found)
    elif isinstance(arg, slice):
        _collect((arg.start, arg.stop, arg.step), found)


def _instruction(node: Node, place: dict[Node, int], last_use: dict[Node, Node]) -> Instruction:
    function = function_of(node)
    dead = tuple(place[used] for used in node.all_input_nodes if last_use[used] is node)
    if node not in last_use:
        dead += (place[node],)  # nobody wants the result
    args, kwargs = node.args, node.kwargs
    deep = [*(arg for arg in args if isinstance(arg, (tuple, list, dict, slice))), *kwargs.values()]
    if deep and _holds_nodes(deep):
        args, kwargs = torch.fx.node.map_arg((args, kwargs), lambda used: _Value(place[used]))
        return Instruction(function, args, kwargs, None, place[node], dead)
    values = tuple([(index, place[arg]) for index, arg in enumerate(args) if isinstance(arg, Node)])
    args = tuple([None if isinstance(arg, Node) else arg for arg in args])
    return Instruction(function, _filled(args, ()) if deep else args, _filled(kwargs, ()), values, place[node], dead)


def _holds_nodes(value: Any) -> bool:
    found: list[Node] = []
    torch.fx.node.map_arg(value, found.append)
    return bool(found)
