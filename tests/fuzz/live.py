"""Random modules whose blocks do what no graph can hold, each from a seed, as source: they read values, keep a state, ask
which tensor they have, leave things behind for one another.
"""

from __future__ import annotations

import random
from typing import NamedTuple

_HEAD = """import itertools
import numpy as np
import torch
from torch import nn

HISTORY = []


class Box:
    def __init__(self):
        self.value, self.count = None, 0


BOX = Box()


class Inner(nn.Module):
    # what code that runs live may call

    def __init__(self):
        super().__init__()
        self.lin, self.scale = nn.Linear(8, 8), 0.5

    def forward(self, x, options):
        options['inner'] = options.get('inner', 0) + 1
        return self.lin(x).relu() * self.scale
"""


class Act(NamedTuple):
    """One thing that a block does to ``x``, of shape (batch, 8), and what it needs of its block from the start."""

    does: str
    keeps: str = ""


ACTS = (
    Act("x = self.lin(x)", "self.lin = nn.Linear(8, 8)"),
    Act("x = torch.tanh(x) * self.scale", "self.scale = 1.5"),
    Act("x = x + options.get('bias', 0)"),
    Act("options['bias'] = x.mean()"),
    Act("options.setdefault('maps', []).append(x)"),
    Act("x = x + sum(options.get('maps', ())) * 0.1"),
    Act("x = x.clone()\nx.mul_(0.5)"),
    Act("x = x[:, :4].repeat(1, 2)"),
    # what is left behind
    Act("self.last = x", "self.last = None"),
    Act("self.maps.append(x * 2)", "self.maps = []"),
    Act("self.table['x'] = x", "self.table = {}"),
    Act("BOX.value = x"),
    # values
    Act("x = x * 2 if x.sum().item() > 0 else x - 1"),
    Act("x = x * float(np.abs(x.numpy()).max() > 1)"),
    Act("if x.mean() > 0.1:\n    x = x - 0.1"),
    Act("x = x + torch.tensor(x.tolist()) * 0.1"),
    # random numbers
    Act("x = x + torch.randn_like(x) * 0.1"),
    Act("x = x * np.random.rand()"),
    # a state
    Act("self.calls += 1\nx = x * self.calls", "self.calls = 0"),
    Act("x = x * next(self.numbers)", "self.numbers = itertools.cycle([1.0, 0.5, 2.0])"),
    Act("before, self.before = self.before, x\nx = x if before is None else x + before * 0.5", "self.before = None"),
    Act("self.mean.mul_(0.9).add_(x.mean(0) * 0.1)\nx = x - self.mean", "self.register_buffer('mean', torch.zeros(8))"),
    Act("HISTORY.append(x.mean())\nx = x * len(HISTORY) * 0.5"),
    Act("BOX.count += 1\nx = x + BOX.count"),
    Act(
        "if self.kept is None or self.uses % 3 == 0:\n    self.kept = x * 0.5\nself.uses += 1\nx = x + self.kept",
        "self.kept, self.uses = None, 0",
    ),
    Act(
        "self.turns = not self.turns\nx = torch.cat([x, x])[: len(x)] if self.turns else x.flip(0)",
        "self.turns = False",
    ),
    # which tensor it is
    Act("same = self.seen is x\nself.seen = x\nx = x * (2 if same else 1)", "self.seen = None"),
    Act("self.known[x] = len(self.known)\nx = x * (1 + self.known[x] * 0.1)", "self.known = {}"),
    Act("x = x * (3 if any(x is each for each in options.get('maps', ())) else 1)"),
    Act("x = x * (3 if x is options.get('first') else 1)"),
    # memory
    Act("float(x[0, 0])\nx.mul_(1.5)"),
    Act("float(x[0, 0])\nself.view = x[:1]", "self.view = None"),
    Act("float(x[0, 0])\nx = x[:, ::2].repeat(1, 2)"),
    Act("float(x[0, 0])\nx = x.t().contiguous().t()"),
    Act("float(x[0, 0])\nif 'first' in options:\n    options['first'].add_(0.1)"),
    Act("if 'first' in options:\n    options['first'].add_(0.1)"),
    Act("self.lin2.weight.mul_(1.01)\nx = self.lin2(x)", "self.lin2 = nn.Linear(8, 8)"),
    Act("self.lin3.bias = nn.Parameter(x.detach().mean(0), False)\nx = self.lin3(x)", "self.lin3 = nn.Linear(8, 8)"),
    Act("found = {'a': x * 2, 'b': (x, None)}\nx = found['a'] + found['b'][0]"),
    Act("maps = options.setdefault('seen', {})\nmaps[float(x[0, 0])] = x\nx = x + sum(maps.values()) * 0.1"),
    Act("maps = options.setdefault('places', {})\nmaps[len(maps)] = x\nx = x + maps[0] * 0.1"),
    Act("x = self.inner(x, options)", "self.inner = Inner()"),
    Act("x = self.inner(x, options) + x\nfloat(x[0, 0])", "self.inner = Inner()"),
    Act(
        "for _ in range(int(x.abs().sum().nan_to_num().clamp(max=9)) % 3):\n    x = self.inner(x, options)",
        "self.inner = Inner()",
    ),
    Act("options.setdefault('count', []).append(float(x.sum()))\nx = x * len(options['count'])"),
    Act("try:\n    x = x * self.nothing\nexcept AttributeError:\n    x = x * float(x[0, 0] > 0)"),
)
#: What one block leaves for another one to read.
PAIRS = (
    (Act("BOX.scale = float(x.mean())"), Act("x = x * getattr(BOX, 'scale', 1.0)")),
    (Act("BOX.count += 1"), Act("x = x * BOX.count if BOX.count else x")),
    (Act("float(x[0, 0])\noptions['bias'] = x.mean()"), Act("x = x + options.get('bias', 0)")),
    (
        Act("BOX.value = x * float(x[0, 0] > 0)"),
        Act("if BOX.value is not None and BOX.value.shape == x.shape:\n    x = x + BOX.value * 0.1"),
    ),
)
_RESULTS = (
    "x",
    "x",
    "x, first",
    "{'sample': x, 'maps': options.get('maps')}",
    "(x, x[:1])",
    "[x, options.get('bias'), x]",
)


