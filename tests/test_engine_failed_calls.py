"""A recorded call in which a torch function fails is made once more as it was: it leaves behind what it leaves without
us, once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as of_all
from torch.nn.utils import parametrize

from sfast_core import CompileConfig, compile


def hook(*_: Any) -> None:
    """Does nothing."""


LEFT: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "a hook of a layer": (lambda s: s.linear.register_forward_hook(hook), lambda s: len(s.linear._forward_hooks)),
    "a hook of a layer that has one": (
        lambda s: s.hooked.register_forward_hook(hook),
        lambda s: len(s.hooked._forward_hooks),
    ),
    "a hook in front of a layer": (
        lambda s: s.linear.register_forward_pre_hook(hook),
        lambda s: len(s.linear._forward_pre_hooks),
    ),
    "a hook of its own": (lambda s: s.register_forward_hook(hook), lambda s: len(s._forward_hooks)),
    "a hook of all layers": (
        lambda s: s.handles.append(of_all.register_module_forward_hook(hook)),
        lambda s: len(of_all._global_forward_hooks),
    ),
    "a layer's class": (
        lambda s: parametrize.register_parametrization(s.linear, "weight", nn.Identity()),
        lambda s: len(s.linear.parametrizations.weight),
    ),
}


class Net(nn.Module):
    def __init__(self, leaves: Callable[[Any], Any], fails: bool) -> None:
        super().__init__()
        self.linear, self.hooked = nn.Linear(4, 4), nn.ReLU()
        self.hooked.register_forward_hook(hook)
        self.handles: list[Any] = []
        self.leaves, self.fails = leaves, fails

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        self.leaves(self)
        return torch.ones(3) @ x if self.fails else x


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("name", LEFT)
def test_what_a_call_leaves(name: str, fails: bool) -> None:
    leaves, left = LEFT[name]
    found = []
    for ours in (False, True):
        net = Net(leaves, fails).eval().requires_grad_(False)
        call = compile(net, CompileConfig(allow_cpu=True)) if ours else net
        try:
            for _ in range(3):
                if fails:
                    with pytest.raises(RuntimeError, match="inconsistent tensor size"), torch.no_grad():
                        call(torch.ones(4))
                else:
                    with torch.no_grad():
                        call(torch.ones(4))
            found.append(left(net))
        finally:
            for handle in net.handles:
                handle.remove()
    assert found[0] == found[1]
