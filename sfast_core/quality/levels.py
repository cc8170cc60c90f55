"""How much exactness a user gives for speed: the words for it, what each allows, and within which distance of what the
model computes.

The default gives none. Nothing here computes; who computes otherwise than the model does so only within what
:func:`allowed` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch

EXACT, NEAR_EXACT, FAST = "exact", "near-exact", "fast"
QUALITIES = (EXACT, NEAR_EXACT, FAST)
PRODUCTS, FP16_SUMS, REUSE = "products", "fp16_accumulation", "reuse"
#: What each allows: products of 8 bits, sums of float16 in float16, a deep part that is used again by later steps.
PARTS: dict[str, tuple[str, ...]] = {EXACT: (), NEAR_EXACT: (PRODUCTS,), FAST: (PRODUCTS, FP16_SUMS, REUSE)}
_ASKED_FOR = frozenset({REUSE})  #: not without being named
#: The largest relative L2 distance of a result to the model's own, by the dtype that it computes in. One rounding of
#: bfloat16 is eight of float16, and so is what a whole model of it is from float32: 1.2e-2 (SD3) where SDXL in float16
#: is 1.5e-3.
_BUDGETS = {NEAR_EXACT: (1e-2, 2e-2), FAST: (3e-2, 6e-2)}
_REUSED = 0.1  #: of a step that uses the deep part of another, likewise
_EXCEPT = "!"


@dataclass(frozen=True)
class Allowed:
    """What may be computed otherwise than the model does.

    Attributes:
        quality: the user's word for it.
        parts: some of :data:`PARTS`.
        layers: patterns of layers' names; see :meth:`layer`.
        budget: as a number, or None: as the quality has it.
    """

    quality: str
    parts: tuple[str, ...]
    layers: tuple[str, ...]
    budget: float | None

    @property
    def by_name(self) -> bool:
        """Whether the user says which layers take part: then it isn't asked whether they gain by it."""
        return any(not pattern.startswith(_EXCEPT) for pattern in self.layers)

    def layer(self, name: str) -> bool:
        """Whether the layer of this name may take part: one of the patterns fits, or there are none, and none fits that
        begins with an exclamation mark.
        """
        wanted = [pattern for pattern in self.layers if not pattern.startswith(_EXCEPT)]
        refused = [pattern[1:] for pattern in self.layers if pattern.startswith(_EXCEPT)]
        return (not wanted or any(fnmatchcase(name, each) for each in wanted)) and not any(
            fnmatchcase(name, each) for each in refused
        )

    def distance(self, dtype: torch.dtype) -> float:
        """The budget of a model that computes in this dtype."""
        return self.budget if self.budget is not None else _BUDGETS[self.quality][dtype == torch.bfloat16]

    @property
    def reused(self) -> float:
        """How far a step may be from the exact one by using another's deep part."""
        return self.budget if self.budget is not None else _REUSED


def allowed(config: Any) -> Allowed | None:
    """What a config allows; None where it allows nothing: the default."""
    named = config.quality_parts
    parts = tuple(
        part for part in PARTS[config.quality] if (part not in _ASKED_FOR if named is None else part in named)
    )
    return Allowed(config.quality, parts, config.quality_layers, config.quality_budget) if parts else None
