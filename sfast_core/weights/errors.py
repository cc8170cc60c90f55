"""Why weights can't be handed to a program."""

from __future__ import annotations


class WeightsElsewhere(Exception):
    """The weights can't be read now: one isn't on the device that the program runs on, or another thread uses them as
    they lay before.
    """


class WeightsChanged(Exception):
    """A weight isn't what the program was made for: of another shape or dtype, gone, tied to another or no more, or
    nothing to lay out anew.
    """
