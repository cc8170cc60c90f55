"""What a guard keeps: of a model what was read besides tensors, of the call nothing."""

from __future__ import annotations

import builtins
import collections
import dataclasses
import functools
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import sfast_core
from sfast_core import CompileConfig, compile
from sfast_core.capture import Trace
from tests.models import Forward, UNet
from tests.quantised import Params, Quantised
from tests.tracing import guarded

X = torch.ones(2, 8)
MADE: list[weakref.ref[torch.Tensor]] = []
LIVE: list[int] = []  #: how many of these there were each time

#: Remembers what the call makes. Code of this package's is not read, so this steers nothing.
_QUIET: dict[str, Any] = {"made": MADE, "live": LIVE, "ref": weakref.ref, "__name__": "quiet"}
_NOTE = (
    "def note(x):\n    made.append(ref(x))\n    live.append(sum(each() is not None for each in made))\n    return x\n"
)
exec(builtins.compile(_NOTE, sfast_core.__file__, "exec"), _QUIET)
note = _QUIET["note"]


@pytest.fixture(autouse=True)
def _without_the_collector() -> Iterator[None]:
    MADE.clear(), LIVE.clear()
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Reads(nn.Module):
    """Asks tensors of its own what they are, in each place where it may keep one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8), requires_grad=False)
        self.register_buffer("table", torch.ones(8))
        self.plain, self.listed, self.named = torch.ones(8), [torch.ones(8)], {"a": torch.ones(8)}
        self.linear = nn.Linear(8, 8).requires_grad_(False)
        self.box = Box(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x) * self.weight.shape[0] * self.table.shape[0] * self.plain.shape[0] * self.box.t.shape[0]
        return x * self.listed[0].shape[0] * self.named["a"].shape[0]


class Box:
    def __init__(self, t: Any) -> None:
        self.t = t


def parameter() -> nn.Parameter:
    return nn.Parameter(torch.zeros(8), requires_grad=False)


#: name: the tensor, and what takes it away from the model
GONE: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "a parameter": (lambda net: net.weight, lambda net: setattr(net, "weight", parameter())),
    "a buffer": (lambda net: net.table, lambda net: setattr(net, "table", torch.zeros(8))),
    "a plain attribute": (lambda net: net.plain, lambda net: setattr(net, "plain", torch.zeros(8))),
    "a list's item": (lambda net: net.listed[0], lambda net: net.listed.__setitem__(0, torch.zeros(8))),
    "a dict's item": (lambda net: net.named["a"], lambda net: net.named.update(a=torch.zeros(8))),
    "an object's attribute": (lambda net: net.box.t, lambda net: setattr(net.box, "t", torch.zeros(8))),
    "a layer's weight": (
        lambda net: net.linear.weight,
        lambda net: setattr(net.linear, "weight", nn.Parameter(torch.zeros(8, 8), requires_grad=False)),
    ),
    "a layer's bias": (lambda net: net.linear.bias, lambda net: setattr(net.linear, "bias", parameter())),
}


@pytest.mark.parametrize("name", GONE)
def test_a_tensor_that_the_model_lets_go_is_gone(name: str) -> None:
    tensor, let_go = GONE[name]
    net = Reads()
    ref = weakref.ref(tensor(net))
    _, found, guard = guarded(net, X)
    assert isinstance(found, Trace), found.reason
    let_go(net)
    assert ref() is None
    assert guard.changed(net) is None, "one that is as good is there"


def test_all_weights_of_a_model_are_gone_once_others_are_in_their_place() -> None:
    """As a host does that moves a model off the GPU."""
    net = UNet().requires_grad_(False)
    refs = [weakref.ref(weight) for weight in net.parameters()]
    _, found, guard = guarded(net, *UNet.inputs())
    assert isinstance(found, Trace)
    for module in net.modules():
        for name, weight in list(module._parameters.items()):
            if weight is not None:
                module._parameters[name] = nn.Parameter(weight.detach().clone(), requires_grad=False)
    del weight, module
    assert not any(ref() is not None for ref in refs) and guard.changed(net) is None


class Context:
    """Made in a call, and read there in many ways."""

    def __init__(self, t: torch.Tensor) -> None:
        self.t, self.listed, self.named, self.deep = t, [t], {"t": t}, {"a": [t]}

    def attribute(self) -> torch.Tensor:
        return self.t * 1

    def item(self) -> torch.Tensor:
        return self.listed[0] * 1

    def key(self) -> torch.Tensor:
        return self.named["t"] * 1

    def got(self) -> torch.Tensor:
        return self.named.get("t") * 1

    def deeper(self) -> torch.Tensor:
        return self.deep["a"][0] * 1

    def looped(self) -> torch.Tensor:
        for t in self.listed:
            t = t * 1
        return t


class Calls:
    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x) * 1


class Slots:
    __slots__ = ("t",)

    def __init__(self, t: torch.Tensor) -> None:
        self.t = t

    def read(self) -> torch.Tensor:
        return self.t * 1


class Names(dict):  # type: ignore[type-arg]
    def read(self) -> torch.Tensor:
        return self["t"] * 1


Pair = collections.namedtuple("Pair", "a b")  # noqa: PYI024


def closing(x: torch.Tensor) -> torch.Tensor:
    t = note(x * 2)
    return Calls(lambda y: y + t)(x)


def nested(x: torch.Tensor) -> torch.Tensor:
    t = note(x * 2)

    def inner(y: torch.Tensor) -> torch.Tensor:
        return y + t

    def outer(y: torch.Tensor) -> torch.Tensor:
        return inner(y)

    return outer(x) * 1


def generated(x: torch.Tensor) -> torch.Tensor:
    t = note(x * 2)
    return sum(t + k for k in range(2)) * 1


TEMPORARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{
        f"an object's {name}": (lambda x, name=name: getattr(Context(note(x * 2)), name)())
        for name in ("attribute", "item", "key", "got", "deeper", "looped")
    },
    "a function that closes over it": closing,
    "functions in functions": nested,
    "a generator": generated,
    "a partial": lambda x: Calls(functools.partial(torch.add, note(x * 2)))(x),
    "slots": lambda x: Slots(note(x * 2)).read(),
    "a dict of a class": lambda x: Names(t=note(x * 2)).read(),
    "a tuple": lambda x: Calls(lambda y: y[0] + y[1])(Pair(note(x * 2), note(x * 3))),
    "an argument": lambda x: Calls(torch.neg)(note(x * 2)),
}


@pytest.mark.parametrize("name", TEMPORARY)
def test_what_was_made_in_the_call_is_gone(name: str) -> None:
    net = Forward(lambda net, x: TEMPORARY[name](x))
    result, found, guard = guarded(net, X)
    assert isinstance(found, Trace), found.reason
    del result
    assert MADE and [ref() for ref in MADE] == [None] * len(MADE)
    assert guard.changed(net) is None


class Wrapped(torch.Tensor):
    """As a quantised layer's input: what it holds is an attribute of its own."""

    held: torch.Tensor

    @staticmethod
    def of(held: torch.Tensor) -> Wrapped:
        whole = torch.empty(0).as_subclass(Wrapped)
        whole.held = held
        return whole


