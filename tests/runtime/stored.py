"""A module and its weights as a store is asked for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from sfast_core.runtime.store import WeightStore
from sfast_core.weights import CHANNELS_LAST, PACKED, PLAIN, Weight, WeightRef, WeightTable


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = nn.Linear(8, 4), nn.Linear(8, 6), nn.Linear(8, 2)
        self.conv = nn.Conv2d(3, 4, 3)
        self.register_buffer("one", torch.randn(2, 8))
        self.register_buffer("two", torch.randn(3, 8))
        self.plain = torch.randn(5, 3, 2, 2)


def refs(net: nn.Module, *names: str) -> tuple[WeightRef, ...]:
    table = WeightTable(net)
    found = []
    for name in names:
        path, _, attribute = name.rpartition(".")
        ref = table.ref(net.get_submodule(path), attribute)
        assert ref is not None
        found.append(ref)
    return tuple(found)


def packed(net: nn.Module, *names: str) -> Weight:
    return Weight(refs(net, *names), PACKED if len(names) > 1 else PLAIN)


def channels_last(net: nn.Module, name: str) -> Weight:
    return Weight(refs(net, name), CHANNELS_LAST)


def may_pack(store: WeightStore, group: Sequence[WeightRef]) -> bool:
    return store.may_pack(Weight(tuple(group), PACKED))


QKV = ("q.weight", "k.weight", "v.weight")
