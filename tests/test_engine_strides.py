"""The strides of a compiled module's results."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.callers import compiled, own
from tests.models import Forward

pytestmark = pytest.mark.usefixtures("no_gradients")


@pytest.mark.parametrize(
    "part",
    [
        lambda x: x[:, ::2],
        lambda x: x[..., :2, 1:3],
        lambda x: x.transpose(1, 2)[:, :1],
        lambda x: x.chunk(2, 1)[1].mT,
        lambda x: x[:, :1].expand(-1, 3, -1, -1),
    ],
    ids=["every other channel", "a crop", "a part of a transposed one", "a half", "elements that repeat"],
)
def test_a_result_has_the_strides_that_eager_gives_it(part: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Also a part of something larger. Where elements are several times the same one, the result is dense."""
    handle = compiled(Forward(lambda net, x: part(net.conv(x)), conv=nn.Conv2d(4, 4, 1)))
    for _ in range(3):
        x = torch.randn(2, 4, 4, 4)
        result, expected = handle(x), own(handle, x)
        torch.testing.assert_close(result, expected)
        assert result.stride() == (expected.stride() if 0 not in expected.stride() else (48, 16, 4, 1))
