"""Why weights can't be handed to a program."""

from __future__ import annotations


class WeightsElsewhere(Exception):
    """The weights can't be read now: one is elsewhere, or another thread runs the module's own forward on them."""


class WeightsChanged(Exception):
    """A weight isn't what the program was made for any more: it is gone, has another shape or dtype, was tied to
    another or untied, or may not be laid out any more.
    """
