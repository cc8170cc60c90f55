"""What Python and PyTorch look up by themselves: special methods that come to a class, marks on weights that are gone
through, what is saved.

As in :mod:`test_easily_overlooked`: the forward, what is in ``value`` at first, and the change.
"""

from __future__ import annotations

import collections
import functools
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import nn

Forward = Callable[[Any, torch.Tensor], torch.Tensor]


def made(meta: type = type, **names: Any) -> Any:
    """A class of its own."""
    return meta("Made", (), {"__module__": __name__, **names})


def an_object(**names: Any) -> Callable[[], Any]:
    return lambda: made(**names)()


def a_class(**names: Any) -> Callable[[], Any]:
    return lambda: made(type("Meta", (type,), {"__module__": __name__, **names}))


def comes(name: str, method: Any) -> Callable[[Any], None]:
    return lambda net: setattr(type(net.value), name, method)


def comes_and_another_goes(net: Any) -> None:
    """The class has as many names as before."""
    del type(net.value).k
    type(net.value).__bool__ = lambda self: False


def tried(compute: Callable[[], Any]) -> Any:
    with suppress(Exception):
        return compute()
    return 3


_OF_FILE = 1.0


def empty_cache() -> Any:
    return functools.cache(lambda: torch.ones(8))


def block() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU()).requires_grad_(False)


def layer(**buffers: torch.Tensor) -> nn.Module:
    found = nn.Linear(8, 8).requires_grad_(False)
    for name, buffer in buffers.items():
        found.register_buffer(name, buffer)
    return found


def scale(self: Any, other: float) -> float:
    return other * self.k


def numbered_anew() -> Any:
    """A class whose class has been given another ``__call__``, of another name."""
    cls = made(type("Meta", (type,), {"__module__": __name__}), __init__=lambda self, k: setattr(self, "k", k))
    type(cls).__call__ = lambda cls, k: type.__call__(cls, k * 2)
    return cls


def with_attribute(value: Any = None) -> Any:
    value = an_object()() if value is None else value
    value.k = 1.0
    return value


def by_marks(net: Any, x: torch.Tensor) -> torch.Tensor:
    for parameter in net.value.parameters():
        x = x * getattr(parameter, "gain_of_others", 1.0)
    return x


def by_marks_in_a_list(net: Any, x: torch.Tensor) -> torch.Tensor:
    return x * [2.0 if hasattr(each, "gain_of_others") else 1.0 for each in net.value][0]


def marked(parameter: nn.Parameter, gain: float) -> nn.Parameter:
    parameter.gain_of_others = gain  # type: ignore[attr-defined]
    return parameter


def marked_layer() -> nn.Module:
    found = layer()
    marked(found.weight, 1.0)
    return found


def marked_anew(net: Any) -> None:
    net.value.weight = marked(nn.Parameter(net.value.weight.data, requires_grad=False), 2.0)


def unheard(net: Any, x: torch.Tensor) -> torch.Tensor:
    with torch._C.DisableTorchFunction():
        contiguous = net.value.is_contiguous()
    return x * (2 if contiguous else 1)


def kept(result: Any, most: int | None = None) -> Any:
    made = [result]
    cached = functools.lru_cache(most)(lambda: made.pop())
    cached()
    return cached


SETTING = {"k": 1.0}


def warm() -> Any:
    SETTING["k"] = 1.0
    cached = functools.lru_cache(1)(lambda k=0: SETTING["k"])
    cached()
    return cached


