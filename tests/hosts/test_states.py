"""A module holds its compiled state: what copies of it have, and that both go together."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import torch

from sfast_core.hosts.states import States


class _State:
    """A compiled state."""

    def __init__(self, knows: object = None) -> None:
        self.knows = knows


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
