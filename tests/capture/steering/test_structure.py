"""What steers a forward by its structure: modules and their order, classes, methods, hooks, torch's own functions,
buffers, weights.
"""

from __future__ import annotations

import pytest
import torch

from sfast_core import CompileConfig, compile
from tests.capture.steering import structure_hooks, structure_layers, structure_modules, structure_weights
from tests.capture.steering.structure import CASES

X = torch.linspace(-1.0, 2.0, 16).reshape(2, 8)


#: What puts its cases there.
GROUPS = (structure_layers, structure_modules, structure_hooks, structure_weights)


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_noticed(name: str) -> None:
    steered = []
    for _ in range(2):
        torch.manual_seed(0)
        steered.append(CASES[name]())
        steered[-1].module.eval().requires_grad_(False)
    ours, twin = steered
    with torch.no_grad():
        handle = compile(ours.module, CompileConfig(allow_cpu=True))
        first = twin.module(X)
        for _ in range(3):
            torch.testing.assert_close(handle(X), first)
        try:
            for one in steered:
                torch.manual_seed(1)
                one.change()
            for _ in range(2):
                torch.testing.assert_close(handle(X), twin.module(X))
        finally:
            for one in (twin, ours):
                if one.back is not None:
                    one.back()
        for _ in range(2):
            torch.testing.assert_close(handle(X), twin.module(X))
