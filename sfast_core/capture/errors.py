"""Why a call can't be captured. The engine turns each into the original forward and a line in the report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..reporting.reasons.calls import GRADIENTS

if TYPE_CHECKING:
    from .guards import Guard


class CaptureError(Exception):
    """The call can't be captured faithfully.

    The message is the reason, best of a kind (:mod:`sfast_core.reporting.reasons`).

    Attributes:
        guard: tells when the reason holds no more, where a recorded call has failed; else None.
        passing: the next call may fare better.
        others: the kinds of functions of others, recorded with the model's code, that the recorded call has failed in.
    """

    guard: Guard | None = None
    passing: bool = False
    others: tuple[Any, ...] = ()


class OnlyThisCall(CaptureError):
    """This call can't be served by a program that others can: the original forward makes it, and the program stays."""


class GradientsRecorded(OnlyThisCall):
    """What the call returns would require grad, so the original forward has to make it."""

    def __init__(self) -> None:
        super().__init__(GRADIENTS())


class AnotherStructure(BaseException):
    """Code that runs live returns something built otherwise than in the recorded call, or calls back otherwise: the
    message says what. It ends the call's way through its program.

    No ``Exception``: it passes through that code, which may catch those.
    """
