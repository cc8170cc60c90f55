"""Which kernels are candidates for a linear layer, by its epilogue and its rows: one op has those that each epilogue
had as an op of its own.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx import Graph

from sfast_core.machine.numerics import Numerics
from sfast_core.ops.linear import OP, linear
from sfast_core.programs.jobs import job_of
from sfast_core.rewrite import Call, select_impls
from sfast_core.target import Target
from tests.targets import A100, H100

CUBLASLT = ("cublaslt", "cublaslt_2", "cublaslt_3")
REFERENCE = "reference"


def candidates(
    target: Target, function: Any, rows: int, more: tuple[Any, ...] = (), bias: bool = True, depth: int = 640
) -> tuple[str, ...]:
    """The names of what is timed for a layer of ``depth`` to 1280 features, in order of preference;
    one alone is taken.
    """
    operands = [
        torch.empty(shape, dtype=torch.float16, device="meta")
        for shape in ((rows, depth), (1280, depth), *([(1280,)] if bias else []))
    ]
    graph, seen = Graph(), []
    nodes = [graph.placeholder(f"x{index}") for index in range(len(operands))]
    for node, val in zip(nodes, operands, strict=True):
        node.meta["val"] = val
    graph.output(graph.call_function(function, (*nodes, *([] if bias else [None]), *more)))

    def choose(calls: list[Call]) -> list[str]:
        seen.extend(job_of(call, Numerics()).impls for call in calls)
        return [REFERENCE] * len(calls)

    select_impls(graph, [OP], target, (), choose)
    (names,) = seen
    return tuple(names)


def added(rows: int, columns: int = 1280) -> tuple[Any, ...]:
    return "none", False, torch.empty(rows, columns, dtype=torch.float16, device="meta")


@pytest.mark.parametrize(
    ("rows", "more", "names"),
    [
        (8192, (), (*CUBLASLT, REFERENCE)),
        (2, (), ("cuda_few", *CUBLASLT, REFERENCE)),
        (8192, added(8192), CUBLASLT),
        (2, added(2), ("cuda_few", *CUBLASLT)),
        (2, ("silu",), ("cuda_few",)),
        (2, ("relu",), ("cuda_few",)),
        (8192, ("silu",), (REFERENCE,)),
        (8192, ("relu",), ("torch_act",)),
        (8192, ("gelu_tanh",), ("torch_act",)),
        (8192, ("quick_gelu",), ("triton_act",)),
        (8192, ("gelu",), (REFERENCE,)),
        (8192, ("gelu", True), ("triton_tma", REFERENCE)),
        (128, ("gelu_tanh", True), ("triton_tma", "triton_gate", REFERENCE)),
        (8192, ("silu", True), ("triton_tma", REFERENCE)),
    ],
)
def test_each_epilogue_has_its_candidates(
    rows: int, more: tuple[Any, ...], names: tuple[str, ...], asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton.tools.tensor_descriptor", reason="needs Triton 3.4 or newer")
    monkeypatch.setattr("sfast_core.ops.linear.cublaslt_impl.why_no_library", lambda: None)
    assert candidates(H100, linear, rows, more) == names
    if not more:
        assert candidates(H100, F.linear, rows, more) == names


def test_without_a_bias_or_on_an_older_gpu(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfast_core.ops.linear.cublaslt_impl.why_no_library", lambda: None)
    assert candidates(H100, linear, 8192, ("gelu_tanh",), bias=False) == (REFERENCE,)
    assert candidates(A100, linear, 8192, ("gelu", True)) == ("triton_gate", REFERENCE)


def test_a_depth_that_is_no_number_of_blocks_has_another_candidate(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton.tools.tensor_descriptor", reason="needs Triton 3.4 or newer")
    monkeypatch.setattr("sfast_core.ops.linear.cublaslt_impl.why_no_library", lambda: None)
    assert candidates(H100, linear, 8192, ("silu", True), depth=2520) == ("triton_tma", "triton_gate", REFERENCE)


def test_tokens_of_several_images_in_turn_are_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """[L, B, K] of what lies as [B, L, K]: PyTorch makes L products of it where the weight gets no gradient."""
    seen, real = [], F.linear
    monkeypatch.setattr(F, "linear", lambda x, *rest: seen.append(x) or real(x, *rest))
    x, weight = torch.randn(2, 5, 8).transpose(0, 1), torch.randn(6, 8)
    for one in (x, x[:, :1], x[:0], x.transpose(0, 1)):
        torch.testing.assert_close(linear(one, weight), real(one.contiguous(), weight))
    assert [tuple(one.shape) for one in seen] == [(10, 8), (5, 8), (0, 8), (2, 5, 8)]


def test_a_part_of_each_image_s_tokens_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of large products takes no longer than one; behind SD3's attention a copy of each image's tokens stood in
    front of it.
    """
    seen, real = [], F.linear
    monkeypatch.setattr(F, "linear", lambda x, *rest: seen.append(x) or real(x, *rest))
    x, weight = torch.randn(2, 200, 8)[:, :150], torch.randn(6, 8)
    torch.testing.assert_close(linear(x, weight), real(x.contiguous(), weight))
    assert [one.data_ptr() for one in seen] == [x.data_ptr()]


def test_what_no_impl_computes_is_the_reference_s() -> None:
    """Of PyTorch's own function, too."""
    graph = Graph()
    x, weight = graph.placeholder("x"), graph.placeholder("weight")
    x.meta["val"], weight.meta["val"] = (torch.empty(2, 8, device="meta") for _ in range(2))
    node = graph.call_function(F.linear, (x, weight, None))
    graph.output(node)
    select_impls(graph, [OP], H100, (), None)
    assert node.target is linear


def test_the_reference_is_what_it_says() -> None:
    torch.manual_seed(0)
    x, weight, bias, residual = torch.randn(3, 8), torch.randn(6, 8), torch.randn(6), torch.randn(3, 6)
    h = F.linear(x, weight, bias)
    assert torch.equal(linear(x, weight, bias), h) and torch.equal(
        linear(x, weight, bias, residual=residual), h + residual
    )
    assert torch.equal(linear(x, weight, bias, "gelu", True), h[:, :3] * F.gelu(h[:, 3:])) and torch.equal(
        linear(x, weight, bias, "silu"), F.silu(h)
    )
    with pytest.raises(ValueError, match="act is 'tanh', must be one of none, gelu"):
        linear(x, weight, bias, "tanh")
    with pytest.raises(ValueError, match="weight has 5 rows, must be an even number"):
        linear(x, weight[:5], None, "gelu", True)
