"""Every layout there is, by the same protocol: what it gives is what it means, it finds it again, and what is given
back is as it was.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sfast_core.runtime.store import WeightStore
from sfast_core.weights import LAYOUTS, Weight, WeightsChanged, WeightTable
from tests.tracing import CPU

#: For each layout: whose weights it may lay out, and such as it may not.
FITS = {"plain": ("a.weight",), "packed": ("a.weight", "b.weight"), "channels_last": ("image.weight",)}
FITS |= {
    "int8": ("a.weight", "b.weight"),
    "int8_scales": ("a.weight",),
    "int8_rotated": ("a.weight",),
    "int8_rotated_scales": ("a.weight", "b.weight"),
}
UNFIT = {
    "packed": ("a.weight", "image.weight"),
    "channels_last": ("a.weight",),
    "int8": ("a.weight", "image.weight"),
    "int8_rotated": ("narrow.weight",),
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.image, self.narrow = (
            nn.Linear(16, 4),
            nn.Linear(16, 2),
            nn.Conv2d(16, 4, 3),
            nn.Linear(6, 4),
        )
        self.requires_grad_(False)


def weight(net: nn.Module, names: tuple[str, ...], layout: str) -> Weight:
    table = WeightTable(net)
    refs = [table.find(net.get_parameter(name)) for name in names]
    return Weight(tuple(ref for ref in refs if ref is not None), layout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout(layout: str) -> None:
    net, store = Net(), WeightStore()
    before = {name: (tensor, tensor.clone(), tensor.stride()) for name, tensor in net.named_parameters()}
    wanted = weight(net, FITS[layout], layout)
    assert store.may_pack(wanted)
    meaning = LAYOUTS[layout].meaning(*(net.get_parameter(name) for name in FITS[layout]))
    (got,) = store.tensors([wanted], CPU)
    assert torch.equal(got, meaning) and got.stride() == meaning.stride()
    (again,) = store.tensors([wanted], CPU)
    assert again.data_ptr() == got.data_ptr() and store.bind([wanted], [got]).valid()
    with torch.no_grad():
        net.get_parameter(FITS[layout][-1]).mul_(2)
    (changed,) = store.tensors([wanted], CPU)
    assert changed.data_ptr() == got.data_ptr()
    assert torch.equal(got, LAYOUTS[layout].meaning(*(net.get_parameter(name) for name in FITS[layout])))
    assert all(
        torch.equal(tensor, values) == (name != FITS[layout][-1]) for name, (tensor, values, _) in before.items()
    )
    store.restore()
    assert all(
        net.get_parameter(name) is tensor and tensor.stride() == strides
        for name, (tensor, _, strides) in before.items()
    )
    assert store.adopted_bytes == 0


@pytest.mark.parametrize("layout", UNFIT)
def test_what_a_layout_is_not_for(layout: str) -> None:
    net, store = Net(), WeightStore()
    wanted = weight(net, UNFIT[layout], layout)
    assert not store.may_pack(wanted)
    with pytest.raises(WeightsChanged):
        store.tensors([wanted], CPU)


def test_a_meaning_runs_without_values() -> None:
    for layout, names in FITS.items():
        meta = Net().to("meta")
        assert LAYOUTS[layout].meaning(*(meta.get_parameter(name) for name in names)).device.type == "meta"


def test_a_layout_that_a_store_does_not_know() -> None:
    net = Net()
    assert not WeightStore().may_pack(weight(net, ("a.weight",), "of a host's"))
