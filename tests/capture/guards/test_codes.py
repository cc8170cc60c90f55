"""What is known of code is kept by the object, and is none of another's that lies where it lay."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import nn

from sfast_core import CompileConfig, compile
from sfast_core.capture.guards import ReadSet, reads_of
from sfast_core.capture.guards.chains import ATTRIBUTE, Chain
from tests.models import Forward


def test_code_is_looked_at_once() -> None:
    code = test_code_is_looked_at_once.__code__
    assert reads_of(code) is reads_of(code)
    equal = code.replace()
    assert equal == code and reads_of(equal) is not reads_of(code), "by the object: another one may have been freed"


def test_a_chain_in_the_memory_of_one_that_is_gone_is_followed() -> None:
    """As code's that is read for the first time may be."""
    net: Any = Forward(lambda net, x: x * net.scale)
    net.scale = 2.0
    reads = ReadSet(net, net.forward)
    one = Chain()
    there = id(one)
    reads._see(net, one, None)
    del one
    others = [Chain() for _ in range(100)]
    other = next((chain for chain in others if id(chain) == there), others[0])
    scale = other.at((ATTRIBUTE, "scale"))
    assert scale is not None
    scale.loaded = True
    reads._see(net, other, None)
    assert reads.seen[id(net)].found["scale"] == 2.0


def test_what_is_known_of_one_models_code_hides_nothing_of_anothers() -> None:
    """Code that is seen for the first time, also where what is noted of it lies in the memory of what was noted
    before.
    """
    for number in range(8):
        exec(
            f"class Net(nn.Module):\n    def forward(self, x):\n        return self.linear(x) * (self.settings.scale + {number})\n",
            names := {"nn": nn},
        )
        net = names["Net"]().requires_grad_(False)
        net.linear, net.settings = nn.Linear(8, 8).requires_grad_(False), types.SimpleNamespace(scale=1.0)
        handle, x = compile(net, CompileConfig(allow_cpu=True)), torch.ones(2, 8)
        handle(x), handle(x)
        net.settings.scale = 3.0
        assert torch.equal(handle(x), net.linear(x) * (3.0 + number)), f"model {number}"
