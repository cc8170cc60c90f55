"""The shape, strides, dtype and device of a tensor that passes between a graph and code that runs live, and copies of
that form.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import combinations
from typing import NamedTuple

import torch

from ..regions import Region, apart


class Form(NamedTuple):
    """A tensor's form in one call. Overlapping elements are laid out densely: nobody could write to such a copy."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Form:
        """The form of a tensor."""
        shape, stride = tuple(tensor.shape), tuple(tensor.stride())
        if _overlaps(shape, stride):
            stride = tuple(torch.empty_like(tensor, device="meta").stride())
        return cls(shape, stride, tensor.dtype, tensor.device)

    def fits(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor can stand where one of this form was: its strides may be others."""
        return tensor.shape == self.shape and tensor.dtype == self.dtype and tensor.device == self.device

    def empty(self) -> torch.Tensor:
        """Memory of this form: a normal tensor, whose version tells whether somebody writes to it, even where inference
        mode is on.
        """
        with torch.inference_mode(False):
            return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)


def copies(forms: Sequence[Form], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """New tensors of these forms with these tensors' values."""
    with torch.inference_mode(False):
        made = [torch.empty_strided(form.shape, form.stride, dtype=form.dtype, device=form.device) for form in forms]
    fill(made, tensors)
    return made


def lie_together(copied: list[torch.Tensor], tensors: Sequence[torch.Tensor], fixed: Collection[int] = ()) -> set[int]:
    """Have copies of tensors that have elements in common have these in common, too: what is written to one is written
    to the other.

    Args:
        copied: put others in the place of some of these.
        tensors: of which they are.
        fixed: the indices of those that are to stay.

    Returns:
        the indices of those that have, or would have to.
    """
    found: set[int] = set()
    storages: dict[int, list[int]] = {}
    for index, tensor in enumerate(tensors):
        storages.setdefault(tensor.untyped_storage()._cdata, []).append(index)
    for indices in storages.values():
        pairs = [pair for pair in combinations(indices, 2) if not _are_apart(*map(tensors.__getitem__, pair))]
        together = {index for pair in pairs for index in pair if copied[index].stride() == tensors[index].stride()}
        if len(together) < 2:
            continue
        found |= together
        if not together.isdisjoint(fixed):
            continue
        with torch.inference_mode(False):
            memory = tensors[indices[0]].untyped_storage().clone()
            for index in together:
                own = tensors[index]
                copied[index] = torch.empty(0, dtype=own.dtype, device=own.device).set_(
                    memory, own.storage_offset(), own.size(), own.stride()
                )
    return found


def _are_apart(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and apart(Region.of(one), Region.of(other))


def fill(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy each source into its target: few launches where they are alike."""
    if len(targets) == 1:
        targets[0].copy_(sources[0])
    elif targets:
        torch._foreach_copy_(list(targets), [source.detach() if source.requires_grad else source for source in sources])


def _overlaps(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether two elements may lie at one address."""
    reach = 1
    for step, size in sorted((step, size) for step, size in zip(stride, shape, strict=True) if size > 1):
        if step < reach:
            return True
        reach = step * (size - 1) + reach
    return False
