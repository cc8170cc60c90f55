"""Where one view's elements are among another's, against what PyTorch says of numbered elements."""

from __future__ import annotations

import random

import torch

from sfast_core.capture.functional import put, taken
from sfast_core.capture.regions import Region, apart, index_of, place_in

BASE = (2, 4, 6, 3)


def _view(x: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """A few views of views."""
    for _ in range(rng.randrange(5)):
        dim = rng.randrange(x.dim()) if x.dim() else 0
        kind = rng.choice("permute narrow select step split join".split())
        if kind == "permute":
            x = x.permute(rng.sample(range(x.dim()), x.dim()))
        elif kind == "narrow" and x.dim() and x.shape[dim] > 1:
            begin = rng.randrange(x.shape[dim])
            x = x.narrow(dim, begin, rng.randrange(1, x.shape[dim] - begin + 1))
        elif kind == "select" and x.dim() > 1:
            x = x.select(dim, rng.randrange(x.shape[dim]))
        elif kind == "step" and x.dim():
            x = x[(*[slice(None)] * dim, slice(None, None, 2))]
        elif kind == "split" and x.dim() and x.shape[dim] % 2 == 0:
            x = x.unflatten(dim, (2, x.shape[dim] // 2))
        elif kind == "join" and x.dim() > 1 and x.is_contiguous():
            x = x.flatten(0, 1)
    return x


def test_of_thousands_of_views_what_is_said_is_so() -> None:
    rng, said = random.Random(0), dict.fromkeys(("place", "index", "apart"), 0)
    for _ in range(4000):
        numbers = torch.arange(2 * 4 * 6 * 3).view(BASE)
        whole, part = _view(numbers, rng), _view(numbers, rng)
        one, other = Region.of(whole), Region.of(part)
        shared = set(whole.flatten().tolist()) & set(part.flatten().tolist())
        if (place := place_in(other, one)) is not None:
            said["place"] += 1
            where = (place.order, place.size, place.stride, place.offset)
            assert torch.equal(taken(whole, *where), part)
            changed = put(whole, -part, *where)
            part.neg_()
            assert torch.equal(changed, whole) and changed.shape == whole.shape
            part.neg_()
        if (index := index_of(other, one)) is not None:
            said["index"] += 1
            assert torch.equal(whole[index], part)
        if apart(one, other):
            said["apart"] += 1
            assert not shared
    assert said["place"] > 1500 and said["index"] > 500 and said["apart"] > 50, said


def test_what_is_repeated_has_no_place() -> None:
    x = torch.zeros(3, 4)
    assert place_in(Region.of(x[:1]), Region.of(x[:1].expand(3, 4))) is None
    assert place_in(Region.of(x[:, 1:]), Region.of(x[:, :3])) is None and not apart(
        Region.of(x[:, 1:]), Region.of(x[:, :3])
    )
    assert apart(Region.of(x[:, 2:]), Region.of(x[:, :2])) and apart(Region.of(x[:0]), Region.of(x))
