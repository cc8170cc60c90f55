"""``python -m benchmarks.comfy_run MODEL VARIANTS STEPS IMAGES``: one model sampled by a real ComfyUI, one process.

Prints JSON.

A list with an object per variant: ``variant``, ``first_s``, ``sampling_s``, ``peak_bytes``, ``distance`` (of the latent
to the first variant's, relative L2). :mod:`benchmarks.comfy` starts it, once per model and allocator.
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

from .comfy_models import checkpoint, conditioning
from .comfy_variant import fast_compile
from .distance import distance

_SIDES = {"SD1.5": 512, "SDXL": 1024}


def _compiled_by_torch(model: Any) -> Any:
    from comfy_extras.nodes_torch_compile import TorchCompileModel

    return (
        TorchCompileModel.execute(model, "inductor").result[0]
        if hasattr(TorchCompileModel, "execute")
        else TorchCompileModel().patch(model, "inductor")[0]
    )


VARIANTS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda model: model,
    "compile": _compiled_by_torch,
    "ours": fast_compile,
}


def measure(name: str, variants: list[str], steps: int, images: int) -> list[dict[str, Any]]:
    """Every variant of one model, one after the other."""
    import comfy.model_management
    import comfy.sample
    import comfy.sd

    side = _SIDES[name]
    model = comfy.sd.load_state_dict_guess_config(
        checkpoint(name, torch.device("cuda")), output_vae=False, output_clip=False
    )[0]
    positive, negative = conditioning(name, 1), conditioning(name, 2)
    latent = torch.zeros([1, 4, side // 8, side // 8])

    def sample(patcher: Any, seed: int) -> tuple[torch.Tensor, float]:
        torch.cuda.synchronize()
        start = time.perf_counter()
        noise = comfy.sample.prepare_noise(latent, seed)
        result = comfy.sample.sample(
            patcher,
            noise,
            steps,
            7.0,
            "euler",
            "normal",
            positive,
            negative,
            latent,
            denoise=1.0,
            disable_pbar=True,
            seed=seed,
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
        apart = distance(runs[0][0], reference)
        peak = torch.cuda.max_memory_allocated()
        rows.append(
            {"variant": variant, "first_s": first, "sampling_s": seconds, "peak_bytes": peak, "distance": apart}
        )
    comfy.model_management.unload_all_models()
    return rows


if __name__ == "__main__":
    sys.path.insert(0, os.environ["COMFYUI_PATH"])
    import comfy.options  # noqa: F401  (it leaves this program's arguments alone)

    with torch.inference_mode():
        print(json.dumps(measure(sys.argv[1], sys.argv[2].split(","), int(sys.argv[3]), int(sys.argv[4]))))
