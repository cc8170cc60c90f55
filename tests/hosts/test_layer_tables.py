"""Tables of layers that stay the same objects, and those that are left alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sfast_core.hosts.layer_tables import LayerTables


def _model() -> nn.ModuleDict:
    return nn.ModuleDict({"blocks": nn.ModuleList(nn.Linear(4, 4) for _ in range(3))})


@pytest.mark.parametrize("together", [False, True])
def test_a_layer_that_is_put_in_and_taken_out(together: bool) -> None:
    """``together``: out and in again, with no call in between."""
    model, tables = _model(), LayerTables()
    blocks, layer = model["blocks"], nn.Linear(4, 4)
    tables.put_back(model)
    table, without = blocks._modules, list(blocks)
    for _ in range(3):
        blocks.insert(1, layer)
        tables.put_back(model)
        assert blocks._modules is table and list(blocks) == [without[0], layer, *without[1:]]
        blocks.pop(1)
        if not together:
            tables.put_back(model)
            assert blocks._modules is table and list(blocks) == without
            assert list(model.state_dict()) == list(_model().state_dict())
    assert torch.equal(blocks[2].weight, without[2].weight)


def test_a_table_that_somebody_keeps_to_put_it_back() -> None:
    model, tables = _model(), LayerTables()
    tables.put_back(model)
    blocks = model["blocks"]
    theirs, layers = blocks._modules, list(blocks)
    for other in ({"0": layers[1]}, dict(theirs) | {"3": nn.Linear(4, 4)}):
        blocks.__dict__["_modules"] = other
        tables.put_back(model)
        assert blocks._modules is other and list(theirs.values()) == layers
        blocks.__dict__["_modules"] = theirs
        tables.put_back(model)
        assert list(blocks) == layers
    blocks.pop(0)
    tables.put_back(model)
    assert blocks._modules is theirs and list(blocks) == layers[1:]
