"""A host's call through the engine: what of ours fails runs as it was,
what of the host's own fails reaches the host.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ..capture import CaptureError
from ..engine import Engine
from ..reporting.reason import reason_of
from ..reporting.reasons.records import OURS

log = logging.getLogger("fast_compile")


class _FromHost(BaseException):
    """Carries an exception of the host's past our own ``except``."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


def of_host(
    call: Callable[..., Any], errors: type[BaseException] | tuple[type[BaseException], ...] = Exception
) -> Callable[..., Any]:
    """``call``, with the exceptions of the classes ``errors`` known to be the host's: :func:`with_fallback` lets them
    pass.
    """

    def known(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except errors as error:
            raise _FromHost(error) from None

    return known


def with_fallback(engine: Engine, attempt: Callable[[Callable[[], Any]], Any], eager: Callable[[], Any]) -> Any:
    """``attempt(eager)``, and ``eager()`` where the attempt fails in a way that isn't the host's.

    Args:
        engine: counts the call as eager, with the reason, where the attempt fails.
        attempt: runs the call through the engine. It gets ``eager`` in a form whose exceptions are known to be the
            host's.
        eager: runs the call as the host would have.

    Raises:
        Exception: what ``eager`` raised, or one of the engine's ``interruptions``, wherever it came up.
    """

    failure: BaseException | None = None
    reason = ""
    try:
        return attempt(of_host(eager))
    except _FromHost as passed:
        failure = passed.error
    except engine.interruptions:
        raise
    except CaptureError as error:
        reason = reason_of(error)
    except Exception as error:
        log.debug("in a call of %s", engine.report.name, exc_info=True)
        reason = OURS(error=f"{type(error).__name__}: {error}")
    if failure is not None:
        try:
            raise failure
        finally:
            failure = None  # or the exception would hold this frame, and this frame it
    with engine.store.plain():
        result = eager()  # what fails once more is the model's own failure, and the host's to tell
    engine.reporter.ran_eager(reason)
    return result
