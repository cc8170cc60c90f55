"""Whether each op has a kernel that works here: its impls are asked for reasons, and run where there is a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils import _pytree

from ..ops import Impl, Op
from ..target import Target
from .findings import NOTE, OK, PROBLEM, Finding

_LIMIT = 1e-2  #: of the relative L2 distance to the reference in float32; float16 itself is at some 1e-3
_LEAVE_OUT = 'report it; until then CompileConfig(disabled_impls=("{}",)) leaves it out'


def examine_ops(target: Target, ops: dict[str, Op], calls: Iterable[tuple[str, tuple[Any, ...]]]) -> Iterator[Finding]:
    """What became of each op's impls.

    Args:
        target: the device; where it isn't a CUDA device nothing is run.
        ops: the ops by name.
        calls: typical calls, as :func:`.examples.examples` gives them.
    """
    if not target.is_cuda:
        yield Finding(
            NOTE,
            "kernels",
            f"none was tried: {sum(len(op.impls) for op in ops.values())} kernels of {len(ops)} ops need a GPU",
        )
        return
    # op -> impl -> why it is out of use, None: it works
    states: dict[str, dict[str, str | None]] = {name: {} for name in ops}
    broken: list[Finding] = []
    for name, args in calls:
        for impl in ops[name].impls:
            reason = impl.why_not(target, *_meta(args))
            if reason is not None:
                states[name].setdefault(impl.name, reason.removeprefix(f"{impl.name}: "))
                continue
            failure = _failure(ops[name], impl, args)
            if failure is None:
                states[name][impl.name] = None
            elif impl.rank:  # a further plan of a library: there may be none
                states[name].setdefault(impl.name, failure)
            else:
                states[name][impl.name] = failure
                broken.append(
                    Finding(PROBLEM, f"{name}.{impl.name}", failure, _LEAVE_OUT.format(f"{name}.{impl.name}"))
                )
    yield from (_of_op(ops[name], impls) for name, impls in states.items())
    yield from broken


def _of_op(op: Op, impls: dict[str, str | None]) -> Finding:
    good = [impl for impl, reason in impls.items() if reason is None]
    rest = "; ".join(f"{impl}: {reason}" for impl, reason in impls.items() if reason is not None)
    if good:
        return Finding(OK, op.name, f"works: {', '.join(good)}" + (f". Not here: {rest}" if rest else ""))
    if op.optional:
        return Finding(NOTE, op.name, f"no kernel for it here, so models are left without it: {rest}")
    return Finding(
        PROBLEM, op.name, f"no kernel works, PyTorch's own run instead: {rest}", "install what is missing above"
    )


def _failure(op: Op, impl: Impl, args: tuple[Any, ...]) -> str | None:
    """What went wrong in running it, or None."""
    try:
        with torch.no_grad():
            results = [leaf for leaf in _pytree.tree_leaves(impl.launch(*args)) if isinstance(leaf, torch.Tensor)]
            right = [
                leaf for leaf in _pytree.tree_leaves(op.reference(*_float(args))) if isinstance(leaf, torch.Tensor)
            ]
            apart = max(_apart(mine.float(), theirs.float()) for mine, theirs in zip(results, right, strict=True))
    except Exception as error:
        return (
            f"fails: {type(error).__name__}:"
            f" {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
        )
    if apart <= _LIMIT:
        return None
    return f"gives wrong results: {apart:.1e} from the reference, at most {_LIMIT:.0e} is right"


def _apart(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    return ((mine - theirs).norm() / theirs.norm()).item()


def _meta(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta") if isinstance(x, torch.Tensor) else x
        for x in args
    )


def _float(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(x.float() if isinstance(x, torch.Tensor) else x for x in args)
