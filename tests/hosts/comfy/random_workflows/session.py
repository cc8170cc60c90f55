"""A session: a model, a workflow with it, and queues between which something is changed, with and without the pack."""

from __future__ import annotations

import random
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import comfy.sample
import comfy.samplers
import torch
from driver import distance, fast_compile, node

from random_workflows import models, nodes, parts, prompts
from random_workflows.models import Subject
from random_workflows.nodes import KINDS, Node

SAMPLERS = (
    "euler",
    "euler",
    "heun",
    "dpmpp_2m",
    "dpmpp_sde",
    "euler_ancestral",
    "lcm",
    "uni_pc",
    "ddim",
    "res_multistep",
)
SAMPLERS += (
    "dpmpp_2m_sde",
    "lms",
    "ipndm",
    "deis",
    "euler_cfg_pp",
    "er_sde",
    "sa_solver",
    "dpm_2",
    "gradient_estimation",
)
SCHEDULERS = (
    "normal",
    "simple",
    "karras",
    "sgm_uniform",
    "beta",
    "exponential",
    "ddim_uniform",
    "kl_optimal",
    "linear_quadratic",
)
#: Relative distances that are no question; beyond them a picture's noise is moved by as much, and the picture moves.
NEAR = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
_MOVED = {torch.float32: 1e-6, torch.bfloat16: 4e-3}
_TIMES = 30  #: as far as the plain picture moves, a picture may be away


@dataclass(frozen=True)
class Workflow:
    """What a queue computes.

    Attributes:
        chain: the nodes between loader and sampler; ``places``: in front of which of them ours stands, if anywhere.
        positive: a prompt; ``negative``: the other one.
        size: of the latent; ``batch``: how many; ``seed``: of the noise.
        sampler, scheduler, steps, cfg: the sampler's inputs; ``guider``: which of ComfyUI's guiders.
        masked: whether a part of a given latent is drawn anew; ``again``: whether a larger latent is sampled behind it.
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
    net: bool = True


class Side:
    """A model with what ComfyUI keeps of one queue for the next: the outputs of nodes whose inputs are the same."""

    def __init__(self, subject: Subject, fast: bool, moved: int = 0) -> None:
        """``moved``: a number by which the noise is moved a little."""
        self.subject, self.fast, self.moved = subject, fast, moved
        self.model = models.built(subject)
        self.net = prompts.control_net(subject) if subject.name == "SD1.5" else None
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
        mask = (models.noise(1, 1, *latent.shape[-2:])(8) > 0).float() if workflow.masked else None
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
        if workflow.guider == "cfg":
            return comfy.sample.sample(
                model, start, workflow.steps, workflow.cfg, workflow.sampler, workflow.scheduler, *both, latent,
                denoise=denoise, noise_mask=mask, disable_pbar=True, seed=workflow.seed,
            )  # fmt: skip
        guider = _guider(workflow, model, *both)
        sampler = comfy.samplers.sampler_object(workflow.sampler)
        sigmas = comfy.samplers.calculate_sigmas(
            model.get_model_object("model_sampling"), workflow.scheduler, round(workflow.steps / denoise)
        )
        return guider.sample(
            start,
            latent,
            sampler,
            sigmas[-workflow.steps - 1 :],
            denoise_mask=mask,
            disable_pbar=True,
            seed=workflow.seed,
        )

    def _noise(self, latent: torch.Tensor, seed: int) -> torch.Tensor:
        found = comfy.sample.prepare_noise(latent, seed)
        if self.moved:
            found = found * (1 + _MOVED[self.subject.dtype] * models.noise(*found.shape)(self.moved))
        return found


def _guider(workflow: Workflow, model: Any, positive: Any, negative: Any) -> Any:
    if workflow.guider == "basic":
        return node("nodes_custom_sampler", "BasicGuider")(model, positive)
    if workflow.guider == "dual":
        return node("nodes_custom_sampler", "DualCFGGuider")(
            model, positive, negative[:1], negative, workflow.cfg, 2.0, "regular"
        )
    return node("nodes_perpneg", "PerpNegGuider")(model, positive, negative, negative[:1], workflow.cfg, 1.0)


def first(plan: random.Random, subject: Subject) -> Workflow:
    """A session's first workflow."""
    chain = tuple(nodes.drawn(plan, subject) for _ in range(plan.choice((0, 1, 2, 3, 4))))
    return Workflow(
        chain, (plan.randint(0, len(chain)),), prompts.drawn(plan, subject), prompts.drawn(plan, subject, plan.random() < 0.7),
        subject.family.latent[1:], cfg=subject.family.cfg, steps=plan.choice((2, 3, 4)),
        sampler=plan.choice(SAMPLERS), scheduler=plan.choice(SCHEDULERS[:4]),
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
        cfg=plan.choice((1.0, subject.family.cfg, 3.0)), guider=plan.choice(("cfg", "cfg", "basic", "dual", "perpendicular") if guided else ("cfg", "basic")),
    )  # fmt: skip


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
    try:
        side.run(now)
    except Exception:
        side.kept.clear()


def _calls(side: Side) -> Counter[str]:
    found: Counter[str] = Counter()
    for state in fast_compile.states():
        if state.base_model() is side.model.model:
            report = state.engine.report
            found += Counter(report.calls) + Counter(
                {f"because {reason}": count for reason, count in report.reasons.items()}
            )
    return found
