"""Values by tensor object."""

from __future__ import annotations

import gc
import weakref

import torch

from sfast_core.weights.tensor_map import TensorMap


def test_it_tells_objects_apart_not_values() -> None:
    a, b = torch.zeros(2), torch.zeros(2)
    table = TensorMap[str]()
    table[a] = "a"
    assert table.get(a) == "a" and a in table
    assert table.get(b) is None and b not in table
    table[a] = "again"
    assert table.get(a) == "again"
    del table[a]
    assert a not in table and table.get(a) is None


def test_a_tensor_with_the_id_of_one_that_is_gone_has_no_value() -> None:
    table = TensorMap[int]()
    reused = 0
    for index in range(100):
        tensor = torch.zeros(2)
        reused += id(tensor) in table._entries
        assert tensor not in table and table.get(tensor) is None
        table[tensor] = index
        assert table.get(tensor) == index
        del tensor
    assert reused, "no id came again: this shows nothing"


def test_it_keeps_no_tensor_alive() -> None:
    tensor = torch.zeros(2)
    table, alive = TensorMap[int](), weakref.ref(tensor)
    table[tensor] = 1
    del tensor
    gc.collect()
    assert alive() is None


def test_a_tensor_that_only_torch_held_for_a_while_is_found_again() -> None:
    base = torch.zeros(4)
    table = TensorMap[int]()
    table[base] = 1
    view = base[1:]
    del base
    gc.collect()
    assert view._base is not None and table.get(view._base) == 1
