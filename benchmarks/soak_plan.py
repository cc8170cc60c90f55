"""What ``benchmarks.soak`` changes and when: a seeded walk through what a ComfyUI user changes between two pictures."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from .soak_patches import PATCHES

TOKENS = (77, 154, 231, 308)
STRENGTHS = (-0.6, 0.3, 0.5, 0.8, 1.0)
SAMPLERS = ("euler", "dpmpp_2m", "euler_ancestral", "heun", "ddim")
MOST_PATCHES = 2  #: at a time
LORAS = 4  #: there are so many to choose from
MOST_LORAS = 3  #: at a time
#: Width and height; one of each list has an odd number of latent rows and columns.
SIZES = {
    "SD1.5": ((512, 512), (416, 608), (520, 712), (640, 384)),
    "SDXL": ((1024, 1024), (832, 1216), (1000, 1032), (1152, 896)),
    "tiny": ((64, 64), (72, 88), (96, 48)),
}
_BACK = "back to an earlier state"
_REMEMBERED = 12  #: states to go back to


@dataclass(frozen=True)
class State:
    """All that decides a picture, apart from the model and the seed. Two equal states must give the same bits."""

    size: tuple[int, int]
    loras: tuple[tuple[int, float], ...] = ()  #: which and how strong, in order
    prompt: int = 0
    tokens: int = 77
    batch: int = 1
    cfg: float = 7.0
    control: float = 0.0  #: a ControlNet's strength; 0: there is none
    patches: tuple[str, ...] = ()  #: names of other nodes, in order
    sampler: str = SAMPLERS[0]
    node_last: bool = False  #: our node stands behind the other nodes, not before them


@dataclass(frozen=True)
class Change:
    """A step of the walk: what was changed, and the state since then."""

    kind: str
    state: State
    swap: bool  #: the weights are others than before


def plan(model: str, count: int, seed: int = 0) -> list[Change]:
    """``count`` changes of the state of ``model`` (a key of SIZES), each to another one; a seed's are the same."""
    draw = random.Random(seed)
    state = State(SIZES[model][0])
    seen = [state]
    walk: list[Change] = []
    while len(walk) < count:
        kind = draw.choices(list(_CHANGES), [weight for weight, _ in _CHANGES.values()])[0]
        after = draw.choice(seen[-_REMEMBERED:]) if kind == _BACK else _CHANGES[kind][1](state, model, draw)
        if after == state:
            continue
        walk.append(Change(kind, after, after.loras != state.loras))
        state = after
        if state not in seen:
            seen.append(state)
    return walk


def _loras(state: State, model: str, draw: random.Random) -> State:
    """All go, or one is added, removed or put in another's place."""
    if state.loras and draw.random() < 0.2:
        return replace(state, loras=())
    loras = list(state.loras)
    if loras and (len(loras) == MOST_LORAS or draw.random() < 0.5):
        loras.pop(draw.randrange(len(loras)))
    if not loras or draw.random() < 0.5:
        free = [number for number in range(LORAS) if number not in dict(loras)]
        loras.append((draw.choice(free), draw.choice(STRENGTHS)))
    return replace(state, loras=tuple(loras))


def _strength(state: State, model: str, draw: random.Random) -> State:
    loras = list(state.loras)
    if loras:
        at = draw.randrange(len(loras))
        loras[at] = (loras[at][0], draw.choice(STRENGTHS))
    return replace(state, loras=tuple(loras))


def _patch(state: State, draw: random.Random) -> State:
    """All go, or one comes, or another order."""
    if state.patches and draw.random() < 0.5:
        return replace(state, patches=())
    return replace(state, patches=tuple(draw.sample(sorted(PATCHES), draw.randint(1, MOST_PATCHES))))


#: What may be changed, how often next to the others, and how.
_CHANGES: dict[str, tuple[int, Callable[[State, str, random.Random], State]]] = {
    "LoRA set": (26, _loras),
    "LoRA strength": (18, _strength),
    _BACK: (16, _loras),
    "prompt": (6, lambda state, model, draw: replace(state, prompt=draw.randrange(1000))),
    "prompt length": (6, lambda state, model, draw: replace(state, tokens=draw.choice(TOKENS))),
    "resolution": (6, lambda state, model, draw: replace(state, size=draw.choice(SIZES[model]))),
    "batch": (5, lambda state, model, draw: replace(state, batch=3 - state.batch)),
    "cfg": (5, lambda state, model, draw: replace(state, cfg=8.0 - state.cfg)),
    "ControlNet": (5, lambda state, model, draw: replace(state, control=draw.choice((0.0, 0.3, 0.6)))),
    "model patch": (9, lambda state, model, draw: _patch(state, draw)),
    "sampler": (3, lambda state, model, draw: replace(state, sampler=draw.choice(SAMPLERS))),
    "place of our node": (2, lambda state, model, draw: replace(state, node_last=not state.node_last)),
}
KINDS = tuple(_CHANGES)
