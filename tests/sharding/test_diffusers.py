"""diffusers' transformers in rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from sfast_core.capture import Signature
from tests.rewrite import diffusers_transformers as families
from tests.sharding.devices import cut_of, run

pytest.importorskip("diffusers")
IN_ROWS = ("flux", "sd3", "qwen_image", "wan", "ltx", "chroma")


@pytest.mark.parametrize("name", IN_ROWS)
def test_a_transformer_in_rows(name: str) -> None:
    torch.manual_seed(0)
    net, given = getattr(families, name)()
    net = net.eval().float()
    given = {
        key: value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for key, value in given.items()
    }
    made = cut_of(net, devices=2, fewest=4, **given)
    with torch.no_grad():
        expected: list[Any] = [each for each in tree_leaves(net(**given)) if isinstance(each, torch.Tensor)]
    print(made.unknown, len(made.gathers))
    for results in run(made, Signature((), given).tensors):
        torch.testing.assert_close(results, expected, rtol=1e-4, atol=1e-5)
    assert made.rows and len(made.gathers) <= 10
