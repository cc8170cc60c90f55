"""Python's instructions, from 3.10 on, by what they do: for those who follow a function's code without running it."""

from __future__ import annotations

import dis

#: Nothing that is on the stack changes, but for what says where a call's function is.
NO_EFFECT = frozenset(
    "RESUME NOP CACHE PRECALL EXTENDED_ARG MAKE_CELL COPY_FREE_VARS KW_NAMES NOT_TAKEN GEN_START".split()
)
LOADS = frozenset("LOAD_FAST LOAD_FAST_CHECK LOAD_FAST_BORROW LOAD_DEREF".split())
LOADS_PAIR = frozenset("LOAD_FAST_LOAD_FAST LOAD_FAST_BORROW_LOAD_FAST_BORROW".split())
STORES = frozenset("STORE_FAST STORE_DEREF STORE_FAST_STORE_FAST STORE_FAST_LOAD_FAST".split())
CONSTANTS = frozenset("LOAD_CONST LOAD_CONST_IMMORTAL LOAD_CONST_MORTAL LOAD_SMALL_INT".split())
JUMPS = frozenset("JUMP_FORWARD JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT JUMP_ABSOLUTE".split())


def loaded(step: dis.Instruction) -> tuple[str, ...]:
    """The variables that it puts on the stack, in this order."""
    if step.opname in LOADS_PAIR:
        return tuple(step.argval)
    if step.opname == "STORE_FAST_LOAD_FAST":
        return tuple(step.argval[1:])
    return (step.argval,) if step.opname in LOADS else ()


def stored(step: dis.Instruction) -> tuple[str, ...]:
    """The variables that it sets, each to what is on top then, in this order."""
    if step.opname in ("STORE_FAST_STORE_FAST", "STORE_FAST_LOAD_FAST"):
        return tuple(step.argval[: 1 if step.opname == "STORE_FAST_LOAD_FAST" else 2])
    return (step.argval,) if step.opname in STORES else ()


def loads_method(step: dis.Instruction) -> bool:
    """Whether the attribute that it reads is a method that is called next: it leaves two values."""
    return step.opname == "LOAD_METHOD" or "NULL|self" in step.argrepr
