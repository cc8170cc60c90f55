"""``python -m benchmarks.comfy_run MODEL VARIANTS STEPS IMAGES``: one model sampled by a real ComfyUI, one process. Prints JSON.

A list with an object per variant: ``variant``, ``first_s``, ``sampling_s``, ``peak_bytes``, ``distance`` (of the latent to the first
variant's, relative L2). :mod:`benchmarks.comfy` starts it, once per model and allocator.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from .comfy_variant import fast_compile

_SHARED = {"image_size": 32, "in_channels": 4, "out_channels": 4, "model_channels": 320, "use_spatial_transformer": True, "legacy": False}
_UNETS: dict[str, dict[str, Any]] = {
    "SD1.5": {
        "num_res_blocks": [2] * 4,
        "channel_mult": [1, 2, 4, 4],
        "transformer_depth": [1] * 6 + [0] * 2,
        "transformer_depth_middle": 1,
        "transformer_depth_output": [1] * 9 + [0] * 3,
        "use_linear_in_transformer": False,
        "context_dim": 768,
        "num_heads": 8,
    },
    "SDXL": {
        "num_res_blocks": [2] * 3,
        "channel_mult": [1, 2, 4],
        "transformer_depth": [0, 0, 2, 2, 10, 10],
        "transformer_depth_middle": 10,
        "transformer_depth_output": [0, 0, 0, 2, 2, 2, 10, 10, 10],
        "use_linear_in_transformer": True,
        "context_dim": 2048,
        "num_head_channels": 64,
        "num_classes": "sequential",
        "adm_in_channels": 2816,
    },
}
_SIDES = {"SD1.5": 512, "SDXL": 1024}


def _checkpoint(name: str) -> dict[str, torch.Tensor]:
    """A state dict that ComfyUI recognises, with weights under which activations stay O(1)."""
    import comfy.ops
    from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel

    model = UNetModel(**_SHARED, **_UNETS[name], device="meta", operations=comfy.ops.disable_weight_init)
    generator = torch.Generator("cuda").manual_seed(0)
    weights = {}
    for key, parameter in model.state_dict().items():
        if parameter.dim() > 1:
            drawn = torch.randn(parameter.shape, device="cuda", generator=generator) / parameter[0].numel() ** 0.5
        else:
            is_scale = key.endswith("weight")
            drawn = torch.full(parameter.shape, float(is_scale), device="cuda")
        weights[f"model.diffusion_model.{key}"] = drawn.half().cpu()
    return weights


def _conditioning(name: str, seed: int) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    context = torch.randn(1, 77, _UNETS[name]["context_dim"], generator=generator)
    extra = {"pooled_output": torch.randn(1, 1280, generator=generator)} if name == "SDXL" else {}
    return [[context, extra]]


def _compiled_by_torch(model: Any) -> Any:
    from comfy_extras.nodes_torch_compile import TorchCompileModel

    return (
        TorchCompileModel.execute(model, "inductor").result[0]
        if hasattr(TorchCompileModel, "execute")
        else TorchCompileModel().patch(model, "inductor")[0]
    )


VARIANTS: dict[str, Callable[[Any], Any]] = {"eager": lambda model: model, "compile": _compiled_by_torch, "ours": fast_compile}


def measure(name: str, variants: list[str], steps: int, images: int) -> list[dict[str, Any]]:
    """Every variant of one model, one after the other."""
    import comfy.model_management
    import comfy.sample
    import comfy.sd

    side = _SIDES[name]
    model = comfy.sd.load_state_dict_guess_config(_checkpoint(name), output_vae=False, output_clip=False)[0]
    positive, negative = _conditioning(name, 1), _conditioning(name, 2)
    latent = torch.zeros([1, 4, side // 8, side // 8])

    def sample(patcher: Any, seed: int) -> tuple[torch.Tensor, float]:
        torch.cuda.synchronize()
        start = time.perf_counter()
        noise = comfy.sample.prepare_noise(latent, seed)
        result = comfy.sample.sample(
            patcher, noise, steps, 7.0, "euler", "normal", positive, negative, latent, denoise=1.0, disable_pbar=True, seed=seed
        )
        torch.cuda.synchronize()
        return result.float().cpu(), time.perf_counter() - start

    sample(model, 0)  # loads the weights, warms the libraries
    rows: list[dict[str, Any]] = []
    reference = None
    for variant in variants:
        patcher = VARIANTS[variant](model.clone())
        torch.cuda.reset_peak_memory_stats()
        first = sample(patcher, 0)[1]
        runs = [sample(patcher, seed) for seed in range(1, images + 1)]
        reference = runs[0][0] if reference is None else reference
        seconds = statistics.median(run[1] for run in runs)
        distance = float((runs[0][0] - reference).norm() / reference.norm())
        peak = torch.cuda.max_memory_allocated()
        rows.append({"variant": variant, "first_s": first, "sampling_s": seconds, "peak_bytes": peak, "distance": distance})
    comfy.model_management.unload_all_models()
    return rows


if __name__ == "__main__":
    sys.path.insert(0, os.environ["COMFYUI_PATH"])
    import comfy.options  # noqa: F401  (it leaves this program's arguments alone)

    with torch.inference_mode():
        print(json.dumps(measure(sys.argv[1], sys.argv[2].split(","), int(sys.argv[3]), int(sys.argv[4]))))
