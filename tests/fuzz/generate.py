"""Random modules of the kind that diffusion models are made of, each from a seed, as source."""

from __future__ import annotations

import random

from tests.fuzz.steps import STEPS
from tests.fuzz.writer import IMAGE, TOKENS, VECTOR, Value, Writer

_HEAD = """import math
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
"""


def source(seed: int, steps: int | None = None) -> str:
    """The file of a module ``Model`` and of a function ``inputs(batch, height, width)`` that makes its arguments.

    Args:
        seed: decides everything.
        steps: how many steps to write at most, of those that the seed gives: what comes first stays the same.
    """
    w = Writer(random.Random(seed))
    _inputs(w)
    for _ in range(min(w.random.randint(3, 12), 99 if steps is None else steps)):
        kind = w.random.choice(sorted({value.kind for value in w.values}))
        options = [(weight, step) for of, weight, step in STEPS if of == kind]
        (chosen,) = w.random.choices([step for _, step in options], [weight for weight, _ in options])
        value = w.pick(kind)
        assert value is not None
        chosen(w, value)
    given = _result(w)
    arguments = ", ".join(name for name, _ in w.inputs)
    lines = [*w.init, ""] if w.init else ["pass", ""]
    return (
        _HEAD
        + "".join(f"        {line}\n" for line in lines)
        + f"    def forward(self, {arguments}):\n"
        + "".join(f"        {line}\n" for line in [*w.forward, given])
        + f"\n\ndef inputs(batch, height, width):\n    return [{', '.join(made for _, made in w.inputs)}]\n"
    )


def _inputs(w: Writer) -> None:
    channels = w.channels()
    if w.chance(0.6):
        layout = ".contiguous(memory_format=torch.channels_last)" if w.chance(0.25) else ""
        w.inputs.append(("x", f"torch.randn(batch, {channels}, height, width){layout}"))
        w.values.append(Value("x", IMAGE, channels, 0, own=False))
    else:
        w.inputs.append(("x", f"torch.randn(batch, height * width, {channels})"))
        w.values.append(Value("x", TOKENS, channels, "input", own=False))
    if w.chance(0.6):
        channels = w.channels()
        w.inputs.append(("context", f"torch.randn(batch, {w.choice('5', '3', 'width')}, {channels})"))
        w.values.append(Value("context", TOKENS, channels, "context", own=False))
    if w.chance(0.7):
        w.inputs.append(("t", "torch.rand(batch)"))
        _time(w)


def _time(w: Writer) -> None:
    """A timestep's embedding, by sinusoids as most do it or by a product."""
    channels = w.channels()
    if w.chance(0.6):
        w.line(
            f"f = torch.exp(-math.log(10000.0) * torch.arange({channels // 2}, device=t.device) / {channels // 2}).to(t.dtype)"
        )
        angles = w.choice("t[:, None] * f[None]", "t[:, None] * f", "torch.outer(t, f)", "(t * 1000)[:, None] * f")
        w.line(f"e = {angles}")
        e = w.choice("torch.cat([e.cos(), e.sin()], dim=-1)", "torch.cat([torch.sin(e), torch.cos(e)], -1)")
        w.line(f"emb = {w.linear(channels, channels)}({e})")
    else:
        w.line(f"emb = {w.linear(1, channels)}(t[:, None])")
    w.values.append(Value("emb", VECTOR, channels))


def _result(w: Writer) -> str:
    last = w.values[-1].name
    others = [value.name for value in w.values[-4:-1]]
    ways = [f"return {last}", f"return {last}", f"return {last}"]
    if others:
        ways += [
            f"return {last}, {others[-1]}",
            f"return {{'sample': {last}, 'hidden': [{others[0]}]}}",
            f"return ({last}, {last})",
        ]
    return w.choice(*ways)
