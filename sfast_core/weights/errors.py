"""Why weights can't be handed to a program."""

from __future__ import annotations


class WeightsElsewhere(Exception):
    """The weights can't be read now: one isn't on the program's device, or another thread runs the module's own
    forward, which needs them in their own layout.
    """


class WeightsChanged(Exception):
    """A weight isn't what the program was made for any more: it is gone, has another shape or dtype, was tied to
    another or untied, or may not be laid out any more.
    """
