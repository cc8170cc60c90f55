"""The op benchmark: its shapes are the op tests' cases, its rates follow from times, its table says what didn't run."""

from __future__ import annotations

import inspect

import pytest
import torch

from benchmarks import op_timing, op_variants, ops
from benchmarks.op_shapes import MODELS, SHAPES, OpShape, shapes
from sfast_core.ops import NAMES, all_ops
from tests.ops.cases import attention, conv2d_act, linear

PEAK = op_timing.Peak(flop_per_s=500e12, bytes_per_s=2e12)


def test_ops_are_timed_at_cases_that_exist() -> None:
    found = shapes()
    assert set(SHAPES) <= set(NAMES) and {shape.model for shape in found} == set(MODELS)
    assert len(found) == len({(shape.op, shape.case.id) for shape in found}) <= 56, (
        "the default set must end within 100 seconds"
    )
    assert not any(shape.case.slow for shape in found)
    assert {shape.op for shape in shapes(models=["Flux"])} == {
        "add_layer_norm",
        "ada_layer_norm",
        "norm_rope",
        "linear",
        "attention",
    }
    assert {shape.op for shape in shapes(["attention"])} == {"attention"}


@pytest.mark.parametrize(
    ("asked", "said"),
    [((["matmul"], None), "no op 'matmul', only group_norm_act"), ((None, ["SD3"]), "no model 'SD3'")],
)
def test_an_unknown_name_is_said(asked: tuple[list[str] | None, list[str] | None], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        shapes(*asked)


def test_every_parameter_can_be_given_by_position() -> None:
    for op in all_ops().values():
        kinds = {parameter.kind for parameter in inspect.signature(op.reference).parameters.values()}
        assert kinds == {inspect.Parameter.POSITIONAL_OR_KEYWORD}, op.name
    (case,) = [case for case in conv2d_act.CASES if case.id == "3x3-residual-silu"]
    arguments = ops.positional(all_ops()["conv2d_act"], *case.make(torch.float32, torch.device("cpu")))
    assert arguments[3:7] == (1, 1, 1, 1) and arguments[7].shape == (2, 24, 9, 7) and arguments[8:] == ("silu", None)
    (case,) = [case for case in linear.CASES if case.id == "no-bias"]
    assert len(ops.positional(all_ops()["linear"], *case.make(torch.float32, torch.device("cpu")))) == 7


@pytest.mark.parametrize(
    ("op", "cases", "name", "flop"),
    [
        ("linear", linear, "gate-several-tiles", 2 * 300 * 200 * 2 * 136),
        ("attention", attention, "77-keys-head-40", 4 * 2 * 2 * 70 * 77 * 40),
        ("conv2d_act", conv2d_act, "3x3-silu", 2 * 2 * 9 * 7 * 24 * 16 * 9),
    ],
)
def test_flop_are_those_of_the_matrix_products(op: str, cases: object, name: str, flop: int) -> None:
    (case,) = [case for case in cases.CASES if case.id == name]  # type: ignore[attr-defined]
    arguments = ops.positional(all_ops()[op], *case.make(torch.float32, torch.device("cpu")))
    assert ops.count_flop(all_ops()[op], arguments) == flop


def test_bytes_and_copies() -> None:
    x = torch.zeros(3, 5, dtype=torch.float16)
    assert op_timing.count_bytes([x, None, 2, (x, [x])]) == 90
    assert op_timing.copies_for(1) == op_timing.MAX_COPIES and op_timing.copies_for(1 << 40) == 2
    assert op_timing.copies_for(16 << 20) * (16 << 20) >= op_timing.COLD_BYTES


def test_the_share_of_the_peak_is_that_of_what_bounds_the_op() -> None:
    compute = ops.rate(ops.Row("o", "m", "s", "i", us=200.0), flop=50e9, moved_bytes=20e6, peak=PEAK)
    assert (compute.bound, compute.tflops, compute.percent_of_peak) == (
        "compute",
        pytest.approx(250),
        pytest.approx(50),
    )
    memory = ops.rate(ops.Row("o", "m", "s", "i", us=20.0), flop=0, moved_bytes=20e6, peak=PEAK)
    assert (memory.bound, memory.gbps, memory.percent_of_peak) == ("memory", pytest.approx(1000), pytest.approx(50))


def test_the_error_is_the_largest_of_all_results() -> None:
    truth = (torch.tensor([3.0, 4.0]), torch.tensor([1.0]))
    assert ops.error((torch.tensor([3.0, 4.0]), torch.tensor([1.5], dtype=torch.float16)), truth) == pytest.approx(0.5)


def test_the_table_tells_what_ran_and_why_others_did_not() -> None:
    rows = [
        ops.Row(
            "attention",
            "SDXL",
            "a",
            "eager",
            us=40.0,
            x_eager=1.0,
            tflops=300,
            bound="compute",
            percent_of_peak=48.3,
            error=1e-3,
        ),
        ops.Row(
            "attention",
            "SDXL",
            "a",
            "flash",
            us=20.0,
            x_eager=2.0,
            gbps=900,
            bound="memory",
            percent_of_peak=97,
            error=1e-2,
            inexact=True,
        ),
        ops.Row("attention", "SDXL", "a", "xformers", why_not="No module named 'xformers'"),
        ops.Row("attention", "SDXL", "b", "xformers", why_not="No module named 'xformers'"),
    ]
    text = ops.table(rows)
    assert "| attention | SDXL | a | eager | 40.0 | 1.00 | 300 TFLOP/s | 48% | 1.0e-03 |" in text
    assert "| 900 GB/s | 97% | 1.0e-02 (!) |" in text
    assert "- `attention.xformers` at a, b: No module named 'xformers'" in text and text.count("xformers'") == 1


def test_a_shape_gives_a_row_for_every_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock aside: kernels that ran, one that is off, one that fails and one that doesn't apply."""
    monkeypatch.setattr(ops, "capture", lambda launch, copies: launch)
    monkeypatch.setattr(
        ops, "interleaved_us", lambda graphs, launches: {name: 10.0 + number for number, name in enumerate(graphs)}
    )
    op = all_ops()["linear"]
    (case,) = [case for case in linear.CASES if case.id == "gate-gelu"]

    def fails(*_: object) -> torch.Tensor:
        raise RuntimeError("no such tile\nand more")

    launches = {
        "eager": op.reference,
        "off": lambda *args: op.reference(*args) * 1.1,
        "broken": fails,
        "part product": lambda x, *_: x,
    }
    of = ops._Candidates(OpShape("linear", "SDXL", case), op, launches, {"triton": "needs a GPU"}, torch.device("cpu"))
    rows = {row.impl: row for row in ops.measure(of, PEAK)}
    assert list(rows) == ["eager", "off", "broken", "part product", "triton"]
    assert (
        rows["eager"].us == 10
        and rows["eager"].x_eager == 1
        and 0 < rows["eager"].error < 2e-3
        and not rows["eager"].inexact
    )
    assert (
        rows["off"].inexact
        and rows["off"].error == pytest.approx(0.1, rel=0.05)
        and rows["off"].x_eager == pytest.approx(10 / 11)
    )
    assert (rows["broken"].us, rows["broken"].why_not) == (0, "no such tile") and rows[
        "triton"
    ].why_not == "needs a GPU"
    moved = 2 * (2 * 19 * 72 + 80 * 72 + 80 + 2 * 19 * 40)
    assert rows["eager"].gbps == pytest.approx(moved / 10 / 1e3)
    assert rows["part product"].us == 12 and not rows["part product"].inexact


def test_variants_are_of_ops_that_exist() -> None:
    assert set(op_variants._VARIANTS) <= set(NAMES)
    assert op_variants.variants("group_norm_act", ()) == {}


@pytest.mark.gpu
def test_a_small_shape_is_measured_with_all_that_applies() -> None:
    from sfast_core.target import probe

    (shape,) = shapes(["add_layer_norm"], ["SD1.5"])
    with torch.inference_mode():
        of = ops._candidates(shape, probe(torch.device("cuda")), None)
        rows = {row.impl: row for row in ops.measure(of, PEAK)}
    assert rows["eager"].us > rows["triton"].us > 0 and rows["triton"].x_eager > 1 and not rows["triton"].inexact
