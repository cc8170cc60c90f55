"""What comfy-kitchen finds out in a process's first call and keeps is no effect of that call, so it is recorded."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from sfast_core import CompileConfig
from sfast_core.engine import Engine
from sfast_core.hosts.comfy.leaves import casting_leaves
from tests.models import Forward

BACKEND = """
import torch
_empty, ways = {}, {}

def scaled(x):
    if x.device not in _empty:
        _empty[x.device] = torch.empty(0)
    return x * 2

def counted(x):
    if x.device not in ways:
        ways[x.device] = 1
    return x * 2
"""
REGISTRY = """
import functools

class Registry:
    def __init__(self, backends):
        self._backends = backends

    @functools.cached_property
    def _compute_capability(self):
        return (9, 0)

    def find(self, name):
        for backend in self._backends.values():
            if self._compute_capability >= (8, 0):
                return getattr(backend, name)
"""


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Any:
    """As much of the library as remembers something."""
    files = {name: ModuleType(f"comfy_kitchen.{name}") for name in ("backends.cuda", "registry")}
    for (name, file), text in zip(files.items(), (BACKEND, REGISTRY), strict=True):
        monkeypatch.setitem(sys.modules, file.__name__, file)
        exec(compile(text, f"comfy_kitchen/{name.replace('.', '/')}.py", "exec"), vars(file))
    for name in ("comfy", "comfy.ops"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    vars(sys.modules["comfy"])["ops"] = sys.modules["comfy.ops"]
    file = vars(files["registry"])
    file["registry"] = file["Registry"]({"cuda": files["backends.cuda"]})
    return file["registry"]


def calls(net: torch.nn.Module) -> dict[str, int]:
    engine, x = Engine("net", CompileConfig(allow_cpu=True), casting_leaves), torch.randn(2, 4)
    with torch.inference_mode():
        for _ in range(2):
            torch.testing.assert_close(engine.call(net, net.forward, (x,), {}), net(x))
    return dict(engine.report.calls)


def test_what_it_remembers_is_its_own(registry: Any) -> None:
    assert calls(Forward(lambda net, x: registry.find("scaled")(x) + 1)) == {"traced": 1, "fused": 1}


def test_another_table_is_watched(registry: Any) -> None:
    assert calls(Forward(lambda net, x: registry.find("counted")(x) + 1)) == {"eager": 1, "traced": 1}
