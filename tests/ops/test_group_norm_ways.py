"""Which GroupNorms are candidates for which maps."""

from __future__ import annotations

import pytest
import torch
from torch.fx import Graph

from sfast_core.native import load
from sfast_core.ops.group_norm_act import OP, group_norm_act
from sfast_core.rewrite import select_impls
from sfast_core.target import Target
from tests.targets import A100, H100

pytest.importorskip("triton", reason="needs Triton")


def candidates(target: Target, *shape: int, disabled: tuple[str, ...] = ()) -> list[str]:
    graph = Graph()
    x, affine = graph.placeholder("x"), graph.placeholder("affine")
    x.meta["val"] = torch.empty(shape, dtype=torch.float16, device="meta")
    affine.meta["val"] = torch.empty(shape[1], dtype=torch.float16, device="meta")
    graph.call_function(group_norm_act, (x, 32, affine, affine, 1e-5, "silu"))
    graph.output(())
    found: list[str] = []

    def choose(calls: list[object]) -> list[str]:
        found.extend(impl.name for impl in calls[0].impls)  # type: ignore[attr-defined]
        return ["reference"]

    select_impls(graph, [OP], target, disabled, choose)
    return found


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "why_not", lambda device, status_of="": None)


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(
    ("target", "shape", "expected"),
    [
        (H100, (2, 1280, 16, 16), ["triton", "cuda", "cuda_cluster"]),
        (H100, (2, 640, 32, 32), ["cuda", "cuda_cluster"]),
        (A100, (2, 640, 32, 32), ["triton", "cuda"]),
        (H100, (2, 1280, 24, 20), ["cuda", "cuda_cluster"]),
        (H100, (2, 1280, 64, 64), ["cuda", "cuda_cluster"]),
        (H100, (2, 960, 128, 128), ["cuda"]),
        (A100, (2, 1280, 64, 64), ["cuda"]),
    ],
    ids=str,
)
def test_two_kernels_of_tritons_are_never_compiled_where_the_extension_is(
    target: Target, shape: tuple[int, ...], expected: list[str]
) -> None:
    assert candidates(target, *shape) == expected


@pytest.mark.usefixtures("built")
def test_they_stand_in_where_the_extension_is_turned_off() -> None:
    assert candidates(H100, 2, 1280, 64, 64, disabled=("group_norm_act.cuda*",)) == ["triton_two"]
    assert candidates(H100, 2, 1280, 64, 64, disabled=("group_norm_act.cuda",)) == ["cuda_cluster"]
    assert candidates(H100, 2, 640, 32, 32, disabled=("group_norm_act.cuda*",)) == ["triton"]


def test_they_stand_in_where_it_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "why_not", lambda device, status_of="": "it isn't built")
    assert candidates(H100, 2, 1280, 64, 64) == ["triton_two"]
    assert candidates(H100, 2, 1280, 16, 16) == ["triton"] and candidates(H100, 2, 640, 32, 32) == ["triton"]
