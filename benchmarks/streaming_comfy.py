"""A UNet of a real ComfyUI of which ComfyUI keeps a part in main memory: its own call beside ours.

For ``benchmarks.streaming``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch


def find(folder: str) -> None:
    """Make ComfyUI importable, as a library."""
    sys.path.insert(0, folder)
    import comfy.options  # noqa: F401  (it leaves this program's arguments alone)
    from comfy.cli_args import args

    args.cpu = not torch.cuda.is_available()


class PartlyLoaded:
    """ComfyUI's SDXL UNet with random weights, and one call of it as a sampler makes it.

    Attributes:
        plain: its patcher.
        fast: the same model through our node.
    """

    def __init__(self, name: str, device: torch.device, batch: int) -> None:
        import comfy.sd

        from sfast_core.hosts.comfy import apply

        from .comfy_models import checkpoint

        self.name, self.device, self.batch = name, device, batch
        weights = {key: value.cpu() for key, value in checkpoint(name, device).items()}
        self.plain = comfy.sd.load_state_dict_guess_config(weights, output_vae=False, output_clip=False)[0]
        self.fast = apply(self.plain)

    @contextmanager
    def loaded(self, part: int) -> Iterator[int]:
        """``part`` percent of it stay in main memory. Gives their bytes."""
        import comfy.model_management as management
        from comfy.model_patcher import ModelPatcher

        whole = ModelPatcher.load

        def limited(
            patcher: Any,
            device_to: Any = None,
            lowvram_model_memory: float = 0,
            force_patch_weights: bool = False,
            full_load: bool = False,
        ) -> Any:
            room = int(patcher.model_size() * (1 - part / 100)) if part else lowvram_model_memory
            return whole(patcher, device_to, max(1, room), force_patch_weights, full_load and not part)

        with patch.object(ModelPatcher, "load", limited):
            management.unload_all_models()
            management.load_models_gpu([self.plain])
            weights = self.plain.model.diffusion_model.parameters()
            yield sum(weight.nbytes for weight in weights if weight.device.type == "cpu")
        management.unload_all_models()

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """What the sampler does around its steps, for ours."""
        self.fast.pre_run()
        try:
            yield
        finally:
            self.fast.cleanup()

    def call(self, patcher: Any, seed: int = 0) -> torch.Tensor:
        """One step's call."""
        from .comfy_models import conditioning

        generator, base = torch.Generator().manual_seed(seed), self.plain.model
        dtype, side = base.get_dtype(), 8 if self.name == "tiny" else 128
        ((context, extra),) = conditioning(self.name, 1)
        latent = torch.randn(self.batch, 4, side, side, generator=generator).to(self.device, torch.float32)
        sigmas = torch.full((self.batch,), 5.0, device=self.device)
        options = {
            **patcher.model_options.get("transformer_options", {}),
            "wrappers": patcher.wrappers,
            "callbacks": patcher.callbacks,
            "cond_or_uncond": [0, 1],
            "sigmas": sigmas,
        }
        more = (
            {"y": extra["pooled_output"].new_ones(self.batch, 2816).to(self.device, dtype)}
            if self.name == "SDXL"
            else {}
        )
        prompt = context.expand(self.batch, -1, -1).to(self.device, dtype)
        result: torch.Tensor = base.apply_model(latent, sigmas, c_crossattn=prompt, transformer_options=options, **more)
        return result


def report_of(model: PartlyLoaded) -> Any:
    """What became of its calls."""
    from sfast_core.hosts.comfy.install import states

    return next(state.engine.report for state in states() if state.base_model() is model.plain.model)


def comfyui() -> str | None:
    """The folder of a ComfyUI, if there is one."""
    return os.environ.get("COMFYUI_PATH")
