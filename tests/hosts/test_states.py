"""A module holds its compiled state: what copies of it have, and that both go together."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from sfast_core.config import CompileConfig
from sfast_core.hosts.states import States, state_under


class _State:
    """A compiled state."""

    def __init__(self, knows: object = None, config: CompileConfig | None = None) -> None:
        self.knows, self.config, self.closed = knows, config or CompileConfig(), False

    def close(self) -> None:
        self.closed = True


def test_each_module_has_the_state_that_it_was_given() -> None:
    """And a state that is replaced or taken away is not among those alive."""
    states, first, second = States[_State](), torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    before, one, two = _State(), _State(), _State()
    states.put(first, before), states.put(first, one), states.put(second, two)
    assert states.get(first) is one and states.get(second) is two and states.all() == [one, two]
    assert states.pop(first) is one and states.get(first) is None and states.pop(first) is None
    assert states.all() == [two]
    states.put(first, one)
    assert states.get(first) is one and states.all() == [two, one]


def test_a_state_is_for_its_config() -> None:
    """An equal config finds it, another closes it, and one under which no state can be made leaves it as it was."""
    states, module, config = States[_State](), torch.nn.Linear(2, 2), CompileConfig(cuda_graphs=False)

    def cannot() -> _State:
        raise ValueError("cannot be compiled")

    first = state_under(states, module, CompileConfig(), _State)
    assert state_under(states, module, CompileConfig(), cannot) is first
    with pytest.raises(ValueError, match="cannot be compiled"):
        state_under(states, module, config, cannot)
    assert states.get(module) is first and not first.closed
    second = state_under(states, module, config, lambda: _State(config=config))
    assert states.all() == [second] and first.closed and not second.closed


def test_threads_that_ask_first_get_one_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    both_make_one = threading.Barrier(2, timeout=10)

    def made() -> object:
        both_make_one.wait()
        return object()

    monkeypatch.setattr("sfast_core.hosts.states.OwnLock", made)
    states = States[_State]()
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(lambda _: states.own, range(2))
    assert first is second is states.own


def test_a_copy_has_no_state() -> None:
    """However it was made, and what is saved has nothing of ours: it is read where the pack isn't installed."""
    states, module = States[_State](), torch.nn.Linear(2, 2)
    states.put(module, _State())
    saved = pickle.dumps(module)
    for other in (copy.copy(module), copy.deepcopy(module), pickle.loads(saved)):
        assert states.get(other) is None and states.pop(other) is None
    assert b"sfast_core" not in saved and module.state_dict().keys() == torch.nn.Linear(2, 2).state_dict().keys()
    assert states.get(module) is not None


def test_another_table_has_another_state() -> None:
    """An extension that is loaded again doesn't take the states of the first one for its own."""
    first, second, module = States[_State](), States[_State](), torch.nn.Linear(2, 2)
    first.put(module, _State())
    assert second.get(module) is None


def test_both_go_together() -> None:
    """At once, and by the collector where the state knows its module."""
    states = States[_State]()
    gc.collect()
    gc.disable()
    try:
        module = torch.nn.Linear(2, 2)
        states.put(module, _State())
        gone = weakref.ref(module)
        del module
        assert gone() is None and states.all() == []
    finally:
        gc.enable()
    module = torch.nn.Linear(2, 2)
    states.put(module, _State(knows=module))
    gone = weakref.ref(module)
    del module
    gc.collect()
    assert gone() is None and states.all() == []
