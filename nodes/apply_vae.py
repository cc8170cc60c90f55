"""``Apply Fast Compile (VAE)``: drop it behind a loader."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..sfast_core import CompileConfig
from ..sfast_core.hosts import comfy
from .applying import config_of, switches
from .schema import CATEGORY, aliases


class ApplyFastCompileVAE(io.ComfyNode):
    """VAE in, VAE out. Ids, input names and defaults are a promise: shared workflows keep their meaning."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """The node as ComfyUI shows it."""
        return io.Schema(
            node_id="ApplyFastCompileVAE",
            display_name="Apply Fast Compile (VAE)",
            category=CATEGORY,
            description=(
                "Makes a VAE of pictures or videos faster: its encoder and its decoder are traced at the first picture"
                " of a size and fused. Tiled encoding and decoding go through them too. Pictures up to 512x512 are"
                " replayed as CUDA graphs. What can't be accelerated runs as it was, and the report says why."
            ),
            **aliases("compile vae", "faster decode", "speed up vae", "stable-fast"),
            inputs=[
                io.Vae.Input("vae", tooltip="The VAE to accelerate. It is left as it is; the output is a faster copy."),
                *switches("the VAE"),
                io.Int.Input(
                    "gpus",
                    default=1,
                    min=0,
                    max=64,
                    optional=True,
                    tooltip=(
                        "The number of GPUs that decode a picture, a stripe each. 0: all that are as large"
                        " as the VAE's own. 1: only that one."
                    ),
                ),
            ],
            outputs=[io.Vae.Output(tooltip="The same VAE, faster.")],
        )

    @classmethod
    def execute(
        cls,
        vae: Any,
        enabled: bool = True,
        cuda_graphs: bool = True,
        settings: CompileConfig | None = None,
        gpus: int = 1,
    ) -> io.NodeOutput:
        """Copy and compile the VAE.

        Raises:
            TypeError: ``vae`` is no VAE, or ``settings`` are none of ``Fast Compile Settings``.
            ValueError: ``gpus`` is out of its range.
        """
        if gpus < 0:
            raise ValueError(f"gpus: got {gpus}, needs 0 (all that are as large) or more")
        if not enabled:
            return io.NodeOutput(vae)
        config = config_of(settings, cuda_graphs)
        return io.NodeOutput(comfy.apply_vae(vae, config if gpus == 1 else config.replace(devices=gpus or "all")))
