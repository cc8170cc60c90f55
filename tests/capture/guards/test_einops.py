"""einops keeps tables of shapes and of kinds of tensors, which it fills at each new one. Nobody steers a forward by them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, compile
from tests.models import Forward

# As einops has it: the kinds of tensors that it has met, and lists of axes, which an `lru_cache` keeps for each shape.
_EINOPS = """
import functools

met = {}


def _axes(shape):
    return [len(shape) - 1, *range(len(shape) - 1)], list(shape)


_kept = functools.lru_cache(1024)(_axes)


def rearrange(tensor):
    met.setdefault(type(tensor), "torch")
    axes, _ = _kept(tuple(tensor.shape))
    return tensor.permute(axes)
"""
_LAYERS = """
from torch import nn


class Times(nn.Module):
    by = 2.0

    def forward(self, x):
        return x * self.by
"""


@pytest.fixture
def einops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A package of einops's name, in the place of whichever there is."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "einops"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "einops" / "layers").mkdir(parents=True)
    (tmp_path / "einops" / "__init__.py").write_text(_EINOPS)
    (tmp_path / "einops" / "layers" / "__init__.py").write_text(_LAYERS)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield importlib.import_module("einops")
    for name in [name for name in sys.modules if name.partition(".")[0] == "einops"]:
        del sys.modules[name]


def test_the_first_call_at_each_size_is_traced(einops: Any) -> None:
    """It ran as it was, with the reason that the call changes what the function keeps."""
    rearrange = einops.rearrange
    net = Forward(lambda net, x: rearrange(net.linear(x).relu()), linear=nn.Linear(8, 8)).requires_grad_(False)
    handle = compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for rows in (2, 3, 4):
            x = torch.randn(rows, 8)
            for _ in range(2):
                torch.testing.assert_close(handle(x), net.linear(x).relu().permute(1, 0))
    assert handle.engine.report.calls == {"traced": 3, "fused": 3}, handle.report().text()


def test_what_is_set_on_one_of_its_layers_is_seen(einops: Any) -> None:
    layer = importlib.import_module("einops.layers").Times()
    net = Forward(lambda net, x: net.layer(net.linear(x)), linear=nn.Linear(8, 8), layer=layer).requires_grad_(False)
    handle, x = compile(net, CompileConfig(allow_cpu=True)), torch.randn(2, 8)
    with torch.no_grad():
        for by in (2.0, 3.0, 2.0):
            layer.by = by
            for _ in range(2):
                torch.testing.assert_close(handle(x), net.linear(x) * by)


def test_another_function_in_the_place_of_its_own_is_seen(einops: Any) -> None:
    net = Forward(lambda net, x: einops.rearrange(net.linear(x)), linear=nn.Linear(8, 8)).requires_grad_(False)
    handle, x = compile(net, CompileConfig(allow_cpu=True)), torch.randn(2, 8)
    with torch.no_grad():
        for replaced in (False, True):
            if replaced:
                einops.rearrange = lambda tensor: tensor * 3
            for _ in range(2):
                linear = net.linear(x)
                torch.testing.assert_close(handle(x), linear * 3 if replaced else linear.permute(1, 0))
