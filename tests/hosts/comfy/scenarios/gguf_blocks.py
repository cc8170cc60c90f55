"""Checkpoints in GGUF's blocks, loaded with ComfyUI-GGUF's own layers: ``COMFYUI_GGUF_PATH`` names its folder.

Without it there is nothing to try.
"""

from __future__ import annotations

from typing import Any

import comfy.sd
import gguf_files
import tiny
import torch
from driver import assert_close, assert_differs, assert_fused, calls, fast_compile, report_of, sample
from scenario_tools import LORA_SETS, lora, switch_loras


def _load(pack: Any, kind: str, family: str = "sd15", **options: Any) -> Any:
    """A patcher as the pack's own loader makes it.

    Biases and norms are 16-bit tensors of the same class, as in its files.
    """
    weights = gguf_files.weights(pack, tiny.state_dict(family), kind)
    ops = pack.ops.GGMLOps()
    for name, value in options.items():
        setattr(ops.Linear, name, value)
    model = comfy.sd.load_diffusion_model_state_dict(weights, model_options={"custom_operations": ops})
    return pack.nodes.GGUFModelPatcher.clone(model)


def _same(pack: Any, kind: str, family: str = "sd15", **options: Any) -> Any:
    model = _load(pack, kind, family, **options)
    try:
        plain = sample(model)
        fast = fast_compile.apply(model)
        sample(fast)
        before = calls(model)
        assert_close(sample(fast), plain, 1e-3)
        assert_fused(model, before)
        assert not any(word in report_of(model).text() for word in ("runs as it is", "GGMLTensor")), report_of(
            model
        ).text()
    finally:
        for name in options:
            setattr(pack.ops.GGMLOps.Linear, name, None)
    return model


def scenario_each_type() -> None:
    if pack := gguf_files.pack():
        for kind in gguf_files.KINDS:
            _same(pack, kind)


def scenario_a_transformer() -> None:
    if pack := gguf_files.pack():
        _same(pack, "Q4_K", "sd3")


def scenario_computed_in_other_dtypes() -> None:
    if pack := gguf_files.pack():
        for dtype in ("target", torch.float32, torch.bfloat16):
            _same(pack, "Q4_K", dequant_dtype=dtype)


def _moved(pack: Any, model: Any) -> None:
    """New tensors in the place of all, as a way to main memory and back leaves them."""
    for layer in model.model.diffusion_model.modules():
        for name, tensor in list(layer._parameters.items()):
            if isinstance(tensor, pack.ops.GGMLTensor):
                with torch._C.DisableTorchFunction():
                    memory = torch.Tensor.as_subclass(tensor, torch.Tensor).clone()
                made = pack.ops.GGMLTensor(memory, tensor_type=tensor.tensor_type, tensor_shape=tensor.tensor_shape)
                made.patches = list(getattr(tensor, "patches", []))
                layer._parameters[name] = torch.nn.Parameter(made, requires_grad=False)


def scenario_loras_that_are_added_at_each_call() -> None:
    """The pack's way: a patched weight keeps its blocks, and its patches beside them.

    Other LoRAs on the same layers are no other trace.
    """
    pack = gguf_files.pack()
    if pack is None:
        return
    model, twin = _load(pack, "Q8_0"), _load(pack, "Q8_0")
    fast = fast_compile.apply(model)
    seen = []
    for number, step in enumerate([None, (1.0, 5), (0.4, 5), (1.0, 905), None, (1.0, 5)]):
        if number % 2:
            _moved(pack, model)
        mine, theirs = (fast, twin) if step is None else (lora(fast, "sd15", *step), lora(twin, "sd15", *step))
        traced = calls(model)["traced"] if number else 0
        seen.append(sample(mine))
        assert_close(seen[-1], sample(theirs), 1e-3)
        assert number not in (2, 3) or calls(model)["traced"] == traced, dict(calls(model))
    for other in seen[1:4]:
        assert_differs(seen[0], other)
    assert torch.equal(seen[4], seen[0]) and torch.equal(seen[5], seen[1])
    assert not calls(model)["eager"], dict(calls(model))


def scenario_loras_that_are_switched_often() -> None:
    """One, several, others: never those of the step before, and no other trace."""
    pack = gguf_files.pack()
    if pack is None:
        return
    switch_loras(_load(pack, "Q8_0"), _load(pack, "Q8_0"), LORA_SETS, 1e-3)
