"""What steers a forward by its structure: modules and their order, classes, methods, hooks, torch's own functions, buffers, weights."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules import module as all_modules
from torch.nn.utils import parametrizations, parametrize, weight_norm

from sfast_core import CompileConfig, compile

X = torch.linspace(-1.0, 2.0, 16).reshape(2, 8)


class Steered(NamedTuple):
    """A module, what changes it, and what takes that back (None: nothing does).

    Both are also called for the twin, so what is changed for the whole process is changed twice.
    """

    module: nn.Module
    change: Callable[[], Any]
    back: Callable[[], Any] | None = None


CASES: dict[str, Callable[[], Steered]] = {}


def case(name: str) -> Callable[[Callable[[], Steered]], Callable[[], Steered]]:
    def add(build: Callable[[], Steered]) -> Callable[[], Steered]:
        CASES[name] = build
        return build

    return add


class Root(nn.Module):
    def __init__(self, child: nn.Module) -> None:
        super().__init__()
        self.child = child

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.child(x)


def linear() -> nn.Linear:
    return nn.Linear(8, 8)


def own(forward: Callable[..., torch.Tensor], base: type = nn.Module, **attributes: Any) -> nn.Module:
    """A module of a class of its own that computes by ``forward(module, x)``."""
    made = type("Own", (base,), {"forward": forward})()
    made.linear = linear()
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def setting(module: Any, name: str, value: Any) -> Steered:
    """``module`` in a root, of which an attribute is set and set back."""
    before = getattr(module, name)
    return Steered(Root(module), lambda: setattr(module, name, value), lambda: setattr(module, name, before))


def replaced(owner: Any, name: str, by: Callable[[Any], Any], module: nn.Module) -> Steered:
    """``owner.name``, which is everybody's, replaced by what ``by`` makes of it."""
    before = getattr(owner, name)
    return Steered(Root(module), lambda: setattr(owner, name, by(before)), lambda: setattr(owner, name, before))


def thrice(function: Any) -> Any:
    return lambda *args, **kwargs: function(*args, **kwargs) * 3


def times(function: Any, factor: float, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs) * factor


class Thrice:
    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs) * 3


# -- torch's own functions ---------------------------------------------------------------------------------------------------

BY: dict[str, Callable[[Any], Any]] = {"a function": thrice, "a partial": lambda f: functools.partial(times, f, 3.0), "an object": Thrice}


