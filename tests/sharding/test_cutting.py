"""A graph cut along its rows computes on each device what one computes of all."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.sharding.devices import cut_of, run
from tests.sharding.transformers import ALL, FluxLike, WanLike, ZLike


@pytest.mark.parametrize("devices", [2, 3, 4])
@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("batch", [1, 2])
def test_each_device_gets_the_whole_result(kind: Any, devices: int, batch: int) -> None:
    torch.manual_seed(0)
    net = kind().eval()
    made = cut_of(net, *kind.inputs(batch), devices=devices)
    inputs = kind.inputs(batch)
    with torch.no_grad():
        expected = net(*inputs)
    for (result,) in run(made, inputs):
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    print(made.unknown, len(made.gathers))


@pytest.mark.parametrize(("kind", "attentions"), [(FluxLike, 4), (WanLike, 2), (ZLike, 2)])
def test_exchanged_are_keys_and_values_and_the_result(kind: Any, attentions: int) -> None:
    made = cut_of(kind().eval(), *kind.inputs(), fewest=16)
    assert [len(gather.dims) for gather in made.gathers] == [2] * attentions + [1]
