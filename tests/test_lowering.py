"""What competes for a call, and what is told of the compiling and measuring of kernels while it goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from sfast_core.config import CompileConfig
from sfast_core.lowering import _choices, _why_not_worth_it
from sfast_core.machine.choices import Choices
from sfast_core.machine.numerics import Numerics
from sfast_core.ops import all_ops
from sfast_core.programs.jobs import job_of
from sfast_core.reporting.reasons.graphs import TOO_LARGE
from sfast_core.rewrite import Call
from sfast_core.runtime.job import REFERENCE, Job
from sfast_core.runtime.tuner import Tuner
from sfast_core.target import Target
from tests.fakes import FakeBackend
from tests.models import Forward
from tests.tracing import trace

pytestmark = pytest.mark.usefixtures("a_cpu_as_the_device")

CPU = torch.device("cpu")


class Impl:
    """Does nothing, or fails."""

    def __init__(self, name: str, error: Exception | None = None) -> None:
        self.name, self.carries_over, self.per_thread, self._error = name, True, False, error

    def launch(self, x: torch.Tensor) -> torch.Tensor:
        if self._error:
            raise self._error
        return x


def _jobs(*lists: list[Any]) -> list[Job]:
    return [Job(f"job {place}", impls, (torch.empty(2, 2, device="meta"),), {}) for place, impls in enumerate(lists)]


def test_it_grows_to_one() -> None:
    """Through compiling and measuring, each candidate twice, and never back."""
    told: list[float] = []
    jobs = _jobs([Impl("a"), Impl("b")], [Impl("a"), Impl("b"), Impl("c")])
    assert set(Tuner(CPU, FakeBackend(), Choices(None), True).decide(jobs, told.append)) <= {"a", "b", "c"}
    assert sorted(told) == pytest.approx([step / 10 for step in range(1, 11)])


def test_a_candidate_that_fails_counts_too() -> None:
    told: list[float] = []
    jobs = _jobs([Impl("a", ValueError("no")), Impl("b")])
    assert Tuner(CPU, FakeBackend(), Choices(None), True).decide(jobs, told.append) == ["b"]
    assert max(told) == 0.5, "one that is alone isn't timed"


def test_what_competes_for_a_call() -> None:
    """Plain PyTorch too, unless it may give other bits at the next run: then only where it is alone."""
    x, weight = torch.empty(2, 64, 8, 8, device="meta"), torch.empty(64, 64, 3, 3, device="meta")
    calls = {
        "conv2d_act": (x, weight, None),
        "upsample_conv2d": (x, weight, None),
        "linear": (x, weight[0, :, :, 0], None),
    }
    for name, args in calls.items():
        op = all_ops()[name]
        assert (REFERENCE in job_of(Call(op, op.impls, args, {}), Numerics()).impls) == (name == "linear")
        assert list(job_of(Call(op, (), args, {}), Numerics()).impls) == [REFERENCE]


def test_a_choice_among_what_other_settings_allow_is_another() -> None:
    op = all_ops()["linear"]
    call = Call(op, op.impls, (torch.empty(64, 64, device="meta"), torch.empty(64, 64, device="meta"), None), {})
    settings = [
        Numerics(),
        Numerics(fp16_accumulation=True),
        Numerics(tf32=True),
        Numerics(deterministic=True),
        Numerics(switched_off=frozenset(["cuDNN"])),
        Numerics(switched_off=frozenset(["cuDNN", "flash attention"])),
    ]
    jobs = [job_of(call, numerics) for numerics in settings]
    assert len({job.key for job in jobs}) == len({job.family for job in jobs}) == len(settings)
    assert (
        settings[0].key() == ""
        and job_of(call, Numerics(switched_off=frozenset(["flash attention", "cuDNN"]))).key == jobs[-1].key
    )


def test_pictures_that_are_too_large_for_a_graph() -> None:
    """All frames and images of the first that a call is given count, its channels don't."""
    graph = trace(Forward(lambda net, t, x: x * t), torch.ones(1), torch.ones(1, 16, 3, 4, 5)).graph
    assert (
        _why_not_worth_it(graph, CompileConfig()) is None
        and _why_not_worth_it(graph, CompileConfig(graph_pixels=60)) is None
    )
    assert _why_not_worth_it(graph, CompileConfig(graph_pixels=59)) == TOO_LARGE()
    assert (
        _why_not_worth_it(
            trace(Forward(lambda net, x: x * 2), torch.ones(2, 300, 8)).graph, CompileConfig(graph_pixels=0)
        )
        is None
    )


def test_devices_of_one_kind_share_what_was_measured() -> None:
    """So the next one measures nothing, and runs the same kernels."""
    kind = Target(torch.device("cuda", 0), "a GPU", (9, 0), 132)
    assert (
        _choices(kind)
        is _choices(replace(kind, device=torch.device("cuda", 1)))
        is not _choices(replace(kind, name="another"))
    )
