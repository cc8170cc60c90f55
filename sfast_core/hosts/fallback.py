"""A host's call through an engine. If our code fails, the call runs as it was; if the host's own code fails, the error
reaches the host.
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
    """Carries an exception of the host's past our own ``except`` clauses."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


def of_host(
    call: Callable[..., Any], errors: type[BaseException] | tuple[type[BaseException], ...] = Exception
) -> Callable[..., Any]:
    """``call`` with its exceptions of the classes ``errors`` marked as the host's, so that :func:`with_fallback` lets
    them pass.
    """

    def known(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except errors as error:
            raise _FromHost(error) from None

    return known


def with_fallback(engine: Engine, attempt: Callable[[Callable[[], Any]], Any], eager: Callable[[], Any]) -> Any:
    """``attempt(eager)``, or ``eager()`` where our code fails in the attempt.

    Args:
        engine: counts the call as eager, with the reason, where the attempt fails.
        attempt: runs the call through the engine. It is given ``eager`` in a form whose exceptions are marked as the
            host's.
        eager: runs the call as the host would have.

    Raises:
        Exception: what ``eager`` raised, or one of the engine's ``interruptions``, wherever it was raised.
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
            failure = None  # else exception and frame would hold one another
    with engine.store.plain():
        result = eager()  # an error here is the model's own, and reaches the host
    engine.reporter.ran_eager(reason)
    return result
