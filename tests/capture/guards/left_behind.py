"""Modules that leave something behind, recorded."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

from sfast_core import CompileConfig, compile
from tests.models import Forward

Function = Callable[[Any, torch.Tensor], Any]


def module(function: Function, **attributes: Any) -> Any:
    torch.manual_seed(0)
    net = Forward(function, lin=nn.Linear(4, 4)).requires_grad_(False)
    for name, value in attributes.items():
        setattr(net, name, value)
    return net


def inputs(count: int = 3) -> list[torch.Tensor]:
    return list(torch.randn(count, 2, 4).unbind())


def alike(mine: Any, theirs: Any) -> None:
    (mine, tree), (theirs, other) = _pytree.tree_flatten(mine), _pytree.tree_flatten(theirs)
    assert tree == other
    for a, b in zip(mine, theirs, strict=True):
        assert torch.allclose(a, b) if isinstance(b, torch.Tensor) else (a == b and type(a) is type(b))


def copied(attributes: dict[str, Any]) -> dict[str, Any]:
    return copy.deepcopy(attributes)


def compiled(net: Any) -> Any:
    return compile(net, CompileConfig(allow_cpu=True))