def live_source(seed: int, most: int = 99) -> str:
    """The file of a module ``Model``. ``most``: that many acts at most, of those that the seed gives."""
    draw = random.Random(seed)
    blocks: list[list[Act]] = []
    for _ in range(draw.randint(2, 4)):
        blocks.append([draw.choice(ACTS) for _ in range(draw.randint(1, 3))])
    if draw.random() < 0.5:
        first, second = draw.sample(blocks, 2)
        for block, act in zip((first, second), draw.choice(PAIRS), strict=True):
            block.append(act)
    order = [draw.randrange(len(blocks)) for _ in range(draw.randint(2, 5))]
    result, hands, copies = draw.choice(_RESULTS), draw.random() < 0.5, draw.random() < 0.3
    left = most
    text = _HEAD
    for number, acts in enumerate(blocks):
        acts, left = acts[:left], left - len(acts[:left])
        keeps = list(dict.fromkeys(act.keeps for act in acts if act.keeps)) or ["pass"]
        text += f"\n\nclass Block{number}(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        text += "".join(f"        {line}\n" for line in keeps)
        text += "\n    def forward(self, x, options):\n"
        text += "".join(f"        {line}\n" for act in acts for line in act.does.splitlines()) + "        return x\n"
    made = ", ".join(f"Block{number}()" for number in range(len(blocks)))
    text += "\n\nclass Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    text += f"        self.first, self.blocks = nn.Linear(8, 8), nn.ModuleList([{made}])\n"
    text += "\n    def forward(self, x):\n        x = first = self.first(x)\n        options = {}\n"
    if hands:
        text += "        options['first'] = first\n"
    for number in order:
        text += f"        x = self.blocks[{number}](x{'.clone()' if copies else ''}, options)\n"
        if draw.random() < 0.3:
            text += "        x = x + first * 0.1\n"
    return text + f"        return {result}\n"
