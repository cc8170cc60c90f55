"""What steers a forward: weights, buffers, and how they train."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.capture.steering.structure import CASES, Root, Steered, case, linear, own, setting

# -- weights and buffers --------------------------------------------------------------------------------------------


def buffered(
    use: Callable[[Any, torch.Tensor], torch.Tensor], first: torch.Tensor | None, then: torch.Tensor | None
) -> Steered:
    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        return use(s, s.linear(x))

    module = own(forward)
    module.register_buffer("b", first)
    return Steered(Root(module), lambda: setattr(module, "b", then), lambda: setattr(module, "b", first))


CASES["a buffer's values, by another"] = lambda: buffered(lambda s, y: y * s.b, torch.ones(8), torch.full((8,), 2.0))
CASES["a buffer's shape"] = lambda: buffered(lambda s, y: y * s.b.shape[0], torch.zeros(3), torch.zeros(5))
CASES["a buffer's length"] = lambda: buffered(lambda s, y: y * len(s.b), torch.zeros(3), torch.zeros(5))
CASES["a buffer's numel"] = lambda: buffered(lambda s, y: y * s.b.numel(), torch.zeros(3), torch.zeros(5))
CASES["a buffer's dimensions"] = lambda: buffered(lambda s, y: y * s.b.dim(), torch.zeros(3), torch.zeros(1, 3))
CASES["a buffer's strides"] = lambda: buffered(
    lambda s, y: y * (1 if s.b.is_contiguous() else 2), torch.zeros(3, 3), torch.zeros(3, 6)[:, ::2]
)
CASES["a buffer's dtype"] = lambda: buffered(
    lambda s, y: y * (2 if s.b.dtype is torch.float64 else 1), torch.zeros(3), torch.zeros(3, dtype=torch.float64)
)
CASES["a buffer's device"] = lambda: buffered(
    lambda s, y: y * (2 if s.b.is_meta else 1), torch.zeros(3), torch.zeros(3, device="meta")
)
CASES["a buffer comes"] = lambda: buffered(lambda s, y: y if s.b is None else y + s.b, None, torch.ones(8))
CASES["a buffer that steers comes"] = lambda: buffered(lambda s, y: y if s.b is None else y * 2, None, torch.ones(8))
CASES["a buffer goes"] = lambda: buffered(lambda s, y: y if s.b is None else y + s.b, torch.ones(8), None)
CASES["a buffer broadcasts"] = lambda: buffered(lambda s, y: y + s.b, torch.ones(8), torch.full((1,), 2.0))


def written(name: str, write: Callable[[torch.Tensor], Any], back: Callable[[torch.Tensor], Any]) -> Steered:
    module = own(lambda s, x: s.linear(x) * s.b)
    module.register_buffer("b", torch.ones(8))
    tensor = functools.reduce(getattr, name.split("."), module)
    return Steered(Root(module), lambda: write(tensor), lambda: back(tensor))


CASES["a buffer is written to"] = lambda: written("b", lambda t: t.mul_(3), lambda t: t.div_(3))
CASES["a weight is written to"] = lambda: written("linear.weight", lambda t: t.data.mul_(4), lambda t: t.data.div_(4))
CASES["a weight's .data is replaced"] = lambda: written(
    "linear.weight", lambda t: setattr(t, "data", t.data * 4), lambda t: setattr(t, "data", t.data / 4)
)


@case("a weight is replaced")
def _() -> Steered:
    return setting(linear(), "weight", nn.Parameter(torch.randn(8, 8), requires_grad=False))


@case("a bias goes")
def _() -> Steered:
    return setting(linear(), "bias", None)


@case("a bias comes")
def _() -> Steered:
    return setting(nn.Linear(8, 8, bias=False), "bias", nn.Parameter(torch.ones(8), requires_grad=False))


@case("a weight of another size")
def _() -> Steered:
    module = nn.Sequential(linear(), nn.Linear(8, 8, bias=False))
    a, b = module[0], module[1]
    before = (a.weight, a.bias, b.weight)

    def put(first: Any, bias: Any, second: Any) -> None:
        a.weight, a.bias, b.weight = first, bias, second

    fresh = [nn.Parameter(torch.randn(*shape), requires_grad=False) for shape in ((5, 8), (5,), (8, 5))]
    return Steered(Root(module), lambda: put(*fresh), lambda: put(*before))


@case("a weight of another dtype that steers")
def _() -> Steered:
    module = own(lambda s, x: F.linear(x.to(s.linear.weight.dtype), s.linear.weight, s.linear.bias).float())
    return Steered(Root(module), lambda: module.linear.to(torch.bfloat16), lambda: module.linear.to(torch.float32))


@case("a weight is two now")
def _() -> Steered:
    module = nn.Sequential(linear(), nn.ReLU(), linear())
    module[2].weight = module[0].weight
    other, before = nn.Parameter(torch.randn(8, 8), requires_grad=False), module[0].weight
    return Steered(
        Root(module), lambda: setattr(module[2], "weight", other), lambda: setattr(module[2], "weight", before)
    )


@case("the first of two names of a weight is another")
def _() -> Steered:
    module = nn.Sequential(linear(), nn.ReLU(), linear())
    module[2].weight = module[0].weight
    other, before = nn.Parameter(torch.randn(8, 8), requires_grad=False), module[0].weight
    return Steered(
        Root(module), lambda: setattr(module[0], "weight", other), lambda: setattr(module[0], "weight", before)
    )


@case("two weights are one now")
def _() -> Steered:
    module = nn.Sequential(linear(), nn.ReLU(), linear())
    before = module[2].weight
    return Steered(
        Root(module),
        lambda: setattr(module[2], "weight", module[0].weight),
        lambda: setattr(module[2], "weight", before),
    )


@case("one weight of three packed ones is replaced")
def _() -> Steered:
    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        x = s.linear(x)[None]
        q, k, v = (layer(x).reshape(1, 2, 2, 4).transpose(1, 2) for layer in (s.q, s.k, s.v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 8)

    module = own(forward, q=linear(), k=linear(), v=linear())
    other, before = nn.Parameter(torch.randn(8, 8), requires_grad=False), []

    def change() -> None:
        before.append(module.k.weight)
        module.k.weight = other

    return Steered(Root(module), change, lambda: setattr(module.k, "weight", before.pop()))


@case("load_state_dict")
def _() -> Steered:
    return loaded(assign=False)


@case("load_state_dict(assign=True)")
def _() -> Steered:
    return loaded(assign=True)


def loaded(assign: bool) -> Steered:
    root = Root(nn.Sequential(linear(), nn.LayerNorm(8)))
    before = {name: value.clone() for name, value in root.state_dict().items()}
    after = {name: torch.randn_like(value) for name, value in before.items()}
    load = lambda state: root.load_state_dict({name: value.clone() for name, value in state.items()}, assign=assign)  # noqa: E731
    return Steered(root, lambda: load(after), lambda: load(before))


@case("to(float64) and back")
def _() -> Steered:
    root = Root(
        own(
            lambda s, x: (
                s.linear(x.to(s.linear.weight.dtype)).float() * (2 if s.linear.weight.dtype is torch.float64 else 1)
            )
        )
    )
    return Steered(root, lambda: root.double(), lambda: root.float())


@case("the whole module trains")
def _() -> Steered:
    root = Root(own(lambda s, x: s.linear(x) * (2 if s.training else 1)))
    return Steered(root, lambda: root.train(), lambda: root.eval())


@case("one child trains")
def _() -> Steered:
    module = own(lambda s, x: s.linear(x) * (2 if s.linear.training else 1))
    return Steered(Root(module), lambda: module.linear.train(), lambda: module.linear.eval())


@case("a leaf of others trains")
def _() -> Steered:
    class Layer(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * (2 if self.training else 1)

    module = Layer(8, 8)
    return Steered(Root(module), lambda: module.train(), lambda: module.eval())


@case("requires_grad steers")
def _() -> Steered:
    module = own(lambda s, x: s.linear(x) * (2 if s.linear.weight.requires_grad else 1))
    return Steered(
        Root(module), lambda: module.linear.requires_grad_(True), lambda: module.linear.requires_grad_(False)
    )


@case("the grad mode steers")
def _() -> Steered:
    return Steered(
        Root(own(lambda s, x: s.linear(x) * (2 if torch.is_grad_enabled() else 1))),
        lambda: torch.set_grad_enabled(True),
        lambda: torch.set_grad_enabled(False),
    )


@case("the default dtype steers")
def _() -> Steered:
    return Steered(
        Root(own(lambda s, x: s.linear(x) + torch.full((8,), 1.0 / 3).double())),
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.set_default_dtype(torch.float32),
    )
