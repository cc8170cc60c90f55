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


@pytest.mark.parametrize("how", ["the same", "another thread", "misaligned"])
def test_the_proof_is_the_graphs_rehearsal(graphs: DeviceGraphs, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """The program runs to be proved, to be captured and, here, to be replayed; once more in a thread of which nothing
    is known, and where the proof ran other kernels than the graph's own inputs need.
    """
    runs: list[bool] = []
    run = Program.__call__

    def counted(self: Program, *args: Any) -> list[torch.Tensor]:
        runs.append(torch._C._len_torch_dispatch_stack() > 0)
        return run(self, *args)

    monkeypatch.setattr(Program, "__call__", counted)
    handle, inputs, results = compile(UNet(), CompileConfig(allow_cpu=True)), UNet.inputs(), []

    if how == "misaligned":
        latent = inputs[0]
        inputs = (torch.cat([latent.new_zeros(1), latent.flatten()])[1:].view(latent.shape), *inputs[1:])

    def call() -> None:
        with torch.no_grad():
            results.append(handle(*inputs))

    call()
    if how == "another thread":
        other = threading.Thread(target=call)
        other.start()
        other.join()
    else:
        call()
    proved = [how != "misaligned"]
    assert runs == [*proved, False, False] if how == "the same" else [*proved, True, False, False]
    assert torch.equal(*results)
    assert dict(handle.engine.report.calls) == {"traced": 1, "replayed": 1}
