"""ComfyUI's own sampler, as the node KSampler calls it, for what measures or prepares a model rather than makes a
picture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Sampling:
    """What KSampler is told besides the model and the latent."""

    positive: Any
    negative: Any
    cfg: float = 8.0
    sampler: str = "euler"
    scheduler: str = "normal"
    seed: int = 0


def empty_latent(model: Any, width: int, height: int, batch: int = 1) -> torch.Tensor:
    """A latent of zeros for ``batch`` pictures of this size in pixels, with the channels and the scale that ``model``
    has.
    """
    import comfy.model_management
    import comfy.sample

    latent_format = model.get_model_object("latent_format")
    scale = getattr(latent_format, "spacial_downscale_ratio", 8)
    shape = (batch, latent_format.latent_channels, height // scale, width // scale)
    return comfy.sample.fix_empty_latent_channels(
        model, torch.zeros(shape, device=comfy.model_management.intermediate_device())
    )


def sample(
    model: Any, latent: torch.Tensor, how: Sampling, steps: int, on_step: Callable[[], None] | None = None
) -> torch.Tensor:
    """Sample ``latent``, with cond and uncond batched, padded and scheduled as in any workflow.

    ``on_step`` is called after each step.

    Raises:
        comfy.model_management.InterruptProcessingException: the user has cancelled.
    """
    import comfy.model_management
    import comfy.sample

    def callback(*_: Any) -> None:
        if on_step is not None:
            on_step()
        comfy.model_management.throw_exception_if_processing_interrupted()

    noise = comfy.sample.prepare_noise(latent, how.seed)
    return comfy.sample.sample(
        model,
        noise,
        steps,
        how.cfg,
        how.sampler,
        how.scheduler,
        how.positive,
        how.negative,
        latent,
        denoise=1.0,
        callback=callback,
        disable_pbar=True,
        seed=how.seed,
    )
