"""What steers by a way of Python's own, or of torch's, that names nothing in the code: patterns, imports, operators,
how layers are called.
"""

from __future__ import annotations

import importlib
import operator
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from sfast_core.capture import Trace, Untraceable
from tests.models import Forward
from tests.tracing import guarded

X = torch.ones(2, 8)
Patch = pytest.MonkeyPatch


class Point:
    __match_args__ = ("k",)

    def __init__(self, k: float, n: float = 0.0) -> None:
        self.k, self.n = k, n


def by_place(net: Any, x: torch.Tensor) -> torch.Tensor:
    match net.value:
        case Point(1.0):
            return x * 2
    return x


def by_keyword(net: Any, x: torch.Tensor) -> torch.Tensor:
    match net.value:
        case Point(k=1.0):
            return x * 2
    return x


def captured(net: Any, x: torch.Tensor) -> torch.Tensor:
    match net.value:
        case Point(k=found):
            return x * found
    return x


def of_a_mapping(net: Any, x: torch.Tensor) -> torch.Tensor:
    match {"in": net.value}:
        case {"in": Point(k=found)}:
            return x * found
    return x


def imported(net: Any, x: torch.Tensor) -> torch.Tensor:
    import steering_file

    return x * steering_file.k


def imported_from(net: Any, x: torch.Tensor) -> torch.Tensor:
    from steering_file import k

    return x * k


def a_file(k: float) -> ModuleType:
    file = ModuleType("steering_file")
    file.k = k  # type: ignore[attr-defined]
    return file


def there(patch: Patch) -> None:
    patch.setitem(sys.modules, "steering_file", a_file(1.0))


def on_a_disk(patch: Patch, folder: Path) -> None:
    (folder / "steering_file.py").write_text("k = 1.0\n")
    patch.syspath_prepend(str(folder))
    patch.delitem(sys.modules, "steering_file", raising=False)
    importlib.invalidate_caches()


def another_k(net: Any, patch: Patch) -> None:
    net.value.k = 3.0


def another_file(net: Any, patch: Patch) -> None:
    patch.setitem(sys.modules, "steering_file", a_file(3.0))


def another_in_the_file(net: Any, patch: Patch) -> None:
    patch.setattr(sys.modules["steering_file"], "k", 3.0)


