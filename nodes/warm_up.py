"""``Fast Compile Warm-Up``: captures the graphs of the sizes to come, so that no queue waits for them."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..sfast_core.hosts.comfy.lookup import graph_bytes
from ..sfast_core.hosts.comfy.sampling import Sampling
from ..sfast_core.hosts.comfy.warm_up import steps_per_size, warm_up, why_not
from ..sfast_core.hosts.sizes import EXAMPLE, parse_sizes
from .sampler_inputs import cfg, conditioning
from .schema import CATEGORY, aliases
from .shown import show


class FastCompileWarmUp(io.ComfyNode):
    """MODEL in, the same MODEL out, traced and captured for each size."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """The node as ComfyUI shows it."""
        return io.Schema(
            node_id="FastCompileWarmUp",
            display_name="Fast Compile Warm-Up",
            category=CATEGORY,
            description=(
                "Captures the graphs of several sizes beforehand, by sampling two steps of each, so that later queues"
                " start fast. Put it between Apply Fast Compile and the sampler. Each size takes about as long as its"
                " first picture would have waited, and its graph's memory from then on."
            ),
            **aliases("warmup", "precompile", "capture cuda graphs"),
            inputs=[
                io.Model.Input(
                    "model", tooltip="From Apply Fast Compile. Any other model passes through, and nothing is captured."
                ),
                *conditioning(
                    "its length in tokens is captured too. When it changes, a step of each size is sampled again."
                ),
                io.String.Input(
                    "sizes",
                    default="1024x1024",
                    multiline=True,
                    tooltip=(
                        "WIDTHxHEIGHT in pixels, with xBATCH behind it for more than one picture, in lines or behind"
                        f" commas: {EXAMPLE}. Each costs its first calls now and GPU memory for its graph."
                    ),
                ),
                cfg(),
            ],
            outputs=[io.Model.Output(tooltip="The same model.")],
        )

    @classmethod
    def validate_inputs(cls, sizes: Any = None) -> bool | str:
        """True, or what is wrong with the sizes, before anything runs."""
        if not isinstance(sizes, str):  # they come from another node: execute looks at them
            return True
        try:
            parse_sizes(sizes)
        except ValueError as error:
            return str(error)
        return True

    @classmethod
    def execute(
        cls, model: Any, positive: Any, negative: Any, sizes: str = "1024x1024", cfg: float = 8.0
    ) -> io.NodeOutput:
        """Warm ``model`` up.

        Raises:
            ValueError: a size can't be read; the message names it.
        """
        import comfy.utils

        wanted = parse_sizes(sizes)
        if (reason := why_not(model)) is not None:
            return io.NodeOutput(model, ui=show(f"Nothing was captured: {reason}."))
        bar = comfy.utils.ProgressBar(len(wanted) * steps_per_size(model))
        before, found = graph_bytes(), warm_up(model, wanted, Sampling(positive, negative, cfg), bar.update_absolute)
        lines = [f"{size}: {warmed.text()}" for size, warmed in zip(wanted, found, strict=True)]
        if graph_bytes() < before + sum(warmed.graph_bytes for warmed in found):
            lines.append(
                "The graphs of some sizes were dropped for others: raise graph_memory_mb, or capture fewer sizes."
            )
        return io.NodeOutput(model, ui=show("\n".join(lines)))
