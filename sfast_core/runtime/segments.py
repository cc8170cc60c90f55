"""A graph cut where live code runs: into stretches of instructions, for a CUDA graph each, and live calls.

A *place* is the index of a value in the list of all values of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node

from ..capture.autocast import autocast_off
from ..capture.functional import element
from ..capture.leaf import Leaf
from ..capture.live import Form, LiveCall, Surroundings
from ..capture.nodes import is_live
from .instructions import Instruction, instructions_of, run_all

Tensors = Sequence[torch.Tensor]
Parameters = Sequence[
    "torch.Tensor | None"
]  #: a program's weights, then its constants; None where a weight has to be brought


@dataclass
class Stretch:
    """Instructions without live code among them.

    Attributes:
        instructions: in order.
        reads: the places of the values that they need from before.
        writes: the places of the values that they leave for later.
    """

    instructions: list[Instruction]
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()


@dataclass
class Live:
    """One call of live code.

    Attributes:
        call: what is called. None for a layer that runs as it is, which the ``instruction`` calls.
        instruction: the graph's call.
        handed: the places of the values that it is handed.
        outer: the places of the values that the graphs of its callbacks read from this graph.
        results: the place of each result that is used, with its index where the call has several.
        forms: shape, strides, dtype and device of these results.
        bodies: the graphs of its callbacks: for each callback, one for each way that it was called.
    """

    call: LiveCall | None
    instruction: Instruction
    handed: tuple[int, ...]
    outer: tuple[int, ...]
    results: list[tuple[int, int | None]] = field(default_factory=list)
    forms: list[Form] = field(default_factory=list)
    bodies: list[list[Body]] = field(default_factory=list)

    @property
    def because(self) -> str | None:
        """Why somebody else's function isn't recorded with the model's code, where that is known."""
        return None if self.call is None else getattr(self.call.where, "because", None)

    @property
    def name(self) -> str:
        """Which code, in words."""
        return self.call.where.name if self.call is not None else str(self.instruction.function.__name__)


@dataclass
class Body:
    """A cut graph.

    Attributes:
        size: how many values a run has.
        given: the places of its arguments, then of the values that it reads from the graph around it.
        parameters: the places of weights and constants, each with its index among all of the program's.
        parts: stretches and live calls, in order.
        outputs: the places of its results.
        outer: for each value that it reads from the graph around it, its index in the live call's ``outer``.
    """

    size: int
    given: tuple[int, ...]
    parameters: tuple[tuple[int, int], ...]
    parts: list[Stretch | Live]
    outputs: tuple[int, ...]
    outer: tuple[int, ...] = ()

    def values(self, arguments: Tensors, parameters: Parameters) -> list[Any]:
        """The values at the beginning of a run: arguments and parameters at their places, None at all others."""
        values: list[Any] = [None] * self.size
        for place, argument in zip(self.given, arguments, strict=True):
            values[place] = argument
        for place, index in self.parameters:
            values[place] = parameters[index]
        return values

    def lives(self) -> list[Live]:
        """Its live calls, in order."""
        return [part for part in self.parts if isinstance(part, Live)]

    def all_lives(self) -> list[Live]:
        """Its live calls, and those in the graphs of their callbacks."""
        own = self.lives()
        return own + [inner for live in own for ways in live.bodies for body in ways for inner in body.all_lives()]

    def stretches(self) -> int:
        """The number of stretches that compute something, with those of callbacks."""
        own = sum(isinstance(part, Stretch) and bool(part.instructions) for part in self.parts)
        return own + sum(body.stretches() for live in self.lives() for ways in live.bodies for body in ways)


def is_cut(node: Node) -> bool:
    """Whether a graph is cut at this node."""
    return is_live(node) or (isinstance(node.target, Leaf) and node.target.capturable is not None)


def cut(
    graph: Graph,
    parameter: Callable[[Node], int | None],
    bodies: Callable[[LiveCall], list[list[Body]]],
    outer: tuple[int, ...] = (),
) -> Body:
    """Cut ``graph`` where live code runs.

    Args:
        graph: the outputs of live calls are taken out by ``element`` calls.
        parameter: the index of a weight's or constant's placeholder among all of the program's; None for any other.
        bodies: cuts the graphs of a live call's callbacks.
        outer: see :class:`Body`.
    """
    place = {node: index for index, node in enumerate(graph.nodes)}
    instructions, outputs = instructions_of(graph, place)
    nodes = [node for node in graph.nodes if node.op in ("call_function", "call_method")]
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    given = tuple(place[node] for node in placeholders if parameter(node) is None)
    parts: list[Stretch | Live] = []
    of: dict[Node, Live] = {}
    for node, instruction in zip(nodes, instructions, strict=True):
        source = node.args[0] if node.target is element else None
        if isinstance(source, Node) and source in of:
            of[source].results.append((place[node], node.args[1]))
            of[source].forms.append(_form(node))
        elif is_cut(node):
            of[node] = _live(node, instruction, place, bodies)
            parts.append(of[node])
        else:
            if not parts or isinstance(parts[-1], Live):
                parts.append(Stretch([]))
            stretch = parts[-1]
            assert isinstance(stretch, Stretch)
            stretch.instructions.append(instruction)
    by_place = {place[node]: node for node in graph.nodes}
    _connect(
        parts,
        {place[node] for node in placeholders},
        outputs,
        {place[node]: [place[used] for used in node.all_input_nodes] for node in by_place.values()},
    )
    indices = tuple((place[node], index) for node in placeholders if (index := parameter(node)) is not None)
    return Body(len(place), given, indices, parts, outputs, outer)


