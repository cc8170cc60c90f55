"""A generated module, compiled, beside an uncompiled copy."""

from __future__ import annotations

import builtins
import copy
import linecache
import types
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils import _pytree

from sfast_core import CompileConfig, compile

SHAPES = ((2, 4, 8), (1, 8, 4))  #: batch, height, width
_ALLOWED = {torch.float32: 1e-4, torch.float64: 1e-6}  #: relative L2 distances; some forwards compute parts in float32
_MAY_BE_ROUNDING = 1e-2
T = TypeVar("T")
Inputs = Callable[[int, int, int], list[torch.Tensor]]


class OnlyRounding(Exception):
    """It is further away than results mostly are, but not so far that another order of operations couldn't explain
    it.
    """


def built(text: str, seed: int, dtype: torch.dtype) -> tuple[nn.Module, Inputs]:
    """The module of a source, and what makes its inputs."""
    name = f"fuzz_{seed}"
    file = types.ModuleType(name)
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)  # for tracebacks
    exec(builtins.compile(text, name, "exec"), file.__dict__)
    seed_all(seed)
    return file.Model().eval().requires_grad_(False).to(dtype), lambda *shape: [
        argument.to(dtype) for argument in file.inputs(*shape)
    ]


def seed_all(number: int) -> None:
    """As ``torch.manual_seed`` on the CPU alone: that one writes down the stack for a GPU that may come, which takes 5
    ms.
    """
    torch.default_generator.manual_seed(number)


def is_tied(module: nn.Module) -> bool:
    """Whether a parameter is at two places."""
    return len(list(module.parameters())) < len(list(module.named_parameters(remove_duplicate=False)))


def rounding_aside(run: Callable[[str, int, torch.dtype], T], text: str, seed: int) -> T:
    """``run(text, seed, dtype)`` in float32, or for every fourth seed in float64.

    Some forwards magnify rounding (a norm of what is nearly constant): where a difference in float32 may be that, it
    has to vanish in float64.
    """
    try:
        return run(text, seed, torch.float64 if seed % 4 == 3 else torch.float32)
    except OnlyRounding:
        return run(text, seed, torch.float64)


def compare_results(mine: Any, theirs: Any, dtype: torch.dtype, where: str, strides: bool = False) -> None:
    """Both are built alike, of tensors that are alike.

    ``strides``: those of tensors without gaps have to be the same too.

    Raises:
        AssertionError: they aren't.
        OnlyRounding: it may be rounding.
    """
    (mine, tree), (theirs, other) = _pytree.tree_flatten(mine), _pytree.tree_flatten(theirs)
    assert tree == other, f"{where}: {tree} in the place of {other}"
    for a, b in zip(mine, theirs, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), (
            f"{where}: {a.shape} {a.dtype} in the place of {b.shape} {b.dtype}"
        )
        if strides and torch.empty_like(b).stride() == b.stride():
            told = [
                (mine, theirs) for mine, theirs, size in zip(a.stride(), b.stride(), b.shape, strict=True) if size > 1
            ]
            assert all(mine == theirs for mine, theirs in told), (
                f"{where}: strides {a.stride()} in the place of {b.stride()}"
            )
        a, b = a.double(), b.double()
        assert torch.equal(a.isnan(), b.isnan()), f"{where}: not a number elsewhere"
        far = ((a - b).nan_to_num().norm() / b.nan_to_num().norm().clamp(min=1e-3)).item()
        if dtype is torch.float32 and _ALLOWED[dtype] < far < _MAY_BE_ROUNDING:
            raise OnlyRounding
        assert far <= _ALLOWED[dtype], f"{where}: {far:.1e} from the uncompiled copy's"


def write_weights(module: nn.Module) -> None:
    """Write to each parameter."""
    seed_all(17)
    for parameter in module.parameters():
        parameter.add_(0.1 * torch.randn(parameter.shape, dtype=parameter.dtype))


def replace_weights(module: nn.Module) -> None:
    """Put another parameter in each one's place: one that was at two places stays one."""
    seed_all(18)
    fresh: dict[int, nn.Parameter] = {}
    kept = list(module.parameters())  # so that ids stay theirs
    for owner in module.modules():
        for name, old in list(owner._parameters.items()):
            if old is not None:
                if id(old) not in fresh:
                    fresh[id(old)] = nn.Parameter(
                        old + 0.1 * torch.randn(old.shape, dtype=old.dtype), requires_grad=False
                    )
                owner._parameters[name] = fresh[id(old)]
    del kept


def part_weights(module: nn.Module) -> None:
    """Put another parameter in each one's place, and a different one at each of two places."""
    seed_all(19)
    for owner in module.modules():
        for name, old in list(owner._parameters.items()):
            if old is not None:
                owner._parameters[name] = nn.Parameter(
                    old + 0.1 * torch.randn(old.shape, dtype=old.dtype), requires_grad=False
                )


def check(
    text: str, seed: int, config: CompileConfig | None = None, shapes: Sequence[tuple[int, int, int]] = SHAPES
) -> Any:
    """Compare on three inputs of two shapes each, and behind changes of the weights. Returns the module's report."""
    return rounding_aside(partial(_check, config or CompileConfig(allow_cpu=True), shapes), text, seed)


def _check(
    config: CompileConfig, shapes: Sequence[tuple[int, int, int]], text: str, seed: int, dtype: torch.dtype
) -> Any:
    module, inputs = built(text, seed, dtype)
    twin = copy.deepcopy(module)
    handle = compile(module, config)

    def compare(what: str, shape: tuple[int, int, int], number: int) -> None:
        seed_all(1000 * seed + number)
        given = inputs(*shape)
        for_twin = [argument.clone() for argument in given]
        expected, got = twin(*for_twin), handle(*given)
        compare_results(got, expected, dtype, f"{what}, input {number} of {shape}", strides=True)
        assert all(map(torch.equal, given, for_twin)), f"{what}: the inputs were changed"

    with torch.no_grad():
        for shape in shapes:
            for number in range(3):
                compare("at first", shape, number)
        for change in (write_weights, replace_weights, *([part_weights] if is_tied(module) else [])):
            for one in (module, twin):
                change(one)
            for number, shape in enumerate(shapes):
                compare(f"behind {change.__name__}", shape, 3 + number)
    handle.uninstall()
    return handle.engine.report
