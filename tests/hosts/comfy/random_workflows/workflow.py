"""A workflow as a session draws it, and what is changed in it between two queues."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from random_workflows import nodes, prompts
from random_workflows.models import Subject
from random_workflows.nodes import KINDS, Node
from random_workflows.sampling import SAMPLERS, SCHEDULERS, guiders


@dataclass(frozen=True)
class Workflow:
    """What a queue computes.

    Attributes:
        chain: the nodes between loader and sampler; ``places``: in front of which of them ours stands, if anywhere.
        positive: a prompt; ``negative``: the other one.
        size: of the latent; ``batch``: how many; ``seed``: of the noise.
        sampler, scheduler, steps, cfg: the sampler's inputs; ``guider``: which of ComfyUI's guiders.
        masked: whether a part of a given latent is drawn anew; ``again``: whether a larger latent is sampled behind it.
        then: who does the second half of the steps: "again" the same model, "another" one of its family, or nothing.
        net: whether ControlNets go through our node, too.
    """

    chain: tuple[Node, ...]
    places: tuple[int, ...]
    positive: tuple[prompts.Part, ...]
    negative: tuple[prompts.Part, ...]
    size: tuple[int, ...]
    batch: int = 1
    seed: int = 1
    sampler: str = "euler"
    scheduler: str = "normal"
    steps: int = 3
    cfg: float = 1.0
    guider: str = "cfg"
    masked: bool = False
    again: bool = False
    then: str = ""
    net: bool = True


def first(plan: random.Random, subject: Subject) -> Workflow:
    """A session's first workflow."""
    chain = tuple(nodes.drawn(plan, subject) for _ in range(plan.choice((0, 1, 2, 3, 4))))
    return Workflow(
        chain, (plan.randint(0, len(chain)),), prompts.drawn(plan, subject), prompts.drawn(plan, subject, plan.random() < 0.7),
        subject.family.latent[1:], cfg=subject.family.cfg, steps=plan.choice((2, 3, 4)),
        sampler=plan.choice(SAMPLERS), scheduler=plan.choice(SCHEDULERS[:4]), then=_then(plan),
    )  # fmt: skip


def changed(plan: random.Random, subject: Subject, now: Workflow) -> Workflow:
    """The workflow with one thing or two changed."""
    for _ in range(plan.choice((1, 1, 2))):
        now = _CHANGES[plan.choice(list(_CHANGES))](plan, subject, now)
    return now


def _put_in(plan: random.Random, subject: Subject, now: Workflow) -> Workflow:
    at = plan.randint(0, len(now.chain))
    chain = (*now.chain[:at], nodes.drawn(plan, subject), *now.chain[at:])
    return replace(now, chain=chain, places=tuple(place + (place > at) for place in now.places))


def _take_out(plan: random.Random, subject: Subject, now: Workflow) -> Workflow:
    if not now.chain:
        return now
    at = plan.randrange(len(now.chain))
    return replace(
        now, chain=now.chain[:at] + now.chain[at + 1 :], places=tuple(place - (place > at) for place in now.places)
    )


def _set_anew(plan: random.Random, subject: Subject, now: Workflow) -> Workflow:
    if not now.chain:
        return now
    at = plan.randrange(len(now.chain))
    again = Node(now.chain[at].kind, KINDS[now.chain[at].kind].draw(plan, subject))
    return replace(now, chain=(*now.chain[:at], again, *now.chain[at + 1 :]))


def _move_ours(plan: random.Random, subject: Subject, now: Workflow) -> Workflow:
    end = len(now.chain)
    return replace(now, places=plan.choice(((), (0,), (end,), (plan.randint(0, end),), (0, end))))


def _resize(plan: random.Random, subject: Subject, now: Workflow) -> Workflow:
    *front, height, width = subject.family.latent[1:]
    if not front or len(subject.family.latent) < 4 or subject.family.sound:
        return now
    part, odd = height // 4, 1 if height <= 16 else 0
    sizes = [
        (height, width),
        (height - part, width),
        (height, width - part),
        (height - odd, width - 3 * odd),
        (height // 2, width),
    ]
    if not subject.name.startswith(("SD3", "PixArt")):  # their tables of positions end here
        sizes += [(height, width + part), (height + part, width + 2 * part)]
    if subject.frames:
        front[-1] = plan.choice((1, front[-1], front[-1] + 2))
    return replace(
        now, size=(*front, *plan.choice(sizes)), batch=plan.choice((1, 1, 2, 3)) if subject.family.latent[0] == 1 else 1
    )


def _resample(plan: random.Random, subject: Subject, now: Workflow) -> Workflow:
    guided = subject.family.cfg > 1
    return replace(
        now, sampler=plan.choice(SAMPLERS), scheduler=plan.choice(SCHEDULERS), steps=plan.choice((2, 3, 5)),
        cfg=plan.choice((1.0, subject.family.cfg, 3.0)), guider=plan.choice(guiders(guided)),
        then=_then(plan),
    )  # fmt: skip


def _then(plan: random.Random) -> str:
    return plan.choice(("", "", "", "again", "another"))


def _mask(plan: random.Random, subject: Subject, now: Workflow) -> Workflow:
    if len(subject.family.latent) < 4 or subject.family.sound:
        return now
    again = (
        plan.random() < 0.5
        and len(subject.family.latent) == 4
        and not subject.name.startswith(("SD3", "PixArt", "Stable Video"))
    )
    return replace(now, masked=plan.random() < 0.5, again=again)


_CHANGES: dict[str, Any] = {
    "a node more": _put_in,
    "a node less": _take_out,
    "a node's inputs": _set_anew,
    "our node's place": _move_ours,
    "the latent": _resize,
    "the sampler": _resample,
    "what is kept": _mask,
    "the prompt": lambda plan, subject, now: replace(now, positive=prompts.drawn(plan, subject)),
    "the other prompt": lambda plan, subject, now: replace(now, negative=prompts.drawn(plan, subject)),
    "the seed": lambda plan, subject, now: replace(now, seed=plan.randrange(1000)),
    "the ControlNet's node": lambda plan, subject, now: replace(now, net=not now.net),
    "nothing": lambda plan, subject, now: now,
}
