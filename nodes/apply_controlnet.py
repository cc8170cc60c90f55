"""``Apply Fast Compile (ControlNet)``: drop it between a loader and Apply ControlNet."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..sfast_core import CompileConfig
from ..sfast_core.hosts import comfy
from .applying import config_of, switches
from .schema import CATEGORY, aliases


class ApplyFastCompileControlNet(io.ComfyNode):
    """CONTROL_NET in, CONTROL_NET out. Names and defaults are a promise: shared workflows keep their meaning."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """The node as ComfyUI shows it."""
        return io.Schema(
            node_id="ApplyFastCompileControlNet",
            display_name="Apply Fast Compile (ControlNet)",
            category=CATEGORY,
            description=(
                "Makes a ControlNet faster: its model is traced in the first step, fused, and replayed as a CUDA graph."
                " Union ControlNets and chains work, T2I-Adapters too. Strength and the range of steps can change"
                " freely. Control-LoRAs, and what can't be accelerated, run as they were, and the report says why."
            ),
            **aliases("compile controlnet", "speed up controlnet", "t2i adapter", "stable-fast"),
            inputs=[
                io.ControlNet.Input(
                    "control_net",
                    tooltip="The ControlNet to accelerate. It is left as it is; the output is a faster copy.",
                ),
                *switches("the ControlNet"),
            ],
            outputs=[io.ControlNet.Output(tooltip="The same ControlNet, faster.")],
        )

    @classmethod
    def execute(
        cls, control_net: Any, enabled: bool = True, cuda_graphs: bool = True, settings: CompileConfig | None = None
    ) -> io.NodeOutput:
        """Copy and compile the ControlNet.

        Raises:
            TypeError: ``control_net`` is no ControlNet, or ``settings`` are none of ``Fast Compile Settings``.
        """
        if not enabled:
            return io.NodeOutput(control_net)
        return io.NodeOutput(comfy.apply_controlnet(control_net, config_of(settings, cuda_graphs)))
