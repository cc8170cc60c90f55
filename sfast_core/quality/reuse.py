"""For how many steps what is computed deep inside a model may be used again: a budget for what that costs, not a
threshold for what looks alike.

In a step that computes everything, what the steps before would have been used for is computed, too, from what there was
by then, and compared. So what a step of use costs is measured in the very sampling, and grows with each further step.
"""

from __future__ import annotations

import math

FEWEST_STEPS = 9  #: a sampling of fewer uses nothing again: its steps are too far apart
_MOST = 3  #: steps in a row


class Reuse:
    """What is known of one sequence of calls.

    Args:
        budget: the largest distance of a result that used something again, as it is estimated.

    Attributes:
        left: how many of the next steps may.
        age: how many steps ago everything was computed.
    """

    def __init__(self, budget: float) -> None:
        self._budget = budget
        self.left = self.age = 0

    def used(self) -> None:
        """A step has used what there was."""
        self.left -= 1
        self.age += 1

    def measured(self, distance: float) -> None:
        """Everything was computed, and what there was before would have led this far away from it."""
        each = distance / (self.age + 1)
        self.age = 0
        self.left = 0 if not math.isfinite(each) else _MOST if each <= 0 else min(_MOST, int(self._budget / each))