def attend(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = module.linear(x)[None, None]
    return F.scaled_dot_product_attention(y, y * 2, y)[0, 0]


for word, by in BY.items():
    CASES[f"F.linear is {word}, called by nn.Linear"] = lambda by=by: replaced(F, "linear", by, linear())
    CASES[f"F.silu is {word}, called by the file"] = lambda by=by: replaced(F, "silu", by, own(lambda s, x: F.silu(s.linear(x))))
    CASES[f"F.silu is {word}, called by nn.SiLU"] = lambda by=by: replaced(F, "silu", by, nn.Sequential(linear(), nn.SiLU()))
    CASES[f"F.scaled_dot_product_attention is {word}"] = lambda by=by: replaced(F, "scaled_dot_product_attention", by, own(attend))
    CASES[f"torch.sigmoid is {word}"] = lambda by=by: replaced(torch, "sigmoid", by, own(lambda s, x: torch.sigmoid(s.linear(x))))
    CASES[f"torch.nn.functional.gelu by its whole name is {word}"] = lambda by=by: replaced(F, "gelu", by, own(lambda s, x: torch.nn.functional.gelu(s.linear(x))))
    CASES[f"F.layer_norm is {word}"] = lambda by=by: replaced(F, "layer_norm", by, nn.LayerNorm(8))
    CASES[f"F.group_norm is {word}"] = lambda by=by: replaced(F, "group_norm", by, nn.GroupNorm(2, 8))
CASES["nn.Linear.forward is patched"] = lambda: replaced(nn.Linear, "forward", lambda f: lambda self, x: f(self, x) * 3, linear())
CASES["nn.Linear.forward is patched below a class of others"] = lambda: replaced(
    nn.Linear, "forward", lambda f: lambda self, x: f(self, x) * 3, type("Derived", (nn.Linear,), {})(8, 8)
)
CASES["nn.Sequential.forward is patched"] = lambda: replaced(nn.Sequential, "forward", lambda f: lambda self, x: f(self, x) * 3, nn.Sequential(linear()))
CASES["nn.Module.__call__ is patched"] = lambda: replaced(
    nn.Module, "__call__", lambda f: lambda self, *args: f(self, *args) * (3 if isinstance(self, nn.Linear) else 1), linear()
)
CASES["torch.Tensor.relu is patched"] = lambda: replaced(torch.Tensor, "relu", lambda f: lambda self: f(self) * 3, own(lambda s, x: s.linear(x).relu()))

# -- layers and their settings -------------------------------------------------------------------------------------------------

CASES["a LayerNorm's eps"] = lambda: setting(nn.LayerNorm(8), "eps", 1.0)
CASES["a GroupNorm's eps"] = lambda: setting(nn.GroupNorm(2, 8), "eps", 1.0)
CASES["a GroupNorm's groups"] = lambda: setting(nn.GroupNorm(2, 8), "num_groups", 4)
CASES["a softmax's dimension"] = lambda: setting(nn.Softmax(0), "dim", 1)
CASES["a GELU's kind"] = lambda: setting(nn.GELU(), "approximate", "tanh")
CASES["a LeakyReLU's slope"] = lambda: setting(nn.LeakyReLU(0.1), "negative_slope", 0.5)
CASES["a Hardtanh's limit"] = lambda: setting(nn.Hardtanh(), "max_val", 0.5)
CASES["an inplace activation's flag"] = lambda: setting(nn.ReLU(), "inplace", False)
CASES["a Flatten's dimension"] = lambda: setting(nn.Sequential(nn.Unflatten(1, (2, 4)), nn.Flatten(1)), "0", nn.Unflatten(1, (4, 2)))
CASES["a Dropout in training, of nothing"] = lambda: setting(nn.Sequential(linear(), nn.Dropout(0.0)), "training", True)
CASES["a RMSNorm's eps"] = lambda: setting(nn.RMSNorm(8), "eps", 1.0)


def conv(**settings: Any) -> nn.Module:
    return own(lambda s, x: s.conv(x.reshape(1, 2, 2, 4)).flatten(), conv=nn.Conv2d(2, 2, 3, padding=1, **settings))


def conv_setting(name: str, value: Any, **settings: Any) -> Steered:
    module = conv(**settings)
    before = getattr(module.conv, name)
    return Steered(Root(module), lambda: setattr(module.conv, name, value), lambda: setattr(module.conv, name, before))


CASES["a convolution's stride"] = lambda: conv_setting("stride", (2, 2))
CASES["a convolution's padding"] = lambda: conv_setting("padding", (2, 1))
CASES["a convolution's dilation"] = lambda: conv_setting("dilation", (1, 2))
CASES["a convolution's circular padding"] = lambda: conv_setting("padding", (0, 0), padding_mode="circular")
CASES["what a convolution pads by"] = lambda: conv_setting("_reversed_padding_repeated_twice", [2, 0, 1, 1], padding_mode="circular")


CASES["what convolves"] = lambda: conv_setting("_conv_forward", lambda x, weight, bias: F.conv2d(x, weight * 2, bias, padding=1))


@case("a layer upsamples by more")
def _() -> Steered:
    module = own(lambda s, x: s.up(s.linear(x)[None]), up=nn.Upsample(scale_factor=2.0))
    return Steered(Root(module), lambda: setattr(module.up, "scale_factor", 3.0), lambda: setattr(module.up, "scale_factor", 2.0))


# -- which modules there are ---------------------------------------------------------------------------------------------------


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
    module = own(lambda s, x: functools.reduce(lambda y, f: torch.relu(f(y)), s.fs, x), fs=nn.ModuleList([linear(), linear()]))
    return Steered(Root(module), swap(module.fs, 0, 1), swap(module.fs, 0, 1))


@case("two of a Sequential trade places")
def _() -> Steered:
    module = nn.Sequential(linear(), nn.ReLU(), linear())
    return Steered(Root(module), swap(module, 0, 2), swap(module, 0, 2))


@case("a ModuleDict's order")
def _() -> Steered:
    module = own(lambda s, x: functools.reduce(lambda y, f: f(y), s.fs.values(), s.linear(x)), fs=nn.ModuleDict({"a": nn.ReLU(), "b": nn.Tanh()}))
    turn = lambda key: module.fs.__setitem__(key, module.fs.pop(key))  # noqa: E731
    return Steered(Root(module), lambda: turn("a"), lambda: turn("b"))


@case("a ModuleDict gets one")
def _() -> Steered:
    module = own(lambda s, x: s.fs["b"](s.linear(x)) if "b" in s.fs else s.linear(x), fs=nn.ModuleDict({"a": nn.ReLU()}))
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
        Root(module), lambda: module.register_parameter("extra", nn.Parameter(torch.ones(1), requires_grad=False)), lambda: delattr(module, "extra")
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
    return Steered(Root(module), lambda: setattr(module, "forward", lambda x: F.linear(x, module.weight) * 3), lambda: delattr(module, "forward"))


@case("what a child's own forward closes over")
def _() -> Steered:
    module, box = linear(), {"deep": [1.0]}
    before = module.forward
    module.forward = lambda x: before(x) * box["deep"][0]
    return Steered(Root(module), lambda: box["deep"].__setitem__(0, 2.0), lambda: box["deep"].__setitem__(0, 1.0))


@case("a child's own forward by a partial")
def _() -> Steered:
    module = linear()
    before = module.forward
    module.forward = functools.partial(times, before, 1.0)
    return Steered(
        Root(module), lambda: setattr(module, "forward", functools.partial(times, before, 2.0)), lambda: setattr(module, "forward", functools.partial(times, before, 1.0))
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
    return Steered(Root(Derived()), lambda: setattr(Base, "scaled", lambda self, x: x * 2), lambda: setattr(Base, "scaled", before))


@case("the bases of a class")
def _() -> Steered:
    class Once(nn.Module):
        K = 1.0

    class Twice(nn.Module):
        K = 2.0

    class Derived(Once):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.K

    return Steered(Root(Derived()), lambda: setattr(Derived, "__bases__", (Twice,)), lambda: setattr(Derived, "__bases__", (Once,)))


@case("the forward of a class")
def _() -> Steered:
    module = own(lambda s, x: s.linear(x))
    kind = type(module)
    before = kind.forward
    return Steered(Root(module), lambda: setattr(kind, "forward", lambda s, x: s.linear(x) * 2), lambda: setattr(kind, "forward", before))


@case("the code of a class's forward")
def _() -> Steered:
    def first(s: Any, x: torch.Tensor) -> torch.Tensor:
        return s.linear(x)

    def second(s: Any, x: torch.Tensor) -> torch.Tensor:
        return s.linear(x) * 2

    module = own(first)
    before = first.__code__
    return Steered(Root(module), lambda: setattr(first, "__code__", second.__code__), lambda: setattr(first, "__code__", before))


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


# -- hooks and parametrizations ------------------------------------------------------------------------------------------------


def hooked(register: Callable[[nn.Module], Any], module: nn.Module | None = None) -> Steered:
    module = linear() if module is None else module
    handles: list[Any] = []
    return Steered(Root(module), lambda: handles.append(register(module)), lambda: handles.pop().remove())


CASES["a forward hook"] = lambda: hooked(lambda m: m.register_forward_hook(lambda module, args, y: y * 5))
CASES["a forward hook with keywords"] = lambda: hooked(lambda m: m.register_forward_hook(lambda module, args, kwargs, y: y * 5, with_kwargs=True))
CASES["a forward hook of one's own block"] = lambda: hooked(lambda m: m.register_forward_hook(lambda module, args, y: y * 5), own(lambda s, x: s.linear(x)))
CASES["a forward hook that always runs"] = lambda: hooked(lambda m: m.register_forward_hook(lambda module, args, y: y * 5, always_call=True))
CASES["a forward hook in a nested child"] = lambda: hooked(lambda m: m[0][0].register_forward_hook(lambda module, args, y: y * 5), nn.Sequential(nn.Sequential(linear())))
CASES["a forward pre-hook"] = lambda: hooked(lambda m: m.register_forward_pre_hook(lambda module, args: (args[0] * 5,)))
CASES["a forward pre-hook with keywords"] = lambda: hooked(
    lambda m: m.register_forward_pre_hook(lambda module, args, kwargs: ((args[0] * 5,), kwargs), with_kwargs=True)
)


@case("a hook of the root")
def _() -> Steered:
    root, handles = Root(linear()), []
    return Steered(root, lambda: handles.append(root.register_forward_hook(lambda module, args, y: y * 5)), lambda: handles.pop().remove())


@case("a hook of all modules")
def _() -> Steered:
    handles: list[Any] = []
    hook = lambda module, args, y: y * 5 if type(module) is nn.Linear else None  # noqa: E731

    def change() -> None:
        if not all_modules._global_forward_hooks:
            handles.append(all_modules.register_module_forward_hook(hook))

    return Steered(Root(linear()), change, lambda: handles.pop().remove() if handles else None)


@case("a pre-hook of all modules")
def _() -> Steered:
    handles: list[Any] = []
    hook = lambda module, args: (args[0] * 5,) if type(module) is nn.Linear else None  # noqa: E731

    def change() -> None:
        if not all_modules._global_forward_pre_hooks:
            handles.append(all_modules.register_module_forward_pre_hook(hook))

    return Steered(Root(linear()), change, lambda: handles.pop().remove() if handles else None)


@case("a hook's number, of a hook that was there")
def _() -> Steered:
    module, box = linear(), [1.0]
    module.register_forward_hook(lambda m, args, y: y * box[0])
    return Steered(Root(module), lambda: box.__setitem__(0, 2.0), lambda: box.__setitem__(0, 1.0))


@case("a hook that was there goes")
def _() -> Steered:
    module = linear()
    handles = [module.register_forward_hook(lambda m, args, y: y * 2)]
    return Steered(Root(module), lambda: handles.pop().remove(), lambda: handles.append(module.register_forward_hook(lambda m, args, y: y * 2)))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = 2.0

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * self.factor


@case("a parametrization comes")
def _() -> Steered:
    module = linear()
    return Steered(
        Root(module),
        lambda: parametrize.register_parametrization(module, "weight", Twice().eval()),
        lambda: parametrize.remove_parametrizations(module, "weight", leave_parametrized=False),
    )


@case("a parametrization's number")
def _() -> Steered:
    module = linear()
    parametrize.register_parametrization(module, "weight", Twice())
    step = module.parametrizations.weight[0]
    return Steered(Root(module), lambda: setattr(step, "factor", 3.0), lambda: setattr(step, "factor", 2.0))


@case("spectral_norm comes")
def _() -> Steered:
    module = linear()
    return Steered(Root(module), lambda: parametrizations.spectral_norm(module).eval())


@case("weight_norm's magnitude")
def _() -> Steered:
    module = weight_norm(linear())
    return Steered(Root(module), lambda: module.weight_g.data.mul_(2), lambda: module.weight_g.data.div_(2))


# -- weights and buffers -------------------------------------------------------------------------------------------------------


def buffered(use: Callable[[Any, torch.Tensor], torch.Tensor], first: torch.Tensor | None, then: torch.Tensor | None) -> Steered:
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
CASES["a buffer's strides"] = lambda: buffered(lambda s, y: y * (1 if s.b.is_contiguous() else 2), torch.zeros(3, 3), torch.zeros(3, 6)[:, ::2])
CASES["a buffer's dtype"] = lambda: buffered(lambda s, y: y * (2 if s.b.dtype is torch.float64 else 1), torch.zeros(3), torch.zeros(3, dtype=torch.float64))
CASES["a buffer's device"] = lambda: buffered(lambda s, y: y * (2 if s.b.is_meta else 1), torch.zeros(3), torch.zeros(3, device="meta"))
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
CASES["a weight's .data is replaced"] = lambda: written("linear.weight", lambda t: setattr(t, "data", t.data * 4), lambda t: setattr(t, "data", t.data / 4))


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
    return Steered(Root(module), lambda: setattr(module[2], "weight", other), lambda: setattr(module[2], "weight", before))


@case("the first of two names of a weight is another")
def _() -> Steered:
    module = nn.Sequential(linear(), nn.ReLU(), linear())
    module[2].weight = module[0].weight
    other, before = nn.Parameter(torch.randn(8, 8), requires_grad=False), module[0].weight
    return Steered(Root(module), lambda: setattr(module[0], "weight", other), lambda: setattr(module[0], "weight", before))


@case("two weights are one now")
def _() -> Steered:
    module = nn.Sequential(linear(), nn.ReLU(), linear())
    before = module[2].weight
    return Steered(Root(module), lambda: setattr(module[2], "weight", module[0].weight), lambda: setattr(module[2], "weight", before))


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
    root = Root(own(lambda s, x: s.linear(x.to(s.linear.weight.dtype)).float() * (2 if s.linear.weight.dtype is torch.float64 else 1)))
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
    return Steered(Root(module), lambda: module.linear.requires_grad_(True), lambda: module.linear.requires_grad_(False))


@case("the grad mode steers")
def _() -> Steered:
    return Steered(
        Root(own(lambda s, x: s.linear(x) * (2 if torch.is_grad_enabled() else 1))), lambda: torch.set_grad_enabled(True), lambda: torch.set_grad_enabled(False)
    )


@case("the default dtype steers")
def _() -> Steered:
    return Steered(
        Root(own(lambda s, x: s.linear(x) + torch.full((8,), 1.0 / 3).double())), lambda: torch.set_default_dtype(torch.float64), lambda: torch.set_default_dtype(torch.float32)
    )


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_noticed(name: str) -> None:
    steered = []
    for _ in range(2):
        torch.manual_seed(0)
        steered.append(CASES[name]())
        steered[-1].module.eval().requires_grad_(False)
    ours, twin = steered
    with torch.no_grad():
        handle = compile(ours.module, CompileConfig(allow_cpu=True))
        first = twin.module(X)
        for _ in range(3):
            torch.testing.assert_close(handle(X), first)
        try:
            for one in steered:
                torch.manual_seed(1)
                one.change()
            for _ in range(2):
                torch.testing.assert_close(handle(X), twin.module(X))
        finally:
            for one in (twin, ours):
                if one.back is not None:
                    one.back()
        for _ in range(2):
            torch.testing.assert_close(handle(X), twin.module(X))
