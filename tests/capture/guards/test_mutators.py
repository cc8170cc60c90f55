"""What puts something into a list or a dict is looked up, handed on and called in many ways: none of them is lost."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, compile
from tests.capture.guards.left_behind import alike
from tests.models import Forward


def by_a_variable(add: Callable[[Any], Any], y: Any) -> None:
    add(y)


def aliased(net: Any, y: torch.Tensor) -> None:
    append = net.maps.append
    append(y)


def unpacked(net: Any, y: torch.Tensor) -> None:
    net.maps.append(*[y])


def by_name(net: Any, y: torch.Tensor) -> None:
    getattr(net.maps, "append")(y)  # noqa: B009


def by_a_computed_name(net: Any, y: torch.Tensor) -> None:
    getattr(net.maps, "".join(["app", "end"]))(y)


def handed_on(net: Any, y: torch.Tensor) -> None:
    by_a_variable(net.maps.append, y)


def from_a_dict(net: Any, y: torch.Tensor) -> None:
    {"add": net.maps.append}["add"](y)


def by_a_default(net: Any, y: torch.Tensor) -> None:
    def add(value: Any, to: Any = net.maps.append) -> None:
        to(value)

    add(y)


def from_a_function(net: Any, y: torch.Tensor) -> None:
    def found() -> Any:
        return net.maps.append

    found()(y)


def by_map(net: Any, y: torch.Tensor) -> None:
    list(map(net.maps.append, [y]))


def by_a_partial(net: Any, y: torch.Tensor) -> None:
    functools.partial(net.maps.append)(y)


def by_operator(net: Any, y: torch.Tensor) -> None:
    operator.methodcaller("append", y)(net.maps)


def of_its_class(net: Any, y: torch.Tensor) -> None:
    list.append(net.maps, y)


def of_an_item(net: Any, y: torch.Tensor) -> None:
    append = net.table["deep"].append
    append(y)


def by_keywords(net: Any, y: torch.Tensor) -> None:
    net.table.update(y=y)


def by_unpacked_keywords(net: Any, y: torch.Tensor) -> None:
    net.table.update(**{"y": y})


def an_item_by_a_variable(net: Any, y: torch.Tensor) -> None:
    put = net.table.__setitem__
    put("y", y)


def in_the_attributes(net: Any, y: torch.Tensor) -> None:
    put = net.__dict__.update
    put(last=y)


WAYS = (
    aliased,
    unpacked,
    by_name,
    by_a_computed_name,
    handed_on,
    from_a_dict,
    by_a_default,
    from_a_function,
    by_map,
    by_a_partial,
    by_operator,
    of_its_class,
    of_an_item,
    by_keywords,
    by_unpacked_keywords,
    an_item_by_a_variable,
    in_the_attributes,
)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_what_is_put_somewhere_is_there(way: Callable[[Any, torch.Tensor], None]) -> None:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        y = net.linear(x)
        way(net, y)
        return torch.tanh(y)

    def make() -> Any:
        torch.manual_seed(0)
        made: Any = Forward(forward, linear=nn.Linear(4, 4)).eval().requires_grad_(False)
        made.maps, made.table, made.last = [], {"deep": []}, None
        return made

    net, twin = make(), make()
    handle = compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for step in range(4):
            x = torch.full((2, 4), 1.0 + step)
            torch.testing.assert_close(handle(x), twin(x))
            alike([net.maps, net.table, net.last], [twin.maps, twin.table, twin.last])
