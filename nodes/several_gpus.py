"""``Fast Compile on Several GPUs``: computes a model's calls in parts, one on each GPU."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..sfast_core.hosts import comfy
from .schema import CATEGORY, aliases


class FastCompileSeveralGPUs(io.ComfyNode):
    """MODEL in, MODEL out. Ids, input names and defaults are a promise: shared workflows keep their meaning."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """The node as ComfyUI shows it."""
        return io.Schema(
            node_id="FastCompileSeveralGPUs",
            display_name="Fast Compile on Several GPUs",
            category=CATEGORY,
            description=(
                "Splits each call between GPUs: the two prompts of a cfg above 1, several pictures,"
                " or the tokens of one picture or video. Each GPU gets a copy of the model's"
                " weights. It compiles the model as Apply Fast Compile does, with that node's"
                " settings if there is one. What can't be split runs on the first GPU, and the"
                " report says why."
            ),
            **aliases("multi gpu", "multigpu", "two gpus", "parallel", "split", "distributed", "xdit"),
            inputs=[
                io.Model.Input(
                    "model", tooltip="The model to accelerate. It is left as it is; the output is a faster clone."
                ),
                io.Int.Input(
                    "gpus",
                    default=0,
                    min=0,
                    max=64,
                    tooltip=(
                        "The number of GPUs. 0: all that are as large and as new as the model's own. 1: only that one."
                    ),
                ),
                io.String.Input(
                    "devices",
                    default="",
                    optional=True,
                    tooltip=(
                        "Which GPUs to use, separated by commas, such as cuda:0, cuda:2. Empty: as many as"
                        " gpus says. The model's own is always one of them."
                    ),
                ),
            ],
            outputs=[io.Model.Output(tooltip="The same model, on several GPUs.")],
        )

    @classmethod
    def execute(cls, model: Any, gpus: int = 0, devices: str = "") -> io.NodeOutput:
        """Clone and wrap the model.

        Raises:
            TypeError: ``model`` is no ComfyUI model.
            ValueError: an input is out of its range or names no device.
        """
        if gpus < 0:
            raise ValueError(f"gpus: got {gpus}, needs 0 (all that are as large) or more")
        named = tuple(name for part in devices.split(",") if (name := part.strip()))
        return io.NodeOutput(comfy.apply_devices(model, named or gpus or "all"))
