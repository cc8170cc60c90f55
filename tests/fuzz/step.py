"""What a step is: it adds lines to a forward, and values to go on from."""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz.writer import IMAGE, TOKENS, Value, Writer

Step = Callable[[Writer, Value], object]
STEPS: list[tuple[str, int, Step]] = []  #: the kind of value that it starts from, how often it comes, and the step


def step(kind: str, weight: int = 2) -> Callable[[Step], Step]:
    def add(function: Step) -> Step:
        STEPS.append((kind, weight, function))
        return function

    return add


def activation(w: Writer, x: str) -> str:
    kind = w.choice(
        "F.silu($)",
        "F.gelu($)",
        "F.gelu($, approximate='tanh')",
        "torch.relu($)",
        "$.tanh()",
        "torch.sigmoid($)",
        "F.silu($)",
        "F.leaky_relu($, 0.2)",
        "$ * torch.sigmoid($)",
        "F.softplus($)",
        "F.elu($)",
        "$.sigmoid().mul($)",
        "F.hardswish($)",
        "F.mish($)",
        "$ / (1 + $.abs())",
    )
    return kind.replace("$", x)


# -- on any --------------------------------------------------------------------------------------------------------


def any_kind(weight: int) -> Callable[[Step], Step]:
    def add(function: Step) -> Step:
        for kind in (IMAGE, TOKENS):
            step(kind, weight)(function)
        return function

    return add
