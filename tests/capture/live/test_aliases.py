"""What live code has handed back is, where the original forward finishes the call, a part of what that one has, however
that lies.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from sfast_core.capture.live.aliases import aliases_of, given_back

PARTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "itself": lambda x: x,
    "a part of the channels": lambda x: x[:, 2:5],
    "the second half": lambda x: x.chunk(2)[1],
    "every other row, from the second on": lambda x: x[:, :, 1::2],
    "one picture": lambda x: x[1],
    "turned": lambda x: x.movedim(1, -1),
    "repeated": lambda x: x[:, :1].expand(-1, 3, -1, -1),
    "in the corner": lambda x: x[..., 2:4, 3:4],
}


def handed_back(part: Callable[[torch.Tensor], torch.Tensor], laid: torch.Tensor, lies: torch.Tensor) -> torch.Tensor:
    """``part`` of a tensor as it lay in the program, found again in one that lies otherwise."""
    result = part(laid)
    (alias,) = aliases_of([result], [laid])
    found = given_back(result, {id(result): (result, alias)}, [lies])
    assert isinstance(found, torch.Tensor)
    return found


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("size", [(2, 6, 4, 5), (2, 6, 4, 4), (2, 6, 4, 1)])
def test_a_part_of_what_lies_otherwise(
    part: Callable[[torch.Tensor], torch.Tensor], turned: bool, size: tuple[int, ...]
) -> None:
    if size[-1] == 1 and part is PARTS["in the corner"]:
        size = (2, 6, 4, 4)
    plain = torch.randn(size)
    laid, lies = plain.clone(), torch.randn(size).to(memory_format=torch.channels_last)
    if turned:
        laid, lies = lies, laid
    found = handed_back(part, laid, lies)
    assert torch.equal(found, part(lies))
    found.fill_(7.0)
    assert (part(lies) == 7.0).all(), "a write to it is one to what it was a part of"


def test_what_lies_the_same_is_found_whatever_it_is() -> None:
    laid, lies = torch.randn(2, 6, 4, 5), torch.randn(2, 6, 4, 5)
    assert torch.equal(handed_back(lambda x: x.view(2, -1)[:, 3:9], laid, lies), lies.view(2, -1)[:, 3:9])


@pytest.mark.parametrize(
    "lies", [torch.randn(2, 6, 4, 5).to(memory_format=torch.channels_last), torch.randn(2, 6, 4, 3)]
)
def test_what_is_nowhere_there_is_as_it_was_returned(lies: torch.Tensor) -> None:
    """Flattened, of another size: there is no such part."""
    laid = torch.randn(2, 6, 4, 5)
    assert torch.equal(handed_back(lambda x: x.view(2, -1)[:, 3:9], laid, lies), laid.view(2, -1)[:, 3:9])
