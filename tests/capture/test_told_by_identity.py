"""Code that asks which object it was given, to find what it has kept of that: another call is given another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, compile
from tests.models import Forward

TENSORS = [torch.ones(8), torch.full((8,), 3.0)]
LISTS, DICTS = [[each] for each in TENSORS], [{"k": each} for each in TENSORS]


def by_id(net: Any, x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    if id(given) not in net.kept:
        net.kept[id(given)] = given * 2
    return net.lin(x) + net.kept[id(given)]


def _by(key: Any, net: Any, x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    if key not in net.kept:
        net.kept[key] = given * 2
    return net.lin(x) + net.kept[key]


def by_ids_in_a_generator(net: Any, x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    return _by(tuple(id(each) for each in [given]), net, x, given)


def by_ids_in_a_list(net: Any, x: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
    return _by(str([id(each) for each in given]), net, x, given[0])


def by_ids_in_a_loop(net: Any, x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    key = 0
    for each in (given,):
        key += id(each)
    return _by(key, net, x, given)


def by_mapped_ids(net: Any, x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    return _by(tuple(map(id, [given])), net, x, given)


def by_hash(net: Any, x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    return _by(hash(given), net, x, given)


def by_id_of_a_list(net: Any, x: torch.Tensor, given: list[torch.Tensor]) -> torch.Tensor:
    if id(given) not in net.kept:
        net.kept[id(given)] = given[0] * 2
    return net.lin(x) + net.kept[id(given)]


def by_key(net: Any, x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    if given not in net.kept:
        net.kept[given] = given * 2
    return net.lin(x) + net.kept[given]


def by_a_set(net: Any, x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    return net.lin(x) * (2 if given in net.known else 3)


def the_last_list(net: Any, x: torch.Tensor, given: list[torch.Tensor]) -> torch.Tensor:
    if given is not net.last:
        net.last, net.value = given, given[0] * 2
    return net.lin(x) + net.value


def one_that_is_known(net: Any, x: torch.Tensor, given: dict[str, torch.Tensor]) -> torch.Tensor:
    return net.lin(x) * (2 if given is DICTS[0] else 3)


def given_twice(net: Any, x: torch.Tensor, given: Any, again: Any = LISTS[0]) -> torch.Tensor:
    return net.lin(x) * (2 if given is again else 3)


#: The forward, and what it is given at first and from the third call on.
CASES: dict[str, tuple[Callable[..., torch.Tensor], list[Any]]] = {
    "a tensor's id": (by_id, TENSORS),
    "ids in a generator": (by_ids_in_a_generator, TENSORS),
    "ids in a list": (by_ids_in_a_list, TENSORS),
    "ids in a loop": (by_ids_in_a_loop, TENSORS),
    "mapped ids": (by_mapped_ids, TENSORS),
    "a hash": (by_hash, TENSORS),
    "a list's id": (by_id_of_a_list, LISTS),
    "a tensor as a key": (by_key, TENSORS),
    "a tensor in a set": (by_a_set, TENSORS),
    "the last list": (the_last_list, LISTS),
    "a dict that is known": (one_that_is_known, DICTS),
    "a list that is an argument's default": (given_twice, LISTS),
}


@pytest.mark.parametrize("inside", [False, True], ids=["the root", "a child"])
@pytest.mark.parametrize("what", CASES)
def test_another_object_is_not_taken_for_the_one_before(what: str, inside: bool) -> None:
    forward, given = CASES[what]
    net, twin = (_made(forward, inside) for _ in range(2))
    twin.load_state_dict(net.state_dict())
    compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for step in range(8):
            x = torch.randn(2, 8)
            torch.testing.assert_close(net(x, given[step // 2 % 2]), twin(x, given[step // 2 % 2]))


def test_what_is_given_to_a_function_of_the_models_is_no_argument_of_the_call() -> None:
    """A weight and a list of its own are the same objects at each call."""

    def known(net: Any, table: list[float], weight: torch.Tensor) -> float:
        return (2.0 if table is net.table else 3.0) + (id(weight) in net.kept)

    net: Any = Forward(lambda net, x: net.lin(x) * known(net, net.table, net.lin.weight), lin=nn.Linear(8, 8))
    net.requires_grad_(False)
    net.table, net.kept = [1.0], {id(net.lin.weight)}
    handle = compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(2, 8)
            torch.testing.assert_close(handle(x), net.lin(x) * 3.0)
    assert handle.engine.report.calls == {"traced": 1, "fused": 2}


def test_what_is_in_a_tensor_of_a_list_may_be_swapped() -> None:
    """``torch.utils.swap_tensors`` refuses tensors that somebody refers to weakly; and the swap is seen."""
    net: Any = Forward(lambda net, x: net.lin(x) * net.kept[0], lin=nn.Linear(8, 8)).requires_grad_(False)
    net.kept, x = [torch.ones(8)], torch.randn(2, 8)
    handle = compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(handle(x), net.lin(x))
        torch.utils.swap_tensors(net.kept[0], torch.full((8,), 3.0))
        torch.testing.assert_close(handle(x), net.lin(x) * 3.0)
    assert handle.engine.report.calls["fused"] >= 2


def _made(forward: Callable[..., torch.Tensor], inside: bool) -> Any:
    net: Any = Forward(forward, lin=nn.Linear(8, 8)).requires_grad_(False)
    net.kept, net.known, net.last, net.value = {}, {TENSORS[0]}, None, None
    return Forward(lambda outer, x, given: outer.inner(x, given), inner=net) if inside else net
