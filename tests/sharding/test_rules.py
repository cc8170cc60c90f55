"""Single operations in rows: what is computed of rows, and what wants all of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.models import Forward
from tests.sharding.devices import cut_of, run

IN_ROWS = {
    "sums over channels": lambda net, x: net.lin(x).mean(-1, keepdim=True) + net.lin(x).sum(2)[..., None],
    "norms": lambda net, x: F.layer_norm(net.lin(x), (8,)) * torch.softmax(net.lin(x), -1),
    "a table for each row": lambda net, x: net.lin(x) + torch.arange(12.0)[:, None] * torch.ones(8),
    "a table for all": lambda net, x: torch.where(torch.arange(8) > 3, net.lin(x), 1.0),
    "parts of channels": lambda net, x: torch.cat([each * 2 for each in net.lin(x).split([3, 5], -1)], 2),
    "one of several": lambda net, x: net.lin(x).view(1, 12, 2, 4).unbind(2)[1].repeat(1, 1, 2),
    "heads and back": lambda net, x: (
        net.lin(x).view(1, 12, 2, 4).transpose(1, 2).flatten(0, 1).permute(1, 0, 2)[None].flatten(2)
    ),
    "a product of rows": lambda net, x: net.lin(x) @ torch.eye(8)[:, :3],
    "as complex numbers": lambda net, x: torch.view_as_real(
        torch.view_as_complex(net.lin(x).view(1, 12, 4, 2)) * 1j
    ).flatten(2),
    "columns put in": lambda net, x: _with_columns(net.lin(x), x[..., :2]),
    "a stack": lambda net, x: torch.stack([net.lin(x), net.lin(x) * 2], -1).flatten(2),
    "more channels": lambda net, x: F.pad(net.lin(x), (0, 2)),
    "new dimensions": lambda net, x: net.lin(x)[:, :, None, :, None].expand(1, 12, 3, 8, 2)[:, :, 1, ..., 0],
}
OF_ALL = {
    "sorted": lambda net, x: net.lin(x).sort(1).values,
    "cumulated": lambda net, x: net.lin(x).cumsum(1),
    "one row": lambda net, x: net.lin(x)[:, 3] + net.lin(x),
    "every other": lambda net, x: net.lin(x)[:, ::2],
    "turned around": lambda net, x: net.lin(x).flip(1),
    "a mean": lambda net, x: net.lin(x) - net.lin(x).mean(1, keepdim=True),
    "as an image": lambda net, x: F.avg_pool2d(net.lin(x).transpose(1, 2).reshape(1, 8, 3, 4), 2, 1),
    "a product of all": lambda net, x: net.lin(x).transpose(1, 2) @ net.lin(x),
    "causal": lambda net, x: F.scaled_dot_product_attention(
        net.lin(x)[None], net.lin(x)[None], net.lin(x)[None], is_causal=True
    ),
    "queries that are their own keys": lambda net, x: (lambda y: F.scaled_dot_product_attention(y, y, y * 2))(
        net.lin(x)[None]
    ),
    "a product with itself": lambda net, x: (lambda y: y @ y)(net.lin(x)[:, :8]),
    "the whole batch": lambda net, x: net.lin(x).reshape(-1, 24),
}


def _with_columns(x: torch.Tensor, put: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[..., 1::4] = put
    return x


@pytest.mark.parametrize("devices", [2, 5])
@pytest.mark.parametrize(("name", "forward"), [*IN_ROWS.items(), *OF_ALL.items()])
def test_an_operation(name: str, forward: Any, devices: int) -> None:
    torch.manual_seed(0)
    net = Forward(forward, lin=nn.Linear(6, 8))
    made = cut_of(net, torch.randn(1, 12, 6), devices=devices, fewest=5)
    x = torch.randn(1, 12, 6)
    with torch.no_grad():
        expected = net(x)
    for (result,) in run(made, [x]):
        torch.testing.assert_close(result, expected)
    assert bool(made.unknown) == (name in OF_ALL) and (made.unknown or len(made.gathers) == 1), made.unknown


@pytest.mark.parametrize("shape", [(12, 20), (1, 20), (12, 1), (1, 1, 12, 20)])
def test_a_mask_of_queries_and_keys(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)

    def forward(net: Any, x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            net.lin(each).view(1, -1, 2, 4).transpose(1, 2) for each in (x, torch.cat([y, x], 1), torch.cat([y, x], 1))
        )
        return F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)

    net = Forward(forward, lin=nn.Linear(6, 8))
    inputs = [torch.randn(1, 12, 6), torch.randn(1, 8, 6), torch.rand(shape) > 0.2]
    made = cut_of(net, *inputs, fewest=4)
    with torch.no_grad():
        expected = net(*inputs)
    for (result,) in run(made, inputs):
        torch.testing.assert_close(result, expected)
