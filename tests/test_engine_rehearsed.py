"""A program's proof shows whether it can be captured, so that its graph needs no other run before."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from sfast_core import CompileConfig, compile
from sfast_core.runtime.graphs import DeviceGraphs
from sfast_core.runtime.program import Program
from tests.models import UNet


@pytest.mark.parametrize("thread", ["the same", "another"])
def test_the_proof_is_the_graphs_rehearsal(graphs: DeviceGraphs, monkeypatch: pytest.MonkeyPatch, thread: str) -> None:
    """The program runs to be proved, to be captured and, here, to be replayed; once more in a thread of which nothing
    is known.
    """
    runs: list[bool] = []
    run = Program.__call__

    def counted(self: Program, *args: Any) -> list[torch.Tensor]:
        runs.append(torch._C._len_torch_dispatch_stack() > 0)
        return run(self, *args)

    monkeypatch.setattr(Program, "__call__", counted)
    handle, inputs, results = compile(UNet(), CompileConfig(allow_cpu=True)), UNet.inputs(), []

    def call() -> None:
        with torch.no_grad():
            results.append(handle(*inputs))

    call()
    if thread == "another":
        other = threading.Thread(target=call)
        other.start()
        other.join()
    else:
        call()
    assert runs == ([True, False, False] if thread == "the same" else [True, True, False, False])
    assert torch.equal(*results)
    assert dict(handle.engine.report.calls) == {"traced": 1, "replayed": 1}
