"""Several callers of a compiled module, and what is said of its calls."""

from __future__ import annotations

import logging
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.callers import calls, check, compiled, own
from tests.models import Forward, UNet

pytestmark = pytest.mark.usefixtures("no_gradients")


def test_threads_with_two_signatures_get_their_own_results() -> None:
    handle = compiled()
    work = [UNet.inputs(size=8 if number % 2 else 16) for number in range(8)]
    expected = [own(handle, *inputs) for inputs in work]
    wrong: list[str] = []

    def run(number: int) -> None:
        with torch.inference_mode():
            for step in range(4):
                try:
                    torch.testing.assert_close(handle(*work[number]), expected[number], rtol=1e-4, atol=1e-5)
                except Exception as error:
                    wrong.append(f"thread {number}, step {step}: {error}")

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert wrong == [] and calls(handle) == {"traced": 2, "fused": 30}


def test_a_compiled_module_inside_another_and_inside_itself() -> None:
    inner = compiled(Forward(lambda net, x: F.silu(net.lin(x)), lin=nn.Linear(4, 4)))
    outer = compiled(Forward(lambda net, x: net.inner(x) + 1, inner=inner.module))
    for _ in range(2):
        check(inner, torch.randn(2, 4))
        check(outer, torch.randn(2, 4))
    assert calls(inner)["traced"] == 1 and calls(outer) == {"traced": 1, "fused": 1}
    itself = compiled(
        Forward(lambda net, x: net.lin(x) if len(x) == 1 else net(x[:1]) + net(x[1:]).sum(0), lin=nn.Linear(4, 4))
    )
    for rows in (3, 3, 1, 2, 3, 1):
        check(itself, torch.randn(rows, 4))
    assert calls(itself)["traced"] == 3 and set(calls(itself)) == {"traced", "fused"}


def test_what_is_said_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """With what came, why, what is done instead and what the user can do."""
    handle = compiled(Forward(lambda net, x: x * x.sum().item()))
    with caplog.at_level(logging.INFO, "fast_compile"):
        for size in (2, 2, 2, 3, 3):
            check(handle, torch.randn(size))
    assert [record.message for record in caplog.records] == [
        "Fast Compile: Forward runs as it was, unaccelerated, because it can't be traced: item reads a tensor's value into Python. "
        "What you can do: compute with tensors instead (torch.where, masks) if the code is yours; otherwise nothing: this "
        "call is as fast as before."
    ]


def test_what_may_not_be_said_now_is_said_later(caplog: pytest.LogCaptureFixture) -> None:
    """A host allows one line for each picture; a warning is logged all the same."""
    handle, room = compiled(Forward(lambda net, x: net.lin(x).relu(), lin=nn.Linear(4, 4))), [False, True]
    handle.engine.reporter.may_say = lambda: room.pop(0)
    with caplog.at_level(logging.INFO, "fast_compile"):
        for _ in range(3):
            handle.engine.run_eager("a reason", lambda: None)
        assert len(caplog.records) == 1 and not room
        handle.engine.reporter.may_say = lambda: False
        handle.engine.reporter.say("a warning", logging.WARNING)
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
