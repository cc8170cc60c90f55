"""A program obeys PyTorch's settings as eager does, in the kernels that PyTorch doesn't choose; and none of ours
depends on time.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sfast_core import CompileConfig, compile, lowering
from sfast_core.machine.numerics import CUDNN, CUDNN_ATTENTION, EFFICIENT, FLASH, Numerics
from sfast_core.ops.attention import OP as ATTENTION
from sfast_core.ops.conv2d_act import OP as CONVOLUTION
from sfast_core.ops.spec import Op
from sfast_core.target import Target
from tests.models import UNet
from tests.settings import set_to

ROOT = Path(__file__).resolve().parent.parent
GPU = Target(torch.device("cuda", 0), "everything", (9, 0), sm_count=132, shared_memory_bytes=232448, triton=True)
BACKENDS = torch.backends


@contextlib.contextmanager
def switched_off(switch: Any) -> Iterator[None]:
    switch(False)
    try:
        yield
    finally:
        switch(True)


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


SETTINGS = {
    "fp16 accumulation": (
        lambda: set_to(BACKENDS.cuda.matmul, "allow_fp16_accumulation", True),
        Numerics(fp16_accumulation=True),
    ),
    "TF32": (lambda: set_to(BACKENDS.cuda.matmul, "allow_tf32", True), Numerics(tf32=True)),
    "deterministic": (deterministic, Numerics(deterministic=True)),
    "cuDNN": (lambda: set_to(BACKENDS.cudnn, "enabled", False), Numerics(switched_off=frozenset([CUDNN]))),
    "cuDNN's attention": (
        lambda: switched_off(BACKENDS.cuda.enable_cudnn_sdp),
        Numerics(switched_off=frozenset([CUDNN_ATTENTION])),
    ),
    "flash": (lambda: switched_off(BACKENDS.cuda.enable_flash_sdp), Numerics(switched_off=frozenset([FLASH]))),
    "efficient": (
        lambda: switched_off(BACKENDS.cuda.enable_mem_efficient_sdp),
        Numerics(switched_off=frozenset([EFFICIENT])),
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_are_read(name: str) -> None:
    switched, expected = SETTINGS[name]
    assert Numerics.now() == Numerics()
    with switched():
        assert Numerics.now() == expected
    assert Numerics.now() == Numerics()


@pytest.mark.parametrize("name", SETTINGS)
def test_impls_are_asked_under_the_settings_of_the_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Numerics] = []
    select = lowering.select_impls

    def watched(graph: Any, ops: Any, target: Target, *rest: Any) -> Any:
        asked.append(target.numerics)
        return select(graph, ops, target, *rest)

    monkeypatch.setattr(lowering, "select_impls", watched)
    switched, expected = SETTINGS[name]
    handle, inputs = compile(UNet(), CompileConfig(allow_cpu=True)), UNet.inputs()
    with torch.no_grad():
        handle(*inputs)
        with switched():
            handle(*inputs), handle(*inputs)
        handle(*inputs)
    assert asked == [Numerics(), expected] and dict(handle.engine.report.calls) == {"traced": 2, "fused": 2}


def _meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float16, device="meta")


def refusals(op: Op, numerics: Numerics, *args: Any) -> dict[str, str | None]:
    target = replace(GPU, numerics=numerics)
    return {impl.name: impl.why_not(target, *args) for impl in op.impls}


@pytest.mark.parametrize(
    ("numerics", "impl", "reason"),
    [
        (Numerics(switched_off=frozenset([CUDNN])), "cudnn", "cuDNN is switched off in PyTorch"),
        (Numerics(switched_off=frozenset([CUDNN_ATTENTION])), "cudnn", "cuDNN's attention is switched off in PyTorch"),
        (Numerics(deterministic=True), "cudnn", "PyTorch doesn't count it among its deterministic algorithms"),
        (Numerics(switched_off=frozenset([FLASH])), "flash", "flash attention is switched off in PyTorch"),
        (
            Numerics(switched_off=frozenset([EFFICIENT])),
            "efficient",
            "memory-efficient attention is switched off in PyTorch",
        ),
    ],
)
def test_attention_is_left_to_what_pytorch_may_use(numerics: Numerics, impl: str, reason: str) -> None:
    q = _meta(2, 8, 256, 64)
    before, now = refusals(ATTENTION, Numerics(), q, q, q), refusals(ATTENTION, numerics, q, q, q)
    assert now[impl] == f"{impl}: {reason}" and before[impl] != now[impl]
    assert {name for name in now if now[name] != before[name]} == {impl}


def test_without_cudnn_no_convolution_is_cudnns() -> None:
    args = (_meta(1, 64, 8, 8), _meta(64, 64, 3, 3), _meta(64))
    found = refusals(CONVOLUTION, Numerics(switched_off=frozenset([CUDNN])), *args)
    assert {name for name, reason in found.items() if reason and "switched off in PyTorch" in reason} == {
        "cudnn",
        "cudnn_2",
        "cudnn_3",
    }


@pytest.mark.parametrize("folder", ["csrc", "sfast_core/ops"])
def test_no_kernel_adds_in_an_order_that_depends_on_time(folder: str) -> None:
    """What --deterministic asks for holds always: no atomic additions, neither in CUDA nor in Triton nor in PTX."""
    atomic = re.compile(
        r"\batomic(Add|Sub|Max|Min|CAS|Exch)|\batomic_\w+\(|\b(atom|red)\.(global|shared|relaxed|add|gpu)|cuda::atomic"
    )
    sources = [path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in (".cu", ".cuh", ".h", ".py")]
    assert len(sources) > 15
    assert [path.name for path in sources if atomic.search(path.read_text("utf-8"))] == []
