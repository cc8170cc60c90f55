"""A session: a model, a workflow with it, and queues between which something is changed, with and without the pack."""

from __future__ import annotations

import random
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import comfy.sample
import torch
from driver import distance, fast_compile

from random_workflows import models, parts, prompts
from random_workflows.control_nets import control_net
from random_workflows.models import Subject
from random_workflows.nodes import KINDS
from random_workflows.sampling import sampled
from random_workflows.workflow import Workflow, changed, first

#: Relative distances that are no question; beyond them a picture's noise is moved by as much, and the picture moves.
NEAR = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
_MOVED = {torch.float32: 1e-6, torch.bfloat16: 4e-3}
_TIMES = 30  #: as far as the plain picture moves, a picture may be away


class Side:
    """A model with what ComfyUI keeps of one queue for the next: the outputs of nodes whose inputs are the same."""

    def __init__(self, subject: Subject, fast: bool, moved: int = 0) -> None:
        """``moved``: a number by which the noise is moved a little."""
        self.subject, self.fast, self.moved = subject, fast, moved
        self.model = models.built(subject)
        self.net = control_net(subject)
        self.second: Any = None
        self.kept: dict[Any, Any] = {}

    def run(self, workflow: Workflow) -> torch.Tensor:
        """The latent of a queue."""
        used: dict[Any, Any] = {}

        def once(key: Any, make: Any) -> Any:
            used[key] = found = self.kept[key] if key in self.kept else make()
            return found

        # as ComfyUI executes a prompt; PyTorch can't make a parameter of a quantised weight in inference mode
        with torch.no_grad() if self.subject.format else torch.inference_mode():
            try:
                return self._sampled(workflow, once)
            finally:
                self.kept = used

    def _sampled(self, workflow: Workflow, once: Any) -> torch.Tensor:
        model, before = self.model, ()
        for place, each in enumerate((*workflow.chain, None)):
            if place in workflow.places:  # on the plain side it only has what is behind it made anew, as on the other
                before = (*before, "ours")
                model = once(before, lambda model=model: fast_compile.apply(model) if self.fast else model)
            if each is not None:
                before = (*before, each)
                model = once(before, lambda model=model, each=each: KINDS[each.kind].run(model, *each.values))
        net = self.net
        if net is not None and self.fast and workflow.net:
            net = once("net", lambda: fast_compile.apply_controlnet(self.net))
        latent = torch.zeros(workflow.batch * self.subject.family.latent[0], *workflow.size)
        if workflow.masked:
            latent = models.noise(*latent.shape)(7)
        mask = self._mask(latent) if workflow.masked else None
        both = [
            once(
                (name, parts, workflow.size, workflow.net),
                lambda parts=parts: prompts.conditioning(parts, self.subject, self.model, net, latent),
            )
            for name, parts in (("positive", workflow.positive), ("negative", workflow.negative))
        ]
        torch.manual_seed(workflow.seed), random.seed(workflow.seed)
        found = self._pass(workflow, model, both, latent, mask, 1.0)
        if workflow.again:
            larger = torch.nn.functional.interpolate(found, scale_factor=1.5, mode="nearest")
            found = torch.cat([found.flatten(), self._pass(workflow, model, both, larger, None, 0.6).flatten()])
        return found

    def _pass(
        self, workflow: Workflow, model: Any, both: list[Any], latent: torch.Tensor, mask: Any, denoise: float
    ) -> torch.Tensor:
        latent = comfy.sample.fix_empty_latent_channels(model, latent)
        start = self._noise(latent, workflow.seed)
        return sampled(workflow, (model, self._another), both, start, latent, mask, denoise)

    def _another(self) -> Any:
        """Another model of the family, behind our node on the fast side."""
        if self.second is None:
            other = models.built(self.subject, 2)
            self.second = fast_compile.apply(other) if self.fast else other
        return self.second

    def _mask(self, latent: torch.Tensor) -> torch.Tensor:
        """What is drawn anew: a part of a picture, all frames of a video but the first."""
        if self.subject.frames:
            mask = torch.ones(1, 1, *latent.shape[2:])
            mask[:, :, 0] = 0.0
            return mask
        return (models.noise(1, 1, *latent.shape[-2:])(8) > 0).float()

    def _noise(self, latent: torch.Tensor, seed: int) -> torch.Tensor:
        found = comfy.sample.prepare_noise(latent, seed)
        if self.moved:
            found = found * (1 + _MOVED[self.subject.dtype] * models.noise(*found.shape)(self.moved))
        return found


