"""Where two kernels of Triton's are left out, because one in clusters of blocks is known to be faster."""

from __future__ import annotations

import pytest
import torch

from sfast_core.native import load
from sfast_core.target import Target
from tests.targets import A100, H100

impl = pytest.importorskip("sfast_core.ops.group_norm_act.triton_impl", reason="needs Triton")


def reason(target: Target, *shape: int) -> str | None:
    x, affine = torch.empty(shape, dtype=torch.float16, device="meta"), torch.empty(shape[1], dtype=torch.float16, device="meta")
    result: str | None = impl.why_not(target, x, 32, affine, affine, 1e-5, "silu")
    return result


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "why_not", lambda device, status_of="": None)


@pytest.mark.usefixtures("built")
def test_two_kernels_are_left_out_where_clusters_can() -> None:
    assert reason(H100, 2, 1280, 24, 20) == "groups of 24 x 20 x 40 take two kernels, and one in clusters is faster"
    assert "one in clusters" in (reason(H100, 2, 320, 64, 64) or "")


@pytest.mark.usefixtures("built")
def test_the_rest_stays() -> None:
    assert reason(H100, 2, 1280, 16, 16) is None, "one kernel does it"
    assert reason(H100, 2, 320, 96, 80) is None, "clusters aren't known to be faster"
    assert reason(H100, 2, 128, 64, 64) is None, "groups of 4 channels are no whole packs: clusters can't"
    assert reason(A100, 2, 1280, 32, 32) is None


def test_without_the_extension_triton_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "why_not", lambda device, status_of="": "it isn't built")
    assert reason(H100, 2, 1280, 32, 32) is None