CASES: dict[str, tuple[Forward, Callable[[], Any], Callable[[Any], Any]]] = {
    # A special method comes to a class that had none. A function that is replaced shows when it runs.
    "a length that comes to a class": (lambda net, x: x * (2 if net.value else 1), an_object(), comes("__len__", lambda self: 0)),
    "a truth in the place of another name": (lambda net, x: x * (2 if net.value else 1), an_object(k=1), comes_and_another_goes),
    "an equality": (lambda net, x: x * (2 if net.value in [5] else 1), an_object(), comes("__eq__", lambda self, other: True)),
    "what it is called": (lambda net, x: x * len(f"{net.value}"), an_object(), comes("__format__", lambda self, spec: "abc")),
    "a hash": (lambda net, x: x * (2 if hash(net.value) == 7 else 1), an_object(), comes("__hash__", lambda self: 7)),
    "an attribute that is computed": (lambda net, x: x * getattr(net.value, "k", 3), an_object(), comes("__getattr__", lambda self, name: 2)),
    "what an operator does": (lambda net, x: x * tried(lambda: net.value + 1), an_object(), comes("__add__", lambda self, other: 2)),
    "what a class makes": (lambda net, x: x * getattr(type(net.value)(), "k", 1), an_object(), comes("__init__", lambda self: setattr(self, "k", 2))),
    "what a class counts among its own": (
        lambda net, x: x * (2 if isinstance(5, net.value) else 1), a_class(), comes("__instancecheck__", lambda cls, value: True)),
    "what a class counts no more": (
        lambda net, x: x * (2 if isinstance(5, net.value) else 1),
        a_class(__instancecheck__=lambda cls, value: True), lambda net: delattr(type(net.value), "__instancecheck__")),
    "the truth of an object's class": (
        lambda net, x: x * (2 if type(net.value) else 1), lambda: a_class()()(), lambda net: setattr(type(type(net.value)), "__bool__", lambda cls: False)),
    "what is called no more": (
        lambda net, x: x * (2 if callable(net.value) else 1), an_object(__call__=lambda self: 2), lambda net: delattr(type(net.value), "__call__")),
    "what a dict has for a key that it hasn't": (
        lambda net, x: x * tried(lambda: net.value["k"]), lambda: type("Made", (dict,), {})(), comes("__missing__", lambda self, key: 2)),
    "a descriptor": (
        lambda net, x: x * (net.value.k if isinstance(net.value.k, int) else 3), lambda: an_object(k=an_object()())(),
        lambda net: setattr(type(vars(type(net.value))["k"]), "__get__", lambda self, value, cls: 2)),
    # A function that has another name than the one by which it is found.
    "what makes a class's objects": (
        lambda net, x: x * net.value(2.0).k, numbered_anew, lambda net: setattr(type(net.value), "__call__", lambda cls, k: type.__call__(cls, k * 3))),
    "an operator that is a method, too": (
        lambda net, x: x * (3.0 * net.value), an_object(k=2.0, scale=scale, __rmul__=scale),
        lambda net: setattr(type(net.value), "__rmul__", lambda self, other: other * 5)),
    "what a partial is made of": (
        lambda net, x: net.value(x), lambda: functools.partial(lambda x, k: x * k, k=2.0),
        lambda net: net.value.__setstate__((net.value.func, (), {"k": 3.0}, {}))),
    # What others put on weights that are gone through.
    "a mark on a weight": (by_marks, layer, lambda net: marked(net.value.weight, 2.0)),
    "another mark on a weight": (by_marks, marked_layer, lambda net: marked(net.value.weight, 2.0)),
    "a mark on another weight": (by_marks, layer, marked_anew),
    "a mark on a weight where there was none": (by_marks, lambda: nn.Linear(8, 8, bias=False), lambda net: setattr(net.value, "bias", marked(nn.Parameter(torch.ones(8)), 2.0))),
    "a mark on a weight in a list": (by_marks_in_a_list, lambda: [nn.Parameter(torch.ones(8))], lambda net: marked(net.value[0], 2.0)),
    "strides that nobody hears of": (unheard, lambda: torch.ones(2, 3), lambda net: setattr(net, "value", torch.ones(3, 2).t())),
    # What a function with a cache has kept.
    "an item of a list in a cache": (lambda net, x: x * net.value()[0], lambda: kept([1.0]), lambda net: net.value().__setitem__(0, 2.0)),
    "an object in a cache with a limit": (lambda net, x: x * net.value().k, lambda: kept(an_object(k=1.0)(), 2), lambda net: setattr(net.value(), "k", 2.0)),
    "what a function would keep anew": (lambda net, x: x * net.value(), warm, lambda net: (SETTING.update(k=2.0), net.value(1))),
    "what is in a tensor in a cache": (lambda net, x: x * net.value()[:8], empty_cache, lambda net: net.value().mul_(2)),
    # What is read of whatever layer code goes through.
    "an attribute that a layer hadn't": (
        lambda net, x: x * sum(getattr(each, "gain_of_others", 1.0) for each in net.value.modules()), block,
        lambda net: setattr(net.value[1], "gain_of_others", 3.0)),
    "children in another dict": (
        lambda net, x: x * len(list(net.value.modules())), block,
        lambda net: (net.value.append(nn.Tanh()), net.value.__delitem__(2), net.value.append(nn.Tanh()))),
    # What classes of C's compute, of another that is as good.
    "a defaultdict's function of another one": (
        lambda net, x: x * net.value.default_factory(), lambda: collections.defaultdict(lambda: 1.0),
        lambda net: setattr(net, "value", collections.defaultdict(lambda: 2.0))),
    # All that a file has.
    "a name of a file that is gone through": (
        lambda net, x: x * sum(value for name, value in globals().items() if name.startswith("_OF_FILE")), lambda: None,
        lambda net: globals().__setitem__("_OF_FILE", 2.0)),
    "a name that comes to a file that is gone through": (
        lambda net, x: x * sum(value for name, value in globals().items() if name.startswith("_COMES_")), lambda: None,
        lambda net: globals().__setitem__(f"_COMES_{len(globals())}", 2.0)),
    "a name that comes to a file that is found by its name": (
        lambda net, x: x * getattr(sys.modules[__name__ + net.which[5:]], "COMES_LATER", 1.0), lambda: globals().pop("COMES_LATER", None),
        lambda net: globals().__setitem__("COMES_LATER", 2.0)),
    # Another dict of attributes in the place of one.
    "an object's dict": (lambda net, x: x * net.value.k, with_attribute, lambda net: setattr(net.value, "__dict__", {"k": 2.0})),
    "a layer's dict": (
        lambda net, x: x * net.value.k, lambda: with_attribute(layer()), lambda net: setattr(net.value, "__dict__", {**vars(net.value), "k": 2.0})),
    # What is saved.
    "a buffer that is saved no more": (
        lambda net, x: x * len(net.value.state_dict()), lambda: layer(b=torch.ones(2)), lambda net: net.value._non_persistent_buffers_set.add("b")),
    "what is made of what is saved": (
        lambda net, x: x * len(net.value.state_dict()), layer,
        lambda net: net.value._register_state_dict_hook(lambda module, found, prefix, extra: found.clear())),
}  # fmt: skip
