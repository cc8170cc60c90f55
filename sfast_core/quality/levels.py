"""How much exactness a user gives up for speed: the levels, what each allows, and its budget of error.

The default gives up none. Whatever computes otherwise than the model asks :func:`allowed` first.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch

EXACT, NEAR_EXACT, FAST = "exact", "near-exact", "fast"
QUALITIES = (EXACT, NEAR_EXACT, FAST)
PRODUCTS, FP16_SUMS, REUSE = "products", "fp16_accumulation", "reuse"
#: What each level allows: linear layers in 8 bits, float16 products summed in float16, reuse of the deep layers' result
#: by later steps.
PARTS: dict[str, tuple[str, ...]] = {EXACT: (), NEAR_EXACT: (PRODUCTS,), FAST: (PRODUCTS, FP16_SUMS, REUSE)}
_ASKED_FOR = frozenset({REUSE})  #: only if the user names it
#: The largest relative L2 distance of a result to the model's own, by the dtype that it computes in. One rounding of
#: bfloat16 is eight of float16, and so is what a whole model of it is from float32: 1.2e-2 (SD3) where SDXL in float16
#: is 1.5e-3.
_BUDGETS = {NEAR_EXACT: (1e-2, 2e-2), FAST: (3e-2, 6e-2)}
_REUSED = 0.1  #: likewise, of a step that reuses another's deep result
_EXCEPT = "!"


@dataclass(frozen=True)
class Allowed:
    """What may be computed otherwise than the model does.

    Attributes:
        quality: the level's name.
        parts: which of the things in :data:`PARTS`.
        layers: patterns of layers' names, see :meth:`layer`.
        budget: the user's own budget. None: the level's.
    """

    quality: str
    parts: tuple[str, ...]
    layers: tuple[str, ...]
    budget: float | None

    @property
    def by_name(self) -> bool:
        """Whether the user names the layers: then they are taken even if they gain nothing."""
        return any(not pattern.startswith(_EXCEPT) for pattern in self.layers)

    def layer(self, name: str) -> bool:
        """Whether a layer may take part: a pattern (if there are any) fits its name, and none with ``!`` in front."""
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
        """The budget of a step that reuses another's deep result."""
        return self.budget if self.budget is not None else _REUSED


def allowed(config: Any) -> Allowed | None:
    """What a config allows. None where nothing: the default."""
    named = config.quality_parts
    parts = tuple(
        part for part in PARTS[config.quality] if (part not in _ASKED_FOR if named is None else part in named)
    )
    return Allowed(config.quality, parts, config.quality_layers, config.quality_budget) if parts else None