def _held(whole: Wrapped) -> torch.Tensor:
    return whole.held


def _told(whole: Quantised) -> torch.Tensor:
    return torch.mm(whole, torch.eye(8, dtype=whole.dtype))


#: What each layer makes, reads and lets go.
IN_EACH_LAYER: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "an object's attribute": lambda x: Context(x).attribute(),
    "a tensor's": lambda x: _held(Wrapped.of(x)) * 1,
    "what a tensor tells": lambda x: _told(Quantised(x, Params(x.amax() * 2, torch.float32))),
}


@pytest.mark.parametrize("name", IN_EACH_LAYER)
def test_what_a_layer_made_is_gone_when_the_next_one_is_called(name: str) -> None:
    """Of a model with 8 bits each layer's quantised input stayed until the call was over: half a GiB and more."""

    def forward(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = IN_EACH_LAYER[name](note(x * 2))
        return x

    _, found, _ = guarded(Forward(forward), X)
    assert isinstance(found, Trace), found.reason
    assert len(MADE) == 6 and max(LIVE) <= 2, LIVE


class Short:
    """Like a context manager that lets go of its module while it is entered."""

    def __init__(self, of: Any) -> None:
        self.of = of
        self.state = None if self.of is None else "held"

    def enter(self) -> Any:
        kept = self.of
        self.state = self.of = None
        return kept


def shortly(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    for _ in range(4):  # some lie where those before them were
        made = [Short(net) for _ in range(200)]
        x = x + sum(len(list(short.enter().children())) for short in made)
        del made
    return x


def test_what_was_made_in_the_memory_of_what_is_gone_is_gone_too() -> None:
    net = Forward(shortly)
    _, found, guard = guarded(net, X)
    assert isinstance(found, Trace), found.reason
    assert guard.changed(net) is None


def test_a_result_that_the_caller_lets_go_is_gone() -> None:
    result, found, guard = guarded(Reads(), X)
    ref = weakref.ref(result)
    del result
    assert ref() is None and isinstance(found, Trace) and guard


def test_a_guard_below_a_module_keeps_no_module_alive() -> None:
    """A deleted model is freed at once, though what is compiled of it lies in it."""
    net = UNet().requires_grad_(False)
    net.__dict__["_compiled_state"] = guarded(net, *UNet.inputs())[1:]
    alive = [weakref.ref(net), weakref.ref(net.blocks[0]), weakref.ref(net.conv_in.weight)]
    del net
    assert [ref() for ref in alive] == [None, None, None]


@pytest.mark.parametrize("calls", [1, 3])
def test_a_compiled_model_is_freed_at_once(calls: int) -> None:
    net = Reads()
    handle = compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for _ in range(calls):
            handle(X)
    alive = [weakref.ref(net), weakref.ref(net.linear), weakref.ref(net.linear.weight)]
    del net, handle
    assert [ref() for ref in alive] == [None, None, None]


def test_what_a_call_leaves_behind_is_the_models_to_let_go() -> None:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        y = net.linear(x)
        net.last = y
        net.maps.append(y * 2)
        return torch.tanh(y)

    net = Forward(forward, linear=nn.Linear(8, 8)).requires_grad_(False)
    net.last, net.maps = None, []
    handle = compile(net, CompileConfig(allow_cpu=True))
    refs: list[Any] = []
    with torch.no_grad():
        for _ in range(4):
            handle(X)
            refs += [weakref.ref(net.last), *map(weakref.ref, net.maps)]
            net.last = None
            net.maps.clear()
    assert handle.engine.report.calls["fused"] >= 2
    assert [ref() for ref in refs] == [None] * len(refs)


@dataclasses.dataclass
class Settings:
    """As transformers' configs are."""

    scale: float = 2.0
    shift: float = 1.0
    words: str = "none"


class Described(nn.Module):
    """Reads its settings by the names that their fields have, and what one field is described by."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = Settings()
        self.field = dataclasses.field(default=3.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        numbers = [getattr(self.settings, field.name) for field in dataclasses.fields(self.settings)]
        return x * numbers[0] + numbers[1] * self.field.default


def test_of_what_describes_a_dataclass_only_what_is_named_is_kept() -> None:
    """Each slot of each field was: CLIP's call asked 3,700 of them, and took five times as long."""
    net = Described()
    _, _, guard = guarded(net, X)
    of_fields = [str(asked.origin) for _, asked in guard._asked if str(asked.origin) != "what all tensors have"]
    assert {origin.rpartition(".")[2] for origin in of_fields} == {"default", "name"}
    assert guard.changed(net) is None
    net.field.default = 4.0
    assert guard.changed(net) is not None
    net.field.default = 3.0
    net.settings.shift = 5.0
    assert guard.changed(net) is not None
