"""The ControlNet benchmark's pair: each part is compiled by itself, and the step stays what it was."""

from __future__ import annotations

import copy

import pytest
import torch

from benchmarks import controlnet, interleaved, memory

CPU = torch.device("cpu")
SMALL = {
    "sample_size": 16,
    "block_out_channels": (32, 32),
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "transformer_layers_per_block": 1,
    "attention_head_dim": 2,
    "cross_attention_dim": 64,
}


@pytest.fixture
def pair() -> controlnet.Controlled:
    """A small pair on the CPU."""
    pytest.importorskip("diffusers")
    return controlnet.build(SMALL, CPU, torch.float32)


def _subject(pair: controlnet.Controlled) -> interleaved.Subject:
    return interleaved.Subject(
        "small",
        torch.float32,
        lambda dtype: pair,
        lambda module, dtype: controlnet.inputs(module, CPU, dtype),
        ("controlnet", "unet"),
    )


@torch.no_grad()
def test_both_parts_of_ours_are_compiled_and_agree_with_eager(
    pair: controlnet.Controlled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAST_COMPILE_CPU", "1")
    subject = _subject(pair)
    eager = interleaved._make("eager", subject, copy.deepcopy(pair))
    ours = interleaved._make("ours", subject, copy.deepcopy(pair))
    expected = eager.forward()
    for _ in range(2):
        assert torch.allclose(ours.forward(), expected, rtol=1e-3, atol=1e-4)
    assert eager.report is None and ours.report is not None
    text = ours.report()
    assert "small controlnet on cpu" in text and "small unet on cpu" in text and "eager," not in text
    inputs = controlnet.inputs(pair, CPU, torch.float32)
    hint = inputs.pop("hint")
    alone = pair.unet(**inputs)[0]
    assert float((alone - expected).norm() / expected.norm()) > 1e-2, "the ControlNet adds nothing"
    assert not torch.equal(pair(1 - hint, **inputs)[0], expected), "its hint has no effect"


def test_torch_compile_takes_each_part(pair: controlnet.Controlled, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, object]] = []

    def compiled(module: torch.nn.Module, mode: str | None = None) -> torch.nn.Module:
        seen.append((type(module).__name__, mode))
        return module

    monkeypatch.setattr(torch, "compile", compiled)
    for name, mode in (("compile", None), ("compile-reduce-overhead", "reduce-overhead")):
        seen.clear()
        interleaved._make(name, _subject(pair), pair)
        assert seen == [("ControlNetModel", mode), ("UNet2DConditionModel", mode)]


def test_the_memory_table_compares_with_eager_and_names_the_graphs() -> None:
    rows = [
        memory.Row("SDXL", "eager", 2**32, 2**33, 2**33, 0),
        memory.Row("SDXL", "ours", 2**32, 9 * 2**30, 9 * 2**30, 80 * 2**20),
    ]
    lines = memory.table(rows).splitlines()
    assert lines[2] == "| SDXL | eager | 4.00 GiB | 8.00 GiB | 1.00 | 8.00 GiB |  |"
    assert lines[3] == "| SDXL | ours | 4.00 GiB | 9.00 GiB | 1.12 | 9.00 GiB | 80 MiB |"
