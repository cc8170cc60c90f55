"""Compiled modules beside other compilers and transforms of functions: the forward that was there runs, or a clear
error comes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from sfast_core import CompileConfig, CompiledModule, compile
from sfast_core.capture import what_watches

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
BACKEND = "eager"  # Dynamo's own part is what meets us


class Net(nn.Module):
    """Two layers, and what it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.relu(self.one(x))) + x


class Around(nn.Module):
    """A module with another inside."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner, self.last = inner, nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.inner(x)) * 2


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.manual_seed(0)
    if "torch._dynamo" in __import__("sys").modules:
        torch._dynamo.reset()
    with torch.no_grad():
        yield
    assert what_watches() is None


@pytest.fixture(params=[False, True], ids=["new", "used"])
def handle(request: pytest.FixtureRequest) -> CompiledModule:
    handle = compile(Net().requires_grad_(False), CompileConfig(allow_cpu=True))
    for _ in range(2 * request.param):
        handle(torch.randn(3, 4))
    return handle


def check(mine: Callable[..., Any], theirs: Callable[..., Any]) -> None:
    """They compute the same, and more than once."""
    for _ in range(2):
        x = torch.randn(3, 4)
        torch.testing.assert_close(mine(x), theirs(x), rtol=1e-4, atol=1e-5)


def fused(handle: CompiledModule) -> None:
    """It goes on as if nothing had been."""
    before = handle.engine.report.calls["fused"]
    for _ in range(2):
        check(handle, lambda x: type(handle.module).forward(handle.module, x))
    assert handle.engine.report.calls["fused"] >= before + 3


#: name: what another makes of a module or a function that runs it
OTHERS: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "torch.jit.trace": lambda net: torch.jit.trace(net, torch.randn(3, 4)),
    "torch.jit.trace of a function": lambda net: torch.jit.trace(lambda x: net(x), torch.randn(3, 4)),
    "torch.export": lambda net: torch.export.export(net, (torch.randn(3, 4),)).module(),
    "torch.export, strict": lambda net: torch.export.export(net, (torch.randn(3, 4),), strict=True).module(),
    "torch.compile": lambda net: torch.compile(net, backend=BACKEND),
    "torch.compile, whole": lambda net: torch.compile(net, backend=BACKEND, fullgraph=True),
    "torch.compile of a function": lambda net: torch.compile(lambda x: net(x), backend=BACKEND),
    "fx.symbolic_trace": lambda net: torch.fx.symbolic_trace(net),
    "make_fx": lambda net: torch.fx.experimental.proxy_tensor.make_fx(net)(torch.randn(3, 4)),
    "vmap": lambda net: torch.func.vmap(net),
    "jvp": lambda net: lambda x: torch.func.jvp(net, (x,), (torch.ones_like(x),))[0],
    "functional_call": lambda net: lambda x: torch.func.functional_call(net, dict(net.named_parameters()), (x,)),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("inside", [False, True], ids=["itself", "inside another"])
def test_others_make_of_it_what_they_make_of_the_module(handle: CompiledModule, name: str, inside: bool) -> None:
    import torch.fx.experimental.proxy_tensor

    around = Around(handle.module).requires_grad_(False)
    twin = copy.deepcopy(around)
    before = dict(handle.engine.report.calls)
    if name == "vmap":
        made = OTHERS[name](around if inside else handle.module)
        torch.testing.assert_close(
            made(torch.ones(5, 3, 4)), torch.func.vmap(twin if inside else twin.inner)(torch.ones(5, 3, 4))
        )
    else:
        check(OTHERS[name](around if inside else handle.module), twin if inside else twin.inner)
    if not name.startswith(("functional_call", "torch.jit")):  # jit.trace compares with the module itself
        assert {path: count for path, count in handle.engine.report.calls.items() if path != "eager"} == before
    fused(handle)


def test_values_of_other_transforms(handle: CompiledModule) -> None:
    x = torch.randn(3, 4)
    twin = copy.deepcopy(handle.module)
    for transform in (
        lambda net: torch.func.grad(lambda y: net(y).sum())(x),
        lambda net: torch.func.jvp(net, (x,), (torch.ones_like(x),))[1],
        lambda net: torch.func.functional_call(net, {name: value * 2 for name, value in net.named_parameters()}, (x,)),
    ):
        torch.testing.assert_close(transform(handle.module), transform(twin))
    with torch.autograd.forward_ad.dual_level():
        out = handle(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)))
        assert torch.equal(out, twin(x))
    fused(handle)


def test_a_gradient_with_respect_to_weights_that_lie_otherwise_for_us() -> None:
    net = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.SiLU()).requires_grad_(False)
    twin, handle, x = copy.deepcopy(net), compile(net, CompileConfig(allow_cpu=True)), torch.randn(1, 4, 6, 6)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(handle(x), twin(x))

    def gradient(of: nn.Module) -> dict[str, torch.Tensor]:
        return torch.func.grad(lambda weights: torch.func.functional_call(of, weights, (x,)).sum())(
            dict(of.named_parameters())
        )

    torch.testing.assert_close(gradient(net), gradient(twin))
    with torch.no_grad():
        torch.testing.assert_close(handle(x), twin(x))


def test_modes_that_watch_see_every_operator(handle: CompiledModule) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    class Watching(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    seen: list[Any] = []
    with Watching():
        handle(torch.ones(3, 4))
    assert torch.nn.functional.linear in seen or torch._C._nn.linear in seen
    with FlopCounterMode(display=False) as counter:
        handle(torch.ones(3, 4))
    assert counter.get_total_flops() == 2 * 2 * 3 * 4 * 8
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert type(handle(mode.from_tensor(torch.ones(3, 4)))).__name__ == "FakeTensor"
    assert sum("watches each of torch's functions" in reason for reason in handle.engine.report.reasons) == 3
    with torch.device("cpu"):  # is a mode too, and watches nothing
        fused(handle)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(handle: CompiledModule, reentrant: bool) -> None:
    with torch.enable_grad():
        handle.module.requires_grad_(True)
        twin, x = copy.deepcopy(handle.module), torch.randn(3, 4)
        found = []
        for net in (handle.module, twin):
            mine = x.clone().requires_grad_()
            checkpoint(net, mine, use_reentrant=reentrant).sum().backward()
            found.append([mine.grad, *(parameter.grad for parameter in net.parameters())])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("how", ["module.compile()", "torch.compile", "of its forward"])
def test_what_torch_compile_has_compiled_inside_is_traced_as_it_was_written(how: str) -> None:
    net = Net().requires_grad_(False)
    around = Around(net).requires_grad_(False)
    twin = copy.deepcopy(around)
    if how == "module.compile()":
        net.compile(backend=BACKEND)
    elif how == "torch.compile":
        around.inner = torch.compile(net, backend=BACKEND)
    else:
        net.forward = torch.compile(net.forward, backend=BACKEND)  # type: ignore[method-assign]
    around(torch.randn(3, 4))
    handle = compile(around, CompileConfig(allow_cpu=True))
    for _ in range(2):
        check(handle, twin)
    assert handle.engine.report.calls == {"traced": 1, "fused": 3}
    assert torch._dynamo.eval_frame._stance.stance == "default"
    handle.uninstall()
    check(around, twin)


@pytest.mark.parametrize("order", ["before", "after"])
def test_a_module_that_compiles_itself(order: str) -> None:
    """As ``pipe.unet.compile()``: then it is torch.compile that runs it."""
    net = Net().requires_grad_(False)
    twin = copy.deepcopy(net)
    if order == "before":
        net.compile(backend=BACKEND)
    handle = compile(net, CompileConfig(allow_cpu=True))
    if order == "after":
        net.compile(backend=BACKEND)
    check(handle, twin)
    check(net, twin)
    check(handle.uninstall(), twin)


def test_a_module_that_torch_compile_has_wrapped() -> None:
    net = Net().requires_grad_(False)
    twin, wrapped = copy.deepcopy(net), torch.compile(net, backend=BACKEND)
    handle = compile(wrapped, CompileConfig(allow_cpu=True))
    check(handle, twin)
    assert handle.engine.report.calls == {"traced": 1, "fused": 1}
    check(handle.uninstall(), twin)
    check(net, twin)


@pytest.mark.parametrize(
    "make", [torch.jit.script, lambda net: torch.jit.trace(net, torch.randn(3, 4))], ids=["script", "trace"]
)
def test_a_module_of_torchscript_inside_runs_as_it_was(make: Any) -> None:
    around = Around(make(Net().requires_grad_(False))).requires_grad_(False)
    handle = compile(around, CompileConfig(allow_cpu=True))
    check(handle, lambda x: Around.forward(around, x))
    assert handle.engine.report.calls["eager"] and handle.engine.report.reasons


def test_torchscript_says_what_to_do(handle: CompiledModule) -> None:
    with pytest.raises(
        AttributeError,
        match=r"torch.jit.script can't read the forward of a compiled Net: call uninstall\(\) on it first",
    ):
        torch.jit.script(handle.module)
    check(torch.jit.script(handle.uninstall()), handle.module)
