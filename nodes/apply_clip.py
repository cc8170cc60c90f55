"""``Apply Fast Compile (CLIP)``: drop it behind a loader, or before or behind LoRAs."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..sfast_core import CompileConfig
from ..sfast_core.hosts import comfy
from .applying import config_of, switches
from .schema import CATEGORY, aliases


class ApplyFastCompileCLIP(io.ComfyNode):
    """CLIP in, CLIP out. Ids, input names and defaults are a promise: shared workflows keep their meaning."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """The node as ComfyUI shows it."""
        return io.Schema(
            node_id="ApplyFastCompileCLIP",
            display_name="Apply Fast Compile (CLIP)",
            category=CATEGORY,
            description=(
                "Makes text encoders faster: each CLIP, T5, BERT and language model in the object is traced at the"
                " first prompt, fused, and replayed as a CUDA graph. LoRAs may stand before or after this node; clip"
                " skip and token weights work as ever. What can't be accelerated runs as it was, and the report says"
                " why."
            ),
            **aliases("compile clip", "text encoder", "speed up prompt", "stable-fast"),
            inputs=[
                io.Clip.Input(
                    "clip",
                    tooltip="The text encoders to accelerate. They are left as they are; the output is a faster clone.",
                ),
                *switches("the CLIP"),
            ],
            outputs=[io.Clip.Output(tooltip="The same text encoders, faster.")],
        )

    @classmethod
    def execute(
        cls, clip: Any, enabled: bool = True, cuda_graphs: bool = True, settings: CompileConfig | None = None
    ) -> io.NodeOutput:
        """Copy and compile the CLIP.

        Raises:
            TypeError: ``clip`` is no CLIP, or ``settings`` are none of ``Fast Compile Settings``.
        """
        if not enabled:
            return io.NodeOutput(clip)
        return io.NodeOutput(comfy.apply_clip(clip, config_of(settings, cuda_graphs)))
