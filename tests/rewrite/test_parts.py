"""Parts of tensors: found however a node takes them, compared with the elements that it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from sfast_core.rewrite.parts import part_at, part_of
from tests.models import Forward
from tests.tracing import rewritten

Taken = Callable[[torch.Tensor], Any]

PARTS: dict[str, Taken] = {
    "a slice": lambda x: x[:, 1:3],
    "a slice of the first dimension": lambda x: x[1:],
    "a slice behind an ellipsis": lambda x: x[..., 2:],
    "a slice from the end": lambda x: x[:, -2:],
    "narrow": lambda x: torch.narrow(x, -1, 1, 2),
    "a chunk": lambda x: x.chunk(2, 1)[1],
    "the last of uneven chunks": lambda x: x.chunk(3, -1)[2],
    "a part of a split": lambda x: x.split([1, 3], 1)[1],
    "a part of a split by name": lambda x: torch.split(x, split_size_or_sections=[2, 3], dim=-1)[0],
}
OTHERS: dict[str, Taken] = {
    "every other element": lambda x: x[..., ::2],
    "an element": lambda x: x[:, 1],
    "of two dimensions": lambda x: x[:, 1:, 2:],
    "one of several results": lambda x: x.max(1)[0],
}


def _last(taken: Taken) -> torch.fx.Node:
    """The node that takes, read by one that stays."""
    _, graph = rewritten("canonicalise", Forward(lambda net, x: taken(x) + 1), torch.randn(2, 4, 5))
    (output,) = [node for node in graph.nodes if node.op == "output"]
    return output.args[0][0].args[0]  # type: ignore[index, union-attr, return-value]


@pytest.mark.parametrize("name", PARTS)
def test_parts(name: str) -> None:
    x, part = torch.randn(2, 4, 5), part_of(_last(PARTS[name]))
    assert part is not None and torch.equal(x.narrow(part.dim, part.start, part.stop - part.start), PARTS[name](x))


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_part(name: str) -> None:
    assert part_of(_last(OTHERS[name])) is None


@pytest.mark.parametrize("index", [1, None, [0, 1]])
def test_an_index_of_no_slice_names_no_part(index: Any) -> None:
    assert part_at(_last(PARTS["a slice"]).args[0], index) is None  # type: ignore[arg-type]