def layer(net: Any, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = net.lin(x)
    return result


def patched(owner: Any, name: str, function: Callable[..., Any]) -> Callable[[Any, Patch], None]:
    return lambda net, patch: patch.setattr(owner, name, function, raising=False)


def _twice(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = module.forward(x) * 2
    return result


#: The forward, and what changes.
CASES: dict[str, tuple[Callable[[Any, torch.Tensor], torch.Tensor], Callable[[Any, Patch], None]]] = {
    "an attribute by its place in a pattern": (by_place, another_k),
    "an attribute in a pattern": (by_keyword, another_k),
    "an attribute that a pattern gives": (captured, another_k),
    "an attribute in a pattern of what isn't known": (of_a_mapping, another_k),
    "a getter with dots": (lambda net, x: x * operator.attrgetter("value.k")(net), another_k),
    "a file in the place of an imported one": (imported, another_file),
    "a file in the place of one that is imported from": (imported_from, another_file),
    "an operator of all tensors": (
        lambda net, x: x * 3,
        patched(torch.Tensor, "__mul__", lambda x, k: torch.add(x, k)),
    ),
    "an operator with a tensor on its right": (
        lambda net, x: 3 - x,
        patched(torch.Tensor, "__rsub__", lambda x, k: torch.add(x, k)),
    ),
    "an operator in place": (
        lambda net, x: operator.iadd(x.clone(), 3),
        patched(torch.Tensor, "__iadd__", lambda x, k: x.sub_(k)),
    ),
    "a tensor's items": (lambda net, x: x[:1], patched(torch.Tensor, "__getitem__", lambda x, k: torch.neg(x))),
    "how a class of layers is called": (layer, patched(nn.Linear, "__call__", _twice)),
    "how all modules are called": (layer, lambda net, patch: patch.setattr(nn.Module, "__call__", _twice)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forward, change = CASES[name]
    there(monkeypatch)
    net: Any = Forward(forward, lin=nn.Linear(8, 8)).requires_grad_(False)
    net.value = Point(1.0)
    before, found, guard = guarded(net, X)
    assert isinstance(found, Trace) and guard.changed(net) is None
    change(net, monkeypatch)
    with torch.no_grad():
        assert not torch.equal(before, net.forward(X)), "it steers"
    assert guard.changed(net)


@pytest.mark.parametrize("forward", [imported, imported_from])
@pytest.mark.parametrize("change", [another_file, another_in_the_file])
def test_what_is_imported_in_the_recorded_call(
    forward: Any, change: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    on_a_disk(monkeypatch, tmp_path)
    net = Forward(forward)
    before, found, guard = guarded(net, X)
    assert isinstance(found, Trace) and guard.changed(net) is None
    change(net, monkeypatch)
    assert not torch.equal(before, net(X)) and guard.changed(net)
    monkeypatch.delitem(sys.modules, "steering_file")


def _forked(net: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return x + torch.randn(8)


@pytest.mark.parametrize(
    "forward",
    [
        lambda net, x: x * (1 + torch.initial_seed() % 7),
        lambda net, x: x * torch.random.get_rng_state().float().sum(),
        lambda net, x: x * len(torch.cuda.get_rng_state_all()),
        _forked,
    ],
    ids=["initial_seed", "get_rng_state", "get_rng_state_all", "fork_rng"],
)
def test_who_asks_for_the_state_of_random_numbers_leaves_no_trace(forward: Any) -> None:
    """It is compared with nothing; and one that is put back afterwards looks as if no number had been drawn."""
    state = torch.get_rng_state()
    _, found, _ = guarded(Forward(forward), X)
    assert isinstance(found, Untraceable) and "the state of random numbers" in found.reason
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_keeps_it_for_a_gradient_that_nobody_wants(reentrant: bool) -> None:
    net = Forward(lambda net, x: checkpoint(net.lin, x, use_reentrant=reentrant), lin=nn.Linear(8, 8)).requires_grad_(
        False
    )
    with torch.no_grad():
        net(X)  # the first one of a process imports what marks it
        _, found, _ = guarded(net, X)
    assert isinstance(found, Trace), found.reason


def gone_through(net: Any, x: torch.Tensor) -> torch.Tensor:
    for layer in net.layers:
        x = layer(x)
    for layer in net.named.values():
        x = layer(x)
    if "shift" in net.named:
        x = x + 1.0
    for weight in net.weights:
        x = x * weight
    for child in net.children():
        x = x + len(child)
    return x * len(net.layers) + net.layers[0](x)


_get = nn.Module.__getattr__
REPLACED: dict[str, tuple[type, str, Any]] = {
    "a list is gone through": (nn.ModuleList, "__iter__", lambda self: iter(())),
    "a list's item": (nn.ModuleList, "__getitem__", lambda self, index: torch.sin),
    "a list's length": (nn.ModuleList, "__len__", lambda self: 7),
    "a dict's values": (nn.ModuleDict, "values", lambda self: ()),
    "what is in a dict": (nn.ModuleDict, "__contains__", lambda self, name: True),
    "a list of weights is gone through": (nn.ParameterList, "__iter__", lambda self: iter(())),
    "children are gone through": (nn.Module, "children", lambda self: iter(())),
    "and so by another name": (nn.Module, "named_children", lambda self: iter(())),
    "how a layer is looked up": (nn.Module, "__getattr__", lambda self, name: _get(self, name)),
    "how anything of a layer is": (
        nn.Module,
        "__getattribute__",
        lambda self, name: () if name == "layers" else object.__getattribute__(self, name),
    ),
}


@pytest.mark.parametrize("what", REPLACED)
def test_what_python_looks_up_in_torchs_own_classes_of_layers(what: str, monkeypatch: Patch) -> None:
    net: Any = Forward(
        gone_through,
        layers=nn.ModuleList([nn.Linear(8, 8), nn.Tanh()]),
        named=nn.ModuleDict({"scale": nn.Tanh()}),
        weights=nn.ParameterList([torch.full((8,), 2.0)]),
    ).requires_grad_(False)
    _, found, guard = guarded(net, X)
    assert isinstance(found, Trace) and guard.changed(net) is None
    cls, name, replaced = REPLACED[what]
    monkeypatch.setattr(cls, name, replaced, raising=False)
    assert guard.changed(net)
    monkeypatch.undo()
    assert guard.changed(net) is None
