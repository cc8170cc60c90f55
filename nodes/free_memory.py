"""``Free Fast Compile Memory``: gives back what the captured graphs hold."""

from __future__ import annotations

import logging
from typing import Any

from comfy_api.latest import io

from ..sfast_core.hosts.comfy.events import send
from ..sfast_core.hosts.comfy.lookup import graph_bytes_by_model, release_graphs
from .schema import CATEGORY, aliases
from .shown import show

log = logging.getLogger("fast_compile")


class FastCompileFreeMemory(io.ComfyNode):
    """Anything passes through. It runs when what comes in was made anew: before that nothing is new to free."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """The node as ComfyUI shows it."""
        return io.Schema(
            node_id="FastCompileFreeMemory",
            display_name="Free Fast Compile Memory",
            category=CATEGORY,
            description=(
                "Drops every captured CUDA graph and gives its GPU memory back. Put it where the memory is needed:"
                " behind the sampler and before an upscaler, say. ComfyUI also takes this memory by itself when a model"
                " doesn't fit."
            ),
            **aliases("free vram", "unload graphs", "clear memory"),
            inputs=[
                io.AnyType.Input(
                    "anything",
                    display_name="anything",
                    tooltip=(
                        "Passed through as it is; the memory is freed when it is there. The next sampling captures its"
                        " graphs again: about 0.3 s for each size."
                    ),
                ),
            ],
            outputs=[io.AnyType.Output(display_name="anything", tooltip="What came in.")],
            is_output_node=True,
        )

    @classmethod
    def execute(cls, anything: Any = None) -> io.NodeOutput:
        """Free the graphs of all models."""
        freed = release_graphs()
        send({"graphs": graph_bytes_by_model()})
        text = (
            f"{freed / 2**20:.0f} MB of graphs freed ({freed:,} bytes)"
            if freed
            else "No graph was held: nothing to free."
        )
        log.debug("Fast Compile: %s", text)  # the node shows it
        return io.NodeOutput(anything, ui=show(text))