@dataclass
class Outcome:
    """What became of a queue.

    Attributes:
        verdict: ``near``, ``rounding`` (so far only since the model magnifies it), ``FAR``, ``FAILED`` (ours alone),
            ``invalid`` (plain ComfyUI fails, too) or ``empty`` (it gives no numbers).
        apart: relative distance to plain ComfyUI's; ``moves``: how far its own moves with its noise.
        calls: of the model, by what became of them and why.
        why: the traceback of a failure.
    """

    verdict: str
    apart: float = 0.0
    moves: float = 0.0
    calls: Counter[str] = field(default_factory=Counter)
    why: str = ""


def run(seed: int, queues: int, family: str = "") -> Iterator[tuple[Any, Any, Outcome]]:
    """Each queue of a session, with its model and workflow; one that plain ComfyUI can't run is left again.

    One session in ten is of a VAE or of text encoders alone.
    """
    plan = random.Random(seed)
    if not family and plan.random() < 0.1:
        yield from _of_parts(plan, queues)
        return
    subject = models.drawn(plan, family)
    try:
        mine, theirs, done = Side(subject, True), Side(subject, False), list[Workflow]()
    except Exception:  # this version's class is another one
        yield subject, "no workflow", Outcome("invalid", why=traceback.format_exc(limit=-3))
        return
    now = first(plan, subject)
    for _ in range(queues):
        outcome = _queued(mine, theirs, now, done)
        yield subject, now, outcome
        if outcome.verdict != "invalid":
            done.append(now)
        now = changed(plan, subject, done[-1] if done else first(plan, subject))


def _of_parts(plan: random.Random, queues: int) -> Iterator[tuple[str, str, Outcome]]:
    subject, (mine, theirs), calls, drawn = parts.queues(plan, queues)
    for said, compute in drawn:
        before = Counter(calls())
        with torch.inference_mode():
            expected = compute(theirs)
            try:
                apart = distance(compute(mine), expected)
            except Exception:
                yield subject, said, Outcome("FAILED", why=traceback.format_exc(limit=-12))
                continue
        since = Counter(calls()) - before
        yield subject, said, Outcome("near" if apart <= NEAR[torch.float32] else "FAR", apart, calls=since)


def _queued(mine: Side, theirs: Side, now: Workflow, done: list[Workflow]) -> Outcome:
    before = _calls(mine)
    try:
        expected = theirs.run(now)
    except Exception:
        _ignored(mine, now)
        mine.kept, theirs.kept = {}, {}  # how far each came differs: the next queue makes every node anew on both sides
        return Outcome("invalid", why=traceback.format_exc(limit=-3))
    try:
        found = mine.run(now)
    except Exception:
        return Outcome("FAILED", calls=_calls(mine) - before, why=traceback.format_exc(limit=-12))
    since, near = _calls(mine) - before, NEAR[mine.subject.dtype]
    if not torch.isfinite(expected).all() or not expected.norm():
        return Outcome("empty", calls=since)
    apart = distance(found, expected)
    if apart <= near:
        return Outcome("near", apart, calls=since)
    moves = max(distance(_replayed(mine.subject, [*done, now], moved), expected) for moved in (1, 2))
    return Outcome("rounding" if apart <= _TIMES * moves else "FAR", apart, moves, since)


def _replayed(subject: Subject, workflows: list[Workflow], moved: int) -> torch.Tensor:
    """Plain ComfyUI's latent of the last one, with a little other noise."""
    side = Side(subject, False, moved)
    return [side.run(each) for each in workflows][-1]


def _ignored(side: Side, now: Workflow) -> None:
    """What fails without the pack may fail with it."""
    with suppress(Exception):
        side.run(now)


def _calls(side: Side) -> Counter[str]:
    found: Counter[str] = Counter()
    for state in fast_compile.states():
        if state.base_model() is side.model.model:
            report = state.engine.report
            found += Counter(report.calls) + Counter(
                {f"because {reason}": count for reason, count in report.reasons.items()}
            )
    return found