def _form(node: Node) -> Form:
    val: torch.Tensor = node.meta["val"]
    return Form(tuple(val.shape), tuple(val.stride()), val.dtype, node.meta["device"])


def _live(
    node: Node, instruction: Instruction, place: dict[Node, int], bodies: Callable[[LiveCall], list[list[Body]]]
) -> Live:
    if isinstance(node.target, LiveCall):
        handed, outer = node.args
        return Live(
            node.target,
            instruction,
            tuple(place[each] for each in handed),
            tuple(place[each] for each in outer),
            bodies=bodies(node.target),
        )
    live = Live(None, instruction, tuple(place[each] for each in node.all_input_nodes), ())
    if isinstance(node.meta.get("val"), torch.Tensor):
        live.results.append((place[node], None))
        live.forms.append(_form(node))
    return live


def _connect(
    parts: list[Stretch | Live], before: set[int], outputs: tuple[int, ...], inputs: dict[int, list[int]]
) -> None:
    """Fill in what each stretch reads of the other parts, and what these read of it."""
    made: list[set[int]] = []
    for part in parts:
        made.append(
            {each.result for each in part.instructions} if isinstance(part, Stretch) else {at for at, _ in part.results}
        )
    wanted: list[set[int]] = []
    for part, own in zip(parts, made, strict=True):
        if isinstance(part, Stretch):
            wanted.append({used for at in own for used in inputs[at]} - own)
        else:
            wanted.append({*part.handed, *part.outer})
    for index, part in enumerate(parts):
        if isinstance(part, Stretch):
            later = set(outputs).union(*wanted[index + 1 :])
            part.reads = tuple(sorted(wanted[index]))
            part.writes = tuple(sorted(made[index] & later))


RunStretch = Callable[[Body, Stretch, list[Any]], None]


def run_stretch(body: Body, part: Stretch, values: list[Any]) -> None:
    """Run a stretch whose weights are all on the device."""
    run_all(part.instructions, values)


def interpret(
    body: Body,
    arguments: Tensors,
    parameters: Parameters,
    around: Surroundings,
    live: Callable[[Live, list[Any]], None] | None = None,
    stretch: RunStretch = run_stretch,
) -> list[torch.Tensor]:
    """Run a cut graph kernel by kernel.

    Args:
        body: the graph.
        arguments: its own, then the values that it reads from the graph around it.
        parameters: the program's weights and constants.
        around: the call's own options and objects.
        live: runs a live call on the values so far. None: :func:`run_live`.
        stretch: runs a stretch on them.
    """
    values = body.values(arguments, parameters)
    run = live or (lambda part, values: run_live(part, values, parameters, around, stretch))
    for part in body.parts:
        if isinstance(part, Stretch):
            stretch(body, part, values)
        else:
            run(part, values)
            last = part.instruction.last_used
            for place in last:
                if place != part.instruction.result:
                    values[place] = None
    return [values[place] for place in body.outputs]


def run_live(
    part: Live, values: list[Any], parameters: Parameters, around: Surroundings, stretch: RunStretch = run_stretch
) -> None:
    """Run a live call, and put its results among the values, with the strides that the program was made for."""

    def body_of(number: int, way: int) -> Callable[[Tensors], Tensors]:
        body = part.bodies[number][way]
        outer = [values[part.outer[index]] for index in body.outer]

        def run(given: Tensors) -> Tensors:
            with torch.no_grad(), autocast_off():
                return interpret(body, [*given, *outer], parameters, around, stretch=stretch)

        return run

    for (place, _), form, result in zip(
        part.results, part.forms, results_of(part, values, body_of, around), strict=True
    ):
        if tuple(result.stride()) != form.stride:
            made = form.empty()
            made.copy_(result)
            result = made
        values[place] = result


def results_of(
    part: Live, values: list[Any], bodies: Callable[[int, int], Callable[[Tensors], Tensors]], around: Surroundings
) -> list[torch.Tensor]:
    """Run a live call and return the tensors of its ``results``.

    ``bodies``: gives the function that runs the graph of a callback, by its number and way.
    """
    if part.call is not None:
        returned: Any = part.call.run([values[place] for place in part.handed], bodies, around)
    else:
        copy = list(values)
        run_all([part.instruction._replace(last_used=())], copy)
        returned = copy[part.instruction.result]
    if around.settle is not None:
        around.settle()
    return [returned if index is None else returned[index] for _, index in part.results]
