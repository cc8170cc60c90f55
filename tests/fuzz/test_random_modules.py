"""Random modules: whatever their source says, the compiled one computes what an uncompiled copy does; and so does the
graph where every op has a kernel.

``--fuzz-models`` says how many (300), ``--fuzz-seed`` runs one alone and prints its source.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from sfast_core import CompileConfig
from sfast_core.capture import Untraceable
from sfast_core.rewrite import rewrite
from sfast_core.runtime.store import WeightStore
from sfast_core.sharding import cut, cut_in_stripes, prepared
from tests.fuzz.compared import SHAPES, built, check, compare_results, rounding_aside, seed_all
from tests.fuzz.generate import source
from tests.sharding.devices import run
from tests.tracing import evaluate, try_record

_AT_ONCE = 50  #: so many make one test
_FUSED = 0.95  #: so many of them have to be fused: a fuzzer of forwards that run as they were proves nothing


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    one, count = metafunc.config.getoption("--fuzz-seed"), metafunc.config.getoption("--fuzz-models")
    if metafunc.function is test_what_a_graph_of_kernels_computes:  # the same seeds would be the same modules
        count //= 3
    if metafunc.function is test_what_devices_compute_in_rows:
        count //= 3
    if metafunc.function is test_what_several_devices_compute:
        count = max(1, count // 100)
    seeds = (
        [range(one, one + 1)]
        if one is not None
        else [range(start, min(start + _AT_ONCE, count)) for start in range(0, count, _AT_ONCE)]
    )
    metafunc.parametrize("seeds", seeds, ids=lambda some: f"{some.start}-{some.stop - 1}")


def each(seeds: range, request: pytest.FixtureRequest, run: Callable[[str, int], Any]) -> dict[int, Any]:
    """What ``run(source, seed)`` returns for each seed.

    The first that raises fails the test, by the source of the fewest steps that raises.
    """
    found = {}
    for seed in seeds:
        text = source(seed)
        if request.config.getoption("--fuzz-seed") is not None:
            print(text)
        try:
            found[seed] = run(text, seed)
        except Exception:
            text, error = shortest(seed, run)
            pytest.fail(f"--fuzz-seed {seed}: {type(error).__name__}: {error}\n\n{text}", pytrace=False)
    return found


def shortest(seed: int, run: Callable[[str, int], Any]) -> tuple[str, Exception]:
    """The source of the fewest steps of this seed that fails, and how."""
    for steps in range(1, 99):
        text = source(seed, steps)
        try:
            run(text, seed)
        except Exception as error:
            return text, error
    raise AssertionError(f"seed {seed} fails only sometimes")


def test_what_a_random_module_computes(seeds: range, request: pytest.FixtureRequest) -> None:
    reports = each(seeds, request, check)
    eager = {
        seed: dict(report.reasons)
        for seed, report in reports.items()
        if report.calls["eager"] or not report.calls["fused"]
    }
    assert len(eager) <= max(1, (1 - _FUSED) * len(seeds)), f"too many run as they were: {eager}"


def test_what_several_devices_compute(seeds: range, request: pytest.FixtureRequest) -> None:
    """Of batches in parts, by copies of the weights; some of the modules mix what is in a batch."""
    config = CompileConfig(allow_cpu=True, devices=("cpu", "cpu"))
    each(seeds, request, lambda text, seed: check(text, seed, config, ((2, 4, 8), (3, 8, 4))))


def test_what_devices_compute_in_rows(seeds: range, request: pytest.FixtureRequest) -> None:
    """Of one graph cut along its rows, or into stripes, on two devices or three, each of which has the whole result."""
    rows = each(seeds, request, in_rows)
    assert sum(map(bool, rows.values())) >= len(seeds) // 3, "a fuzzer of graphs that aren't cut proves nothing"


def in_rows(text: str, seed: int) -> int:
    """Compare what a graph's devices compute. Returns how many rows were cut."""
    return rounding_aside(_in_rows, text, seed)


def _in_rows(text: str, seed: int, dtype: torch.dtype) -> int:
    module, inputs = built(text, seed, dtype)
    seed_all(seed)
    shape = SHAPES[seed % 2]
    _, trace = try_record(module, *inputs(*shape))
    if isinstance(trace, Untraceable):
        return 0
    lie = [node.meta["val"] for node in trace.graph.output_node().args[0]]  # views of them are made by that
    prepared(trace.graph)
    devices, fresh = 2 + seed % 2, inputs(*shape)
    with torch.no_grad():
        expected = module(*fresh)
    rows = 0
    for made in (cut(trace.graph, devices, 2), cut_in_stripes(trace.graph, devices)):
        rows += made.rows
        for results in run(made, fresh):
            results = [
                torch.empty_strided(val.shape, val.stride(), dtype=val.dtype).copy_(result)
                for val, result in zip(lie, results, strict=True)
            ]
            compare_results(trace.outputs.build(results, fresh), expected, dtype, f"what {devices} devices compute")
    return rows


def test_what_a_graph_of_kernels_computes(
    seeds: range, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rewrites of a machine that has a kernel for every call, or for two of three, at these small sizes too."""
    monkeypatch.setattr(sys.modules["sfast_core.rewrite.passes.share_halves"], "_FEWEST", 1)
    monkeypatch.setattr(sys.modules["sfast_core.rewrite.passes.split_projections"], "_FEWEST_ROWS", 1)
    passes = each(seeds, request, rewritten)
    assert sum(counts is None for counts in passes.values()) <= max(1, (1 - _FUSED) * len(seeds))


def rewritten(text: str, seed: int) -> dict[str, int] | None:
    """Compare the rewritten graph on other inputs. Returns what the passes changed; None where there is no graph."""
    return rounding_aside(_rewritten, text, seed)


def _rewritten(text: str, seed: int, dtype: torch.dtype) -> dict[str, int] | None:
    module, inputs = built(text, seed, dtype)
    asked = 0

    def has_impl(*_: Any) -> bool:
        nonlocal asked
        asked += 1
        return seed % 3 != 0 or asked % 3 != 0

    seed_all(seed)
    shape = SHAPES[seed % 2]
    _, trace = try_record(module, *inputs(*shape))
    if isinstance(trace, Untraceable):
        return None
    counts = rewrite(trace.graph, WeightStore().may_pack, has_impl=has_impl).counts
    fresh = inputs(*shape)
    with torch.no_grad():
        expected = module(*fresh)
    compare_results(trace.outputs.build(evaluate(trace.graph, fresh), fresh), expected, dtype, "the rewritten graph")
    return counts
