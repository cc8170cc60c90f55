"""A program's results, and the copies of them that leave it."""

from __future__ import annotations

import pytest
import torch

from sfast_core.capture.live import Form
from sfast_core.runtime.program import Program

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "like",
    [
        torch.randn(2, 3, 4, 5),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(4, 3).t(),
        torch.randn(()),
    ],
    ids=["contiguous", "channels_last", "transposed", "scalar"],
)
def test_what_is_delivered_has_the_layout_of_eager_and_memory_of_its_own(like: torch.Tensor) -> None:
    form = Form(tuple(like.shape), like.stride(), torch.float16, CPU)
    program = Program(run=lambda x: (x, x), weights=(), constants=(), forms=(form, form))
    x = torch.randn(like.shape)
    results = program([x], [])
    first, second = program.deliver(results)
    assert results[0] is x and torch.equal(first, x.half()) and first.stride() == like.stride()
    assert len({tensor.data_ptr() for tensor in (x, first, second)}) == 3


def test_arguments_are_inputs_weights_and_constants_in_this_order() -> None:
    a, b, c = torch.tensor(1.0), torch.tensor(20.0), torch.tensor(300.0)
    program = Program(
        run=lambda x, y, weight, constant: [x - y, weight, constant], weights=(), constants=(c,), forms=()
    )
    assert program([a, a], [b]) == [torch.tensor(0.0), b, c]


def test_a_program_runs_without_its_callers_autocast() -> None:
    program = Program(run=lambda x: (x @ x,), weights=(), constants=(), forms=())
    with torch.autocast("cpu", torch.bfloat16):
        (result,) = program([torch.ones(2, 2)], [])
        assert result.dtype == torch.float32 and (result @ result).dtype == torch.bfloat16


def test_nothing_is_recorded_for_gradients() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    program = Program(
        run=lambda x, w: (x * w,), weights=(), constants=(), forms=(Form((2,), (1,), torch.float32, CPU),)
    )
    assert not program.deliver(program([torch.ones(2)], [weight]))[0].requires_grad


def test_what_a_program_keeps_in_memory_of_its_own_is_handed_over() -> None:
    """Where the program's memory isn't a graph's, whose next replay writes to it."""
    forms = (Form((2, 3), (1, 2), torch.float32, CPU), Form((2, 3), (3, 1), torch.float32, CPU))
    program = Program(
        run=lambda x: (x.t().contiguous().t(), x),
        weights=(),
        constants=(),
        forms=forms,
        kept_results=frozenset({0}),
    )
    results = program([torch.randn(2, 3)], [])
    handed, delivered = program.hand_over(results), program.deliver(results)
    assert handed[0] is results[0] and handed[1] is not results[1] and torch.equal(handed[1], results[1])
    assert delivered[0] is not results[0] and delivered[0].stride() == handed[0].stride()
