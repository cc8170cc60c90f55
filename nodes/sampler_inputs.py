"""The inputs of nodes that sample: the same names and defaults as KSampler's."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io


def conditioning(what: str) -> list[Any]:
    """The two prompts. ``what`` the node does with them."""
    return [
        io.Conditioning.Input(
            "positive", tooltip=f"The prompt as the sampler gets it, ControlNets and areas included: {what}"
        ),
        io.Conditioning.Input("negative", tooltip="The negative prompt as the sampler gets it."),
    ]


def cfg() -> Any:
    """KSampler's cfg."""
    return io.Float.Input(
        "cfg",
        default=8.0,
        min=0.0,
        max=100.0,
        step=0.1,
        tooltip="As in your sampler. At 1.0 the negative prompt is left out: half the batch, and another graph.",
    )


def sampler_and_scheduler() -> list[Any]:
    """KSampler's choice of samplers and schedulers."""
    import comfy.samplers

    return [
        io.Combo.Input(
            "sampler_name",
            options=comfy.samplers.KSampler.SAMPLERS,
            default="euler",
            tooltip="As in your sampler. Some call the model twice a step and take twice as long.",
        ),
        io.Combo.Input(
            "scheduler",
            options=comfy.samplers.KSampler.SCHEDULERS,
            default="normal",
            tooltip="As in your sampler. It doesn't change how long a step takes.",
        ),
    ]
