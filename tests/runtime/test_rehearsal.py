"""What can't be captured is found in the warm-up. The meta device stands for the GPU where something is copied."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from sfast_core.runtime.graphs import DeviceGraphs
from sfast_core.runtime.rehearsal import CapturedBefore, Rehearsal, Rehearsed, rehearsed
from tests.fakes import FakeBackend

X = torch.arange(12.0).reshape(3, 4)
META = torch.empty(3, 4, device="meta")

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a value": (lambda: X.sum().item(), "reads a tensor's values"),
    "a truth": (lambda: bool(X.sum() > 0), "reads a tensor's values"),
    "where it isn't zero": (lambda: torch.nonzero(X), "reads a tensor's values"),
    "what is selected": (lambda: X[X > 3], "reads a tensor's values"),
    "masked": (lambda: torch.masked_select(X, X > 3), "reads a tensor's values"),
    "assigned by a mask": (lambda: X.clone().index_put_((X > 3,), torch.zeros(8)), "reads a tensor's values"),
    "counts": (lambda: torch.bincount(torch.tensor([1, 2])), "reads a tensor's values"),
    "repeated": (lambda: X.repeat_interleave(torch.tensor([1, 0, 2]), dim=0), "reads a tensor's values"),
    "as many classes as there are": (lambda: F.one_hot(torch.tensor([0, 2])), "reads a tensor's values"),
    "an inverse": (lambda: torch.linalg.inv(torch.eye(3)), "reads a tensor's values"),
    "a copy to the device": (lambda: torch.ones(3).to("meta"), "copies between cpu and meta"),
    "a scalar to the device": (lambda: torch.ones(()).to("meta"), "copies between cpu and meta"),
    "a copy in place": (lambda: META.clone().copy_(X), "copies between cpu and meta"),
    "one element assigned": (
        lambda: META.clone().__setitem__((0, 0), torch.tensor(1.0)),
        "copies between cpu and meta",
    ),
    "an index on the CPU": (lambda: META[torch.tensor([0, 2])], "copies between cpu and meta"),
    "filled with what the device has": (
        lambda: META.index_fill(0, torch.zeros(1, dtype=torch.long, device="meta"), META.sum()),
        "reads a tensor's",
    ),
}
FINE: dict[str, Callable[[], Any]] = {
    "arithmetic": lambda: F.silu(X * 2) + X.softmax(-1),
    "a scalar on the CPU": lambda: META * torch.tensor(2.0),
    "a layer": lambda: F.linear(X, torch.ones(5, 4), torch.ones(5)),
    "a normalisation": lambda: F.group_norm(X[None], 3),
    "attention": lambda: F.scaled_dot_product_attention(X[None, None], X[None, None], X[None, None]),
    "an index": lambda: X[torch.tensor([0, 2])],
    "a choice": lambda: torch.where(X > 3, X, 1.0),
    "a number where a mask says": lambda: X.clone().__setitem__(X > 3, 0.0),
    "filled in": lambda: X.masked_fill(X > 3, 0.0),
    "a slice": lambda: META.clone().__setitem__((slice(0, 2),), 1.0),
    "repeated to a known length": lambda: X.repeat_interleave(torch.tensor([1, 0, 2]), dim=0, output_size=3),
    "sorted": lambda: X.sort(dim=1).values,
    "new memory": lambda: torch.zeros(3) + X.new_ones(3),
}


@pytest.mark.parametrize("inference", [False, True], ids=["no grad", "inference mode"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_a_graph_can_not_repeat_is_refused(name: str, inference: bool) -> None:
    """In inference mode torch shows a whole function in the place of the operators that it is made of."""
    run, reason = REFUSED[name]
    with (
        torch.inference_mode() if inference else torch.no_grad(),
        pytest.raises(RuntimeError, match=reason),
        Rehearsal(),
    ):
        run()


@pytest.mark.parametrize("name", FINE)
def test_what_a_graph_can_repeat_runs_as_it_is(name: str) -> None:
    with torch.no_grad():
        expected = FINE[name]()
        with Rehearsal():
            got = FINE[name]()
    if isinstance(expected, torch.Tensor) and not expected.is_meta:
        assert torch.equal(got, expected)


def test_it_is_found_before_anything_is_captured() -> None:
    graphs, runs = DeviceGraphs(FakeBackend()), []

    def run(inputs: Any) -> list[torch.Tensor]:
        runs.append(1)
        return [torch.nonzero(inputs[0])]

    with pytest.raises(
        RuntimeError, match="nonzero reads a tensor's values on the CPU, which a CUDA graph can't repeat"
    ):
        graphs.capture([X], run, None)
    assert len(runs) == 1 and graphs.captures == 0 and graphs.bytes == 0


def test_what_was_captured_once_needs_no_rehearsal() -> None:
    """A LoRA changes where weights lie, and all of the model's graphs are captured again."""
    graphs, modes = DeviceGraphs(FakeBackend()), []

    def run(inputs: Any) -> list[torch.Tensor]:
        modes.append(torch._C._len_torch_dispatch_stack() > 0)
        return [inputs[0] * 2]

    first = graphs.capture([X], run, None)
    assert modes == [True, False]
    graphs.capture([X], run, None, instead_of=first, shown=CapturedBefore())
    assert modes == [True, False, False, False]


def _shown(run: Callable[[], list[torch.Tensor]]) -> Rehearsed | None:
    return rehearsed(run, lambda: 5)[1]


def test_what_ran_before_is_captured_at_once() -> None:
    """The proof has run what is captured: a second run would only make a first picture later."""
    graphs, runs = DeviceGraphs(FakeBackend()), []

    def run(inputs: Any) -> list[torch.Tensor]:
        runs.append(torch._C._len_torch_dispatch_stack() > 0)
        return [inputs[0].t() * 2, inputs[0].sum(0)]

    shown = _shown(lambda: run([X]))
    assert shown is not None and shown.serves() and shown.room == 5
    captured = graphs.capture([X], run, None, shown=shown)
    assert runs == [True, False]
    expected = run([X + 1])
    got = captured.replay([X + 1])
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(got, expected, strict=True))
    assert [mine.stride() for mine in got] == [theirs.stride() for theirs in expected]


def test_what_it_returns_is_returned_where_no_graph_could_hold_it() -> None:
    results, shown = rehearsed(lambda: [torch.nonzero(X)], lambda: 0)
    assert torch.equal(results[0], torch.nonzero(X)) and shown is None


def test_another_thread_has_to_rehearse_by_itself() -> None:
    """It may not have set up the libraries, which can't be done during a capture."""
    shown = _shown(lambda: [X * 2])
    assert shown is not None
    served: list[bool] = []
    thread = threading.Thread(target=lambda: served.append(shown.serves()))
    thread.start()
    thread.join()
    assert served == [False]


def test_nothing_large_is_imported_for_it() -> None:
    code = (
        "import sys, torch\nfrom sfast_core.runtime.rehearsal import Rehearsal\nbefore = 'torch._dynamo' in sys.modules\n"
        "with torch.no_grad(), Rehearsal():\n    torch.ones(3) * 2\nassert before == ('torch._dynamo' in sys.modules)"
    )
    hook = getattr(torch.utils._python_dispatch.TorchDispatchMode, "_should_skip_dynamo", None)
    if hook is None:
        pytest.skip("this PyTorch can't be told to leave it out")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
