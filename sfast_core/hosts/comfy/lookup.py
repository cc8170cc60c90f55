"""Which compiled state belongs to what a node is given, and what the graphs of all of them hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ...config import CompileConfig
from ...reporting.report import Report, read_while_counting
from . import install
from .install import KEY, states
from .proxy import behind

T = TypeVar("T")
#: Where a node's input keeps the modules that may have a compiled state: MODEL, VAE, CLIP, CONTROL_NET.
_OWNERS = ("model", "first_stage_model", "cond_stage_model", "control_model", "t2i_model", "fast_compile_proxy")


def config_of(model: Any) -> CompileConfig | None:
    """What ``Apply Fast Compile`` was told of this model; None for a model that didn't come through it."""
    from comfy.patcher_extension import WrappersMP

    found = model.get_wrappers(WrappersMP.APPLY_MODEL, KEY) if hasattr(model, "get_wrappers") else []
    return found[-1].config if found else None


def states_of(thing: Any) -> list[Any]:
    """The compiled states of a model, VAE, text encoder or ControlNet; of everything that is alive where ``thing`` is
    None.
    """
    if thing is None:
        return states()
    owners = []
    while thing is not None:  # a ControlNet may be chained to another
        owners += [behind(owner) for name in _OWNERS if (owner := getattr(thing, name, None)) is not None]
        thing = getattr(thing, "previous_controlnet", None)
    return [state for state in states() if any(state.base_model() is owner for owner in owners)]


def report_of(thing: Any, form: Callable[[Report], T]) -> T:
    """``form`` of the report of :func:`states_of`, taken while another thread may be sampling."""
    return read_while_counting(lambda: form(install.report(states_of(thing))))


def graph_bytes() -> int:
    """What the captured graphs of all models hold, and the copies of weights on other GPUs."""
    return sum(graphs.bytes for graphs in _graphs())


def graph_bytes_by_model() -> dict[str, int]:
    """What the captured graphs of each model hold, by the name that the report gives the model."""
    found: Counter[str] = Counter()
    for state in states():
        state.engine.forget_evicted()
        found[state.engine.report.name] += state.engine.report.graph_bytes
    return dict(found)


def release_graphs() -> int:
    """Drop every captured graph, and copies of weights on other GPUs; returns the bytes released.

    The traces stay: a graph is captured again when its signature comes.
    """
    freed = sum(graphs.release_all() for graphs in _graphs())
    for state in states():
        state.engine.forget_evicted()
    return freed


@contextmanager
def fresh_state(model: Any) -> Iterator[None]:
    """For the length of the block ``model`` is compiled from nothing; what it had before is there again afterwards, its
    graphs aside.

    Args:
        model: a ModelPatcher.
    """
    base_model = model.model
    before = install._STATES.pop(base_model)
    if before is not None:
        before.engine.restore()
        if before._watch is not None:  # it would take the weights of the other state for its own
            before._watch.remove()
            before._watch = None
    try:
        yield
    finally:
        with install._STATES.own.lock:  # nobody puts another in between, which would be dropped unclosed
            ours = install._STATES.pop(base_model)
            if before is not None:
                install._STATES.put(base_model, before)
        if ours is not None:
            ours.close()


def _graphs() -> list[Any]:
    found: dict[int, Any] = {
        id(on.graphs): on.graphs for state in states() for on in state.engine.devices if on.graphs is not None
    }
    found |= {
        id(held): held for state in states() for held, _ in state.engine.several.others.held() if held is not None
    }
    return list(found.values())
