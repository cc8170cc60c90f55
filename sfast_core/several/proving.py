"""Shows that a call may be cut along its batch: parts give the whole's results, and no image needs another."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ..capture import Call, taken_apart, tensors_of
from ..programs.proof import distance_to_eager, largest_distance
from .batch import patterns, spoilt
from .part import OneDevice
from .plan import Plan, built

#: The most by which an image's result may change where other images of its batch are spoilt.
_APART = 1e-3


def proved(
    call: Call,
    batch: int,
    plan: Plan,
    results: list[list[torch.Tensor]],
    computed_in: Iterable[torch.dtype],
    tolerance: float | None,
) -> Plan:
    """The plan, proved and completed with how results are built.

    The module's own forward runs for that: once as it was called, and twice or more with parts of the batch spoilt.

    Args:
        call: the whole call.
        batch: the number of images.
        plan: how it was cut.
        results: the parts' results, by the plan's programs.
        computed_in: see :func:`distance_to_eager`.
        tolerance: see :func:`distance_to_eager`.

    Raises:
        OneDevice: an image's result depends on other images of the batch, or isn't found in the call's result.
        CaptureError: the parts' results together aren't the call's own.
    """
    leaves, plan.tree = taken_apart(call.run())
    expected = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    home, cuts = results[0][0].device, plan.spans
    if any(not tensor.dim() or tensor.shape[0] != batch or tensor.device != home for tensor in expected):
        raise OneDevice("not all of its results are as long as the batch")
    shapes = [tensor.shape[1:] for tensor in expected]
    if any([tensor.shape[1:] for tensor in own] != shapes for own in results):
        raise OneDevice("its parts have results of other shapes")
    plan.results = [
        torch.empty_like(leaf, device="meta") if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves
    ]
    distance_to_eager(tensors_of(built(plan, results)), expected, tolerance, computed_in)
    for pattern in patterns(len(cuts)):
        args, kwargs = spoilt((call.args, call.kwargs), batch, [cuts[index] for index in pattern])
        made = tensors_of(call.forward(*args, **kwargs))
        for begin, end in (cuts[index] for index in range(len(cuts)) if index not in pattern):
            got, theirs = ([tensor[begin:end] for tensor in each] for each in (made, expected))
            if largest_distance(got, theirs) > _APART:
                raise OneDevice("what comes of one image depends on the others of its batch")
    return plan
