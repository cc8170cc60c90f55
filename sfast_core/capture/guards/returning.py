"""A state that functions of others keep and that comes back: a cache that each sampling begins without, and fills."""

from __future__ import annotations

from typing import Any, NamedTuple

from .kinds import Kind, kind_of, what_a_tensor_is
from .leads import Leads
from .notes import MISSING

KeptState = frozenset[
    tuple[str, str]
]  #: of each place that a call has read and changed, what was there before, in words
_DEEPEST = 4


class KeptByOthers(NamedTuple):
    """What functions of others keep that are recorded with a model's code.

    Attributes:
        leads: the ways to it.
        placed: the ids of tensors that the call's signature finds by such ways.
        state: in which an earlier call of the signature found what it changed of it; None: there was none. A call that
            found it in the same state may change it again.
    """

    leads: Leads
    placed: frozenset[int] = frozenset()
    state: KeptState | None = None


def described(value: Any, depth: int = 0) -> str:
    """What a value is, in words that are the same for another that is as good."""
    kind = kind_of(value)
    if value is MISSING or kind is Kind.VALUE:
        return repr(value)
    if kind is Kind.TENSOR:
        return repr(what_a_tensor_is(value))
    if type(value) in (list, tuple) and depth < _DEEPEST:
        return f"{type(value).__name__}({', '.join(described(item, depth + 1) for item in value)})"
    if type(value) is dict and depth < _DEEPEST:
        return f"dict({', '.join(described(item, depth + 1) for pair in value.items() for item in pair)})"
    return f"{type(value).__module__}.{type(value).__qualname__}"
