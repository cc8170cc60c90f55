"""What steers a forward: which modules there are, in which order, their classes and methods."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.capture.steering.structure import Root, Steered, case, linear, own, setting, times

# -- which modules there are ----------------------------------------------------------------------------------------


@case("a child is replaced")
def _() -> Steered:
    module, other = nn.Sequential(linear(), linear()), linear()
    before = module[0]
    return Steered(Root(module), lambda: module.__setitem__(0, other), lambda: module.__setitem__(0, before))


@case("a child of the root is replaced")
def _() -> Steered:
    root, other = Root(linear()), linear()
    before = root.child
    return Steered(root, lambda: setattr(root, "child", other), lambda: setattr(root, "child", before))


def swap(modules: Any, a: Any, b: Any) -> Callable[[], None]:
    def change() -> None:
        modules[a], modules[b] = modules[b], modules[a]

    return change


@case("two of a ModuleList trade places")
def _() -> Steered:
    module = own(
        lambda s, x: functools.reduce(lambda y, f: torch.relu(f(y)), s.fs, x), fs=nn.ModuleList([linear(), linear()])
    )
    return Steered(Root(module), swap(module.fs, 0, 1), swap(module.fs, 0, 1))


@case("two of a Sequential trade places")
def _() -> Steered:
    module = nn.Sequential(linear(), nn.ReLU(), linear())
    return Steered(Root(module), swap(module, 0, 2), swap(module, 0, 2))


@case("a ModuleDict's order")
def _() -> Steered:
    module = own(
        lambda s, x: functools.reduce(lambda y, f: f(y), s.fs.values(), s.linear(x)),
        fs=nn.ModuleDict({"a": nn.ReLU(), "b": nn.Tanh()}),
    )
    turn = lambda key: module.fs.__setitem__(key, module.fs.pop(key))  # noqa: E731
    return Steered(Root(module), lambda: turn("a"), lambda: turn("b"))


@case("a ModuleDict gets one")
def _() -> Steered:
    module = own(
        lambda s, x: s.fs["b"](s.linear(x)) if "b" in s.fs else s.linear(x), fs=nn.ModuleDict({"a": nn.ReLU()})
    )
    return Steered(Root(module), lambda: module.fs.update({"b": nn.Tanh()}), lambda: module.fs.pop("b"))


@case("a ModuleList grows")
def _() -> Steered:
    module = own(lambda s, x: functools.reduce(lambda y, f: f(y), s.fs, s.linear(x)), fs=nn.ModuleList([nn.ReLU()]))
    return Steered(Root(module), lambda: module.fs.append(nn.Tanh()), lambda: module.fs.pop(1))


@case("a Sequential loses one")
def _() -> Steered:
    module = nn.Sequential(linear(), nn.ReLU())
    return Steered(Root(module), lambda: module.pop(1), lambda: module.append(nn.ReLU()))


@case("a child that a layer may have")
def _() -> Steered:
    module = own(lambda s, x: s.extra(s.linear(x)) if hasattr(s, "extra") else s.linear(x))
    return Steered(Root(module), lambda: module.add_module("extra", nn.Tanh()), lambda: delattr(module, "extra"))


@case("a Linear of others gets a child")
def _() -> Steered:
    class Lora(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            return y + self.lora(x) if "lora" in self._modules else y

    module = Lora(8, 8)
    return Steered(Root(module), lambda: module.add_module("lora", linear()), lambda: delattr(module, "lora"))


@case("the number of children")
def _() -> Steered:
    module = own(lambda s, x: s.linear(x) * len(list(s.children())))
    return Steered(Root(module), lambda: module.add_module("extra", nn.Tanh()), lambda: delattr(module, "extra"))


@case("the number of parameters")
def _() -> Steered:
    module = own(lambda s, x: s.linear(x) * sum(1 for _ in s.parameters()))
    return Steered(
        Root(module),
        lambda: module.register_parameter("extra", nn.Parameter(torch.ones(1), requires_grad=False)),
        lambda: delattr(module, "extra"),
    )


@case("a child's class")
def _() -> Steered:
    class Twice(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * 2

    return setting(linear(), "__class__", Twice)


@case("a child's own forward")
def _() -> Steered:
    module = linear()
    return Steered(
        Root(module),
        lambda: setattr(module, "forward", lambda x: F.linear(x, module.weight) * 3),
        lambda: delattr(module, "forward"),
    )


@case("what a child's own forward closes over")
def _() -> Steered:
    module, box = linear(), {"deep": [1.0]}
    before = module.forward
    module.forward = lambda x: before(x) * box["deep"][0]
    return Steered(Root(module), lambda: box["deep"].__setitem__(0, 2.0), lambda: box["deep"].__setitem__(0, 1.0))


@case("what the own forward of the second of two layers closes over")
def _() -> Steered:
    module, box = nn.Sequential(linear(), linear()), {"deep": [1.0]}
    before = module[1].forward
    module[1].forward = lambda x: before(x) * box["deep"][0]
    return Steered(Root(module), lambda: box["deep"].__setitem__(0, 2.0), lambda: box["deep"].__setitem__(0, 1.0))


@case("the second of two layers gets a forward of its own")
def _() -> Steered:
    module = nn.Sequential(linear(), linear())
    return Steered(
        Root(module),
        lambda: setattr(module[1], "forward", lambda x: F.linear(x, module[1].weight) * 3),
        lambda: delattr(module[1], "forward"),
    )


@case("a child's own forward by a partial")
def _() -> Steered:
    module = linear()
    before = module.forward
    module.forward = functools.partial(times, before, 1.0)
    return Steered(
        Root(module),
        lambda: setattr(module, "forward", functools.partial(times, before, 2.0)),
        lambda: setattr(module, "forward", functools.partial(times, before, 1.0)),
    )


@case("a block's own _forward")
def _() -> Steered:
    module = own(lambda s, x: s._forward(x), _forward=lambda x: x * 1)
    return setting(module, "_forward", lambda x: x * 2)


@case("a base's method")
def _() -> Steered:
    class Base(nn.Module):
        def scaled(self, x: torch.Tensor) -> torch.Tensor:
            return x * 1

    class Derived(Base):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.scaled(x)

    before = Base.scaled
    return Steered(
        Root(Derived()), lambda: setattr(Base, "scaled", lambda self, x: x * 2), lambda: setattr(Base, "scaled", before)
    )


@case("the bases of a class")
def _() -> Steered:
    class Once(nn.Module):
        K = 1.0

    class Twice(nn.Module):
        K = 2.0

    class Derived(Once):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.K

    return Steered(
        Root(Derived()), lambda: setattr(Derived, "__bases__", (Twice,)), lambda: setattr(Derived, "__bases__", (Once,))
    )


@case("the forward of a class")
def _() -> Steered:
    module = own(lambda s, x: s.linear(x))
    kind = type(module)
    before = kind.forward
    return Steered(
        Root(module),
        lambda: setattr(kind, "forward", lambda s, x: s.linear(x) * 2),
        lambda: setattr(kind, "forward", before),
    )


@case("the code of a class's forward")
def _() -> Steered:
    def first(s: Any, x: torch.Tensor) -> torch.Tensor:
        return s.linear(x)

    def second(s: Any, x: torch.Tensor) -> torch.Tensor:
        return s.linear(x) * 2

    module = own(first)
    before = first.__code__
    return Steered(
        Root(module), lambda: setattr(first, "__code__", second.__code__), lambda: setattr(first, "__code__", before)
    )


@case("a shared child is two now")
def _() -> Steered:
    shared = linear()
    module = nn.Sequential(shared, nn.ReLU(), shared)
    other = linear()
    return Steered(Root(module), lambda: module.__setitem__(2, other), lambda: module.__setitem__(2, shared))


@case("two children are one now")
def _() -> Steered:
    module = nn.Sequential(linear(), nn.ReLU(), linear())
    before = module[2]
    return Steered(Root(module), lambda: module.__setitem__(2, module[0]), lambda: module.__setitem__(2, before))


# -- another table of them ------------------------------------------------------------------------------------------


def another_table(module: nn.Module, part: str, change: Callable[[dict[str, Any]], Any]) -> Steered:
    """The module gets a copy of one of its tables, which is changed."""
    before = module.__dict__[part]
    other = dict(before)
    change(other)
    return Steered(Root(module), lambda: setattr(module, part, other), lambda: setattr(module, part, before))


@case("another table of children")
def _() -> Steered:
    return another_table(own(lambda s, x: s.linear(x)), "_modules", lambda table: table.update(linear=linear()))


@case("another table of children, in which there is one that a layer may have")
def _() -> Steered:
    module = own(lambda s, x: s.extra(s.linear(x)) if hasattr(s, "extra") else s.linear(x))
    return another_table(module, "_modules", lambda table: table.update(extra=nn.Tanh()))


@case("another table of buffers")
def _() -> Steered:
    module = own(lambda s, x: s.linear(x) * len(s.b))
    module.register_buffer("b", torch.zeros(3))
    return another_table(module, "_buffers", lambda table: table.update(b=torch.zeros(5)))


@case("another set of the buffers that aren't saved")
def _() -> Steered:
    module = own(lambda s, x: s.linear(x) * len(s.state_dict()))
    module.register_buffer("b", torch.zeros(3))
    before = module._non_persistent_buffers_set
    return Steered(
        Root(module),
        lambda: setattr(module, "_non_persistent_buffers_set", {"b"}),
        lambda: setattr(module, "_non_persistent_buffers_set", before),
    )


@case("an attribute that all tensors get")
def _() -> Steered:
    module = own(lambda s, x: s.linear(x) * getattr(x, "gain", 1.0))
    return Steered(Root(module), lambda: setattr(torch.Tensor, "gain", 2.0), lambda: _without_gain(torch.Tensor))


@case("an attribute that all parameters get")
def _() -> Steered:
    module = own(lambda s, x: s.linear(x) * getattr(s.linear.weight, "gain", 1.0))
    return Steered(Root(module), lambda: setattr(nn.Parameter, "gain", 2.0), lambda: _without_gain(nn.Parameter))


def _without_gain(cls: type) -> None:
    if "gain" in vars(cls):  # each of the two models takes it away
        del cls.gain  # type: ignore[attr-defined]


@case("an equal table of children, which is changed")
def _() -> Steered:
    module = own(lambda s, x: s.linear(x))
    before, other = module._modules, linear()

    def change() -> None:
        module._modules = dict(before)
        module.linear = other

    return Steered(Root(module), change, lambda: setattr(module, "_modules", before))
