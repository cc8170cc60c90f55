"""The table of model families is what its program writes, and what it counts is what the passes did."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import sfast_core
from benchmarks import families
from benchmarks.families import Row, table
from benchmarks.family_models import FAMILIES
from tests.models import Forward

ROOT = Path(__file__).resolve().parent.parent.parent


def published() -> list[Row]:
    """The rows that the page shows."""
    return families.read(ROOT / "docs" / "measured" / "families.csv")


def test_the_page_shows_what_was_measured() -> None:
    assert table(published()) in (ROOT / "docs" / "compatibility.md").read_text("utf-8")


def test_it_has_every_family() -> None:
    rows = published()
    assert [row.model for row in rows] == list(FAMILIES)
    assert all(row.status in ("fused", "in segments", "eager", "not built") for row in rows)
    assert all(bool(row.why) == (row.status != "fused") for row in rows)


def test_no_family_runs_as_it_was_or_is_less_exact() -> None:
    for row in published():
        assert row.status in ("fused", "in segments"), f"{row.model}: {row.why}"
        assert row.error <= 1.5 * row.eager_error, f"{row.model}: {row.error:.1e}, ComfyUI's {row.eager_error:.1e}"
        assert 0 < row.left < row.calls


def test_times_are_shown_where_there_are_some() -> None:
    row = Row("A model", "fused", "", 100, 40, "fuse_linear 2", 0.01, 0.02)
    assert table([row]).splitlines()[0] == "| model | status | calls | left | error | ComfyUI's | fusions |"
    assert table([row]).splitlines()[2] == "| A model | fused | 100 | 40 | 1.0e-02 | 2.0e-02 | fuse_linear 2 |"
    row.ms, row.eager_ms = 1.5, 3.0
    assert (
        table([row]).splitlines()[2]
        == "| A model | fused | 100 | 40 | 1.0e-02 | 2.0e-02 | 1.50 | 3.00 | fuse_linear 2 |"
    )


def test_it_says_what_became_of_calls() -> None:
    def report(*live: str, **calls: int) -> Any:
        return SimpleNamespace(
            calls=Counter(calls), reasons={"a reason": 2}, signatures=[SimpleNamespace(live=list(live))]
        )

    assert families._became(report(traced=1, fused=2)) == ("fused", "")
    assert families._became(report("Experts", traced=1, replayed=2)) == ("in segments", "a reason")
    assert families._became(report(traced=1, eager=2)) == ("eager", "a reason")


def test_passes_are_counted_as_for_a_gpu() -> None:
    """Of a copy: what runs is made of what there is here."""
    pytest.importorskip("triton")
    layers = {"norm": nn.LayerNorm(64, elementwise_affine=False), "lin": nn.Linear(64, 64)}
    forward = lambda net, x, scale, shift: net.lin(net.norm(x) * (1 + scale) + shift)  # noqa: E731
    module = Forward(forward, **layers).requires_grad_(False).bfloat16()
    handle = sfast_core.compile(module, sfast_core.CompileConfig(allow_cpu=True))
    with families._counted() as counted, torch.no_grad():
        handle(*(torch.randn(2, size, 64).bfloat16() for size in (8, 1, 1)))
    ((before, after, passes),) = counted
    assert before == 5 and after == 2 and passes["fuse_ada_layer_norm"] == 1
    assert handle.engine.report.signatures[0].passes["fuse_ada_layer_norm"] == 0
    assert families._largest(counted)[2] == "fuse_add_layer_norm 1, fuse_ada_layer_norm 1"


def test_a_floor_counts_products_and_attention_apart() -> None:
    from benchmarks.floors import Rates, work_of

    layer, q = nn.Linear(16, 32), torch.randn(1, 2, 8, 16)

    def run() -> None:
        with torch.inference_mode():
            layer(torch.randn(4, 16))
            torch.nn.functional.conv2d(torch.randn(1, 3, 6, 6), torch.randn(5, 3, 3, 3))
            torch.nn.functional.scaled_dot_product_attention(q, q, q)

    work = work_of(run)
    assert (work.products, work.attention) == (2 * 4 * 16 * 32 + 2 * 5 * 3 * 9 * 16, 4 * 2 * 8 * 8 * 16)
    assert Rates(work.products, 2 * work.attention).floor_ms(work) == pytest.approx(1500)


def test_what_is_wide_is_a_family() -> None:
    from benchmarks.families_wide import WideRow, wide_table
    from benchmarks.family_full_width import WIDE

    assert all(any(family.config == small.config for small in FAMILIES.values()) for family in WIDE.values())
    assert (
        wide_table([WideRow("A model", 4.0, 3.0, 2.0, 1.6, 0.01, 0.02)]).splitlines()[2]
        == "| A model | 2.00 | 1.25 | 4.00 | 3.00 | 1.50 | 1.0e-02 | 2.0e-02 |"
    )
