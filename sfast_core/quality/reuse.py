"""For how many steps the result of a model's deep layers may be reused, within a budget of error.

A step that computes everything also computes what reusing the earlier deep result would have given, and compares the
two. So the error of reusing is measured within the sampling itself, and is taken to grow by as much with each step.
"""

from __future__ import annotations

import math

FEWEST_STEPS = 9  #: in a sampling of fewer steps these are too far apart for any reuse
_MOST = 3  #: the most steps in a row that reuse a result


class Reuse:
    """Decides for one sequence of calls.

    Args:
        budget: the largest estimated distance of a result that reuses an earlier deep result.

    Attributes:
        left: how many of the next steps may reuse it.
        age: how many steps ago everything was computed.
    """

    def __init__(self, budget: float) -> None:
        self._budget = budget
        self.left = self.age = 0

    def used(self) -> None:
        """Note that a step has reused the deep result."""
        self.left -= 1
        self.age += 1

    def measured(self, distance: float) -> None:
        """Note that everything was computed, and how far a result by the earlier deep result would have been off."""
        each = distance / (self.age + 1)
        self.age = 0
        self.left = 0 if not math.isfinite(each) else _MOST if each <= 0 else min(_MOST, int(self._budget / each))
