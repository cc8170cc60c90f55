"""``Apply Fast Compile``: drop it between a loader and a sampler."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..sfast_core import CompileConfig
from ..sfast_core.hosts import comfy
from ..sfast_core.quality.levels import EXACT, QUALITIES
from .applying import config_of, metadata_of, switches
from .schema import CATEGORY, aliases


class ApplyFastCompile(io.ComfyNode):
    """MODEL in, MODEL out. Ids, input names and defaults are a promise: shared workflows keep their meaning."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """The node as ComfyUI shows it."""
        return io.Schema(
            node_id="ApplyFastCompile",
            display_name="Apply Fast Compile",
            category=CATEGORY,
            description=(
                "Makes the diffusion model several times faster: traces it in the first step, fuses it, and replays it"
                " as a CUDA graph. The picture stays the same up to float rounding. LoRAs may stand before or after"
                " this node. Where something can't be accelerated the model runs as it was, and the log says why."
            ),
            **aliases(
                "compile",
                "speed up",
                "faster",
                "accelerate",
                "optimize",
                "stable-fast",
                "cuda graph",
                "torch compile",
                "tensorrt",
                "sage attention",
                "teacache",
            ),
            inputs=[
                io.Model.Input(
                    "model", tooltip="The model to accelerate. It is left as it is; the output is a faster clone."
                ),
                *switches("the model"),
                io.Combo.Input(
                    "quality",
                    options=list(QUALITIES),
                    default=EXACT,
                    optional=True,
                    tooltip=(
                        "exact: what the model computes, up to float rounding. near-exact: 8 bits in as many"
                        " layers as an error budget allows, measured on your model in its first step;"
                        " pictures differ in details. fast: more of the same, within a larger budget. What"
                        " was done is shown in the badge, the report and the picture's metadata."
                    ),
                ),
            ],
            hidden=[io.Hidden.extra_pnginfo],
            outputs=[io.Model.Output(tooltip="The same model, faster.")],
        )

    @classmethod
    def execute(
        cls,
        model: Any,
        enabled: bool = True,
        cuda_graphs: bool = True,
        settings: CompileConfig | None = None,
        quality: str = EXACT,
    ) -> io.NodeOutput:
        """Clone and wrap the model.

        Raises:
            TypeError: ``model`` is no ComfyUI model, or ``settings`` are none of ``Fast Compile Settings``.
            ValueError: there is no such ``quality``.
        """
        if not enabled:
            return io.NodeOutput(model)
        config = config_of(settings, cuda_graphs).replace(quality=quality)
        return io.NodeOutput(comfy.apply(model, config, metadata_of(cls.hidden) if quality != EXACT else None))
