"""Shared memory that the kernel of cross-attention takes on GPUs that have little of it, as Triton compiles it for
them. Needs no GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sfast_core.ops.attention import OP
from tests.targets import RTX_4090

ROOT = Path(__file__).resolve().parent.parent.parent

# Keys and the size of a head.
SHAPES = [(77, 40), (77, 160), (128, 128)]

_COMPILE = """
import json, sys
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from sfast_core.ops.attention.triton_cross_impl import tiling, cross_attention_kernel as kernel
from sfast_core.ops.triton_operand import operand

for keys, head in json.loads(sys.argv[1]):
    plan = tiling(keys, head)
    given = {"BLOCK_L": plan.block_l, "S0": plan.keys[0], "S1": plan.keys[1], "D0": plan.head[0], "D1": plan.head[1]}
    given["OPERAND"] = operand(torch.empty(0, dtype=torch.float16))
    plain = [name for name in kernel.arg_names if name not in given]
    signature = {name: "*fp16" if index < 4 else "i32" for index, name in enumerate(plain)} | {plain[-1]: "fp32"} | dict.fromkeys(given, "constexpr")
    attributes = {(index,): [["tt.divisibility", 16]] for index in range(4)}
    constants = {(kernel.arg_names.index(name),): value for name, value in given.items()}
    source = ASTSource(kernel, {name: signature[name] for name in kernel.arg_names}, constants, attributes)
    compiled = compile(source, target=GPUTarget("cuda", 89, 32), options={"num_warps": plan.warps, "num_stages": plan.stages})
    print(json.dumps([compiled.metadata.shared, plan.shared_bytes]), flush=True)
"""


def test_no_more_is_taken_than_was_foretold(tmp_path: Path) -> None:
    pytest.importorskip("triton", minversion="3.3", reason="an older Triton compiles from other descriptions")
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-c", _COMPILE, json.dumps(SHAPES)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(found) == len(SHAPES) and all(0 < taken <= foretold <= 1.25 * taken for taken, foretold in found), found


@pytest.mark.parametrize(("head", "fits"), [(40, True), (80, True), (160, False)])
def test_a_head_too_wide_for_the_gpu_is_left_to_others(head: int, fits: bool) -> None:
    """SD1.5's three sizes: Triton takes 118784 bytes for 160, and a block has 101376 on most GPUs."""
    pytest.importorskip("triton")
    q, k = (torch.empty(2, tokens, 8, head, dtype=torch.float16, device="meta").transpose(1, 2) for tokens in (256, 77))
    assert (OP.impls[0].why_not(RTX_4090, q, k, k) is None) == fits
