"""Random modules: whatever their source says, the compiled one computes what an uncompiled copy does.

``--fuzz-models`` says how many (300), ``--fuzz-seed`` runs one alone and prints its source.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree

from sfast_core import CompileConfig, compile
from tests.fuzz.generate import source

_AT_ONCE = 50  #: so many make one test
_FUSED = 0.95  #: so many of them have to be fused: a fuzzer of forwards that run as they were proves nothing
SHAPES = ((2, 4, 8), (1, 8, 4))  #: batch, height, width


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seeds" in metafunc.fixturenames:
        one, count = metafunc.config.getoption("--fuzz-seed"), metafunc.config.getoption("--fuzz-models")
        seeds = [range(one, one + 1)] if one is not None else [range(start, min(start + _AT_ONCE, count)) for start in range(0, count, _AT_ONCE)]
        metafunc.parametrize("seeds", seeds, ids=lambda some: f"{some.start}-{some.stop - 1}")


def built(text: str, seed: int) -> tuple[nn.Module, Callable[..., list[torch.Tensor]]]:
    """The module of a source, and what makes its inputs."""
    names: dict[str, Any] = {"__name__": f"fuzz_{seed}"}
    exec(compile_source(text, seed), names)
    torch.manual_seed(seed)
    module = names["Model"]().eval().requires_grad_(False)
    return (module.double() if seed % 4 == 3 else module), names["inputs"]


def compile_source(text: str, seed: int) -> Any:
    import builtins

    return builtins.compile(text, f"<fuzz {seed}>", "exec")


def distance(mine: Any, theirs: Any, strides: bool) -> float:
    """The largest relative distance of a tensor of the one to its like in the other. Raises where they are built otherwise.

    ``strides``: whether those of tensors without gaps have to be the same too.
    """
    (mine, tree), (theirs, other) = _pytree.tree_flatten(mine), _pytree.tree_flatten(theirs)
    assert tree == other, f"{tree} in the place of {other}"
    worst = 0.0
    for a, b in zip(mine, theirs, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), f"{a.shape} {a.dtype} in the place of {b.shape} {b.dtype}"
        if strides and torch.empty_like(b).stride() == b.stride():
            assert a.stride() == b.stride(), f"strides {a.stride()} in the place of {b.stride()}"
        a, b = a.double(), b.double()
        worst = max(worst, ((a - b).norm() / b.norm().clamp(min=1e-3)).item())
    return worst


def change_weights(module: nn.Module, replace: bool) -> None:
    """Write to each parameter, or put another one in its place."""
    torch.manual_seed(17)
    for owner in module.modules():
        for name, parameter in list(owner._parameters.items()):
            if parameter is None:
                continue
            value = parameter + 0.1 * torch.randn(parameter.shape, dtype=parameter.dtype)
            if replace:
                owner._parameters[name] = nn.Parameter(value, requires_grad=False)
            else:
                parameter.copy_(value)


def check(text: str, seed: int) -> dict[str, int]:
    """Compare on three inputs of two shapes each, and behind changes of the weights. Returns how the calls ran."""
    module, inputs = built(text, seed)
    twin = copy.deepcopy(module)
    handle = compile(module, CompileConfig(allow_cpu=True))
    allowed = 1e-9 if seed % 4 == 3 else 2e-4

    def compare(what: str, shape: tuple[int, int, int], number: int) -> None:
        torch.manual_seed(1000 * seed + number)
        given = [argument.double() if seed % 4 == 3 else argument for argument in inputs(*shape)]
        for_twin = [argument.clone() for argument in given]
        expected, got = twin(*for_twin), handle(*given)
        far = distance(got, expected, strides=shape == SHAPES[0])
        assert far <= allowed, f"{what}, input {number} of {shape}: {far:.1e} from the uncompiled copy's"
        assert all(map(torch.equal, given, for_twin)), f"{what}: the inputs were changed"

    with torch.no_grad():
        for shape in SHAPES:
            for number in range(3):
                compare("at first", shape, number)
        for replace in (False, True):
            for one in (module, twin):
                change_weights(one, replace)
            for shape in SHAPES:
                compare("behind new parameters" if replace else "behind other weights", shape, 3)
    handle.uninstall()
    return {**handle.engine.report.calls, "reasons": dict(handle.engine.report.reasons)}


def shortest(seed: int) -> tuple[str, Exception]:
    """The source of the fewest steps of this seed that fails, and how."""
    for steps in range(1, 99):
        text = source(seed, steps)
        try:
            check(text, seed)
        except Exception as error:
            return text, error
    raise AssertionError(f"seed {seed} fails only sometimes")


def test_what_a_random_module_computes(seeds: range, request: pytest.FixtureRequest) -> None:
    eager = {}
    for seed in seeds:
        text = source(seed)
        if request.config.getoption("--fuzz-seed") is not None:
            print(text)
        try:
            calls = check(text, seed)
        except Exception:
            text, error = shortest(seed)
            pytest.fail(f"--fuzz-seed {seed}: {type(error).__name__}: {error}\n\n{text}", pytrace=False)
        if calls.get("eager") or not calls.get("fused"):
            eager[seed] = calls
    assert len(eager) <= (1 - _FUSED) * len(seeds) or len(seeds) == 1, f"too many run as they were: {eager}"
