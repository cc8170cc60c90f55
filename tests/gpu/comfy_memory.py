"""Samples a model plain and compiled in a real ComfyUI that manages memory in one of its ways, and prints as JSON what
came of it.

In ComfyUI's Python, with ``COMFYUI_PATH``; ``test_comfy_memory_gpu.py`` starts it, once for each way. Weights are
random: SD1.5's with few blocks, and all of them where it is about half of them.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

FREE_WHEN_TIGHT = 2 * 2**30  #: ComfyUI keeps 1.2 GB for inference, so that half of the model's 1.6 GB are loaded
FREE_WHEN_DYNAMIC = 5 * 2**28  #: less than the model: dynamic VRAM keeps nothing free for inference, but what it takes
STEPS = 4
_LEFT_FREE = {"tight": FREE_WHEN_TIGHT, "dynamic tight": FREE_WHEN_DYNAMIC}


def prepare(mode: str) -> Any:
    """Start ComfyUI's memory management as its command line does. Returns what must live on."""
    from comfy.cli_args import args

    args.lowvram, args.novram = mode == "lowvram", mode == "novram"
    import torch

    if mode.startswith("dynamic"):
        import comfy_aimdo.control as control

        control.init()
        if not control.init_device(0):
            return None
        import comfy.memory_management
        import comfy.model_patcher

        comfy.model_patcher.CoreModelPatcher = comfy.model_patcher.ModelPatcherDynamic
        comfy.memory_management.aimdo_enabled = True
    if mode in _LEFT_FREE:
        return torch.empty(torch.cuda.mem_get_info()[0] - _LEFT_FREE[mode], dtype=torch.uint8, device="cuda")
    return args


def facts(mode: str) -> dict[str, Any]:
    """Pictures without and with a LoRA, and without it again."""
    import comfy.model_management
    import comfy.sample
    import comfy.sd
    import torch

    models = importlib.import_module("benchmarks.comfy_models")
    hooks = importlib.import_module("sfast_core.hosts.comfy")
    tight = mode in _LEFT_FREE
    name, device = ("SD1.5", torch.device("cpu")) if tight else ("tiny", torch.device("cuda"))
    weights = {key: value.cpu() for key, value in models.checkpoint(name, device).items()}
    loaded = [
        comfy.sd.load_state_dict_guess_config(dict(weights), output_vae=False, output_clip=False)[0] for _ in range(2)
    ]
    plain, fast = loaded[0], hooks.apply(loaded[1])
    lora = {key: value.cpu() for key, value in models.lora(name, 1, device).items()}
    prompts = models.conditioning(name, 1), models.conditioning(name, 2)
    latent = torch.zeros([1, 4, 64, 64])
    noise = comfy.sample.prepare_noise(latent, 1)

    def sample(patcher: Any) -> Any:
        result = comfy.sample.sample(
            patcher, noise, STEPS, 7.0, "euler", "normal", *prompts, latent, disable_pbar=True, seed=1
        )
        return result.float().cpu()

    def with_lora(patcher: Any) -> Any:
        return comfy.sd.load_lora_for_models(patcher, None, dict(lora), 0.8, 0.0)[0]

    found: dict[str, Any] = {"patcher": type(fast).__name__, "distances": [], "resident": []}
    pictures = []
    for change in (lambda patcher: patcher, lambda patcher: patcher, with_lora, with_lora, lambda patcher: patcher):
        expected = sample(change(plain))
        if tight:
            comfy.model_management.unload_all_models()
        picture = sample(change(fast))
        found["resident"].append(fast.loaded_size() / fast.model_size())
        if tight:
            comfy.model_management.unload_all_models()
        found["distances"].append(((picture - expected).norm() / expected.norm()).item())
        pictures.append(picture)
    found["same_bits"] = bool((pictures[4] == pictures[1]).all())
    found["lora_acts"] = ((pictures[3] - pictures[1]).norm() / pictures[1].norm()).item()
    (module,) = hooks.report().as_dict()["modules"]
    found |= {
        "calls": module["calls"],
        "reasons": module["reasons"],
        "streamed": max(each["streamed_bytes"] + each["kept_bytes"] for each in module["signatures"]),
    }
    comfy.model_management.unload_all_models()
    found["graph_bytes_unloaded"] = sum(module["graph_bytes"] for module in hooks.report().as_dict()["modules"])
    return found


def switches() -> dict[str, Any]:
    """Bytes that the driver has free after each of ten switches between two compiled models, each of which is unloaded
    for the other.
    """
    import comfy.model_management
    import comfy.sample
    import comfy.sd
    import torch

    models = importlib.import_module("benchmarks.comfy_models")
    hooks = importlib.import_module("sfast_core.hosts.comfy")
    weights = models.checkpoint("tiny", torch.device("cuda"))
    loaded = [
        hooks.apply(comfy.sd.load_state_dict_guess_config(dict(weights), output_vae=False, output_clip=False)[0])
        for _ in range(2)
    ]
    prompts = models.conditioning("tiny", 1), models.conditioning("tiny", 2)
    latent = torch.zeros([1, 4, 64, 64])
    noise = comfy.sample.prepare_noise(latent, 1)
    free = []
    for turn in range(10):
        model = loaded[turn % 2]
        comfy.sample.sample(model, noise, STEPS, 7.0, "euler", "normal", *prompts, latent, disable_pbar=True, seed=1)
        comfy.model_management.unload_all_models()
        torch._C._cuda_clearCublasWorkspaces()  # 32 MiB of a thread that has called cuBLAS without a graph, until the next
        comfy.model_management.soft_empty_cache(True)
        free.append(torch.cuda.mem_get_info()[0])
    calls = [module["calls"] for module in hooks.report().as_dict()["modules"]]
    return {"free": free, "calls": calls}


def main() -> None:
    """In the mode that the command line names, or ``switches``."""
    from comfy_nodes import find_modules

    find_modules(os.environ["COMFYUI_PATH"])
    import comfy.options  # noqa: F401  arguments stay unparsed
    import torch

    if sys.argv[1] == "switches":
        with torch.inference_mode():
            print("\n" + json.dumps(switches()), flush=True)
        return
    kept = prepare(sys.argv[1])
    if kept is None:
        print("\n" + json.dumps({"missing": "dynamic VRAM isn't available here"}), flush=True)
        return
    with torch.inference_mode():
        print("\n" + json.dumps(facts(sys.argv[1])), flush=True)


if __name__ == "__main__":
    main()
