"""``Fast Compile Settings``: for those who want to trade something. Its output goes into ``Apply Fast Compile``."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..sfast_core import CompileConfig
from .schema import CATEGORY, SETTINGS, aliases


class FastCompileSettings(io.ComfyNode):
    """Ids, input names and defaults are a promise: shared workflows keep their meaning."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """The node as ComfyUI shows it."""
        return io.Schema(
            node_id="FastCompileSettings",
            display_name="Fast Compile Settings",
            category=CATEGORY,
            description="Settings for Apply Fast Compile. Its defaults are what Apply Fast Compile does without it.",
            **aliases("compile options", "cuda graph memory"),
            inputs=[
                io.Int.Input(
                    "graph_memory_mb",
                    default=0,
                    min=0,
                    max=1_000_000,
                    tooltip=(
                        "The most GPU memory, in MB, that captured graphs may hold; the least recently used go first."
                        " 0: at each capture, what they hold and a third of what is free. Too little for your"
                        " resolutions, and graphs are captured again at each change (about 0.3 s each)."
                    ),
                ),
                io.Int.Input(
                    "capture_after",
                    default=2,
                    min=2,
                    max=1000,
                    tooltip=(
                        "The call with the same shapes at which a graph is captured. A higher number saves"
                        " captures and memory for shapes that come only a few times; until then these run"
                        " fused without a graph, which is slower."
                    ),
                ),
                io.Boolean.Input(
                    "adopt_weights",
                    default=True,
                    tooltip=(
                        "Lay the model's weights out in memory as the fused kernels want them (the values"
                        " stay the same, and the layout is undone when the model is sampled without the"
                        " node). Off: weights are left alone, and whatever needs packed weights is slower."
                    ),
                ),
                io.Boolean.Input(
                    "measure_impls",
                    default=True,
                    tooltip=(
                        "Time the kernels that could do an operation, once per GPU and shape, and remember the fastest"
                        " on disk. Off: saves those seconds the first time a shape is seen, and takes the first that"
                        " fits."
                    ),
                ),
                io.String.Input(
                    "disabled_rewrites",
                    default="",
                    tooltip=(
                        "Names of rewrites to leave out, separated by commas, as the report at /fast_compile/report"
                        " lists them. For finding out which one makes a difference; each left out costs speed."
                    ),
                ),
                io.Float.Input(
                    "quality_budget",
                    default=0.0,
                    min=0.0,
                    max=1.0,
                    step=0.001,
                    optional=True,
                    tooltip=(
                        "With a quality other than exact: the largest relative distance of the model's result from the"
                        " exact one. 0: near-exact 0.01, fast 0.03; in bfloat16 twice that."
                    ),
                ),
                io.String.Input(
                    "quality_layers",
                    default="",
                    optional=True,
                    tooltip=(
                        "With a quality other than exact: which linear layers may compute in 8 bits. Patterns of their"
                        " names, separated by commas, such as *attn*; a ! in front excludes layers: !*.ff.*. Empty:"
                        " all."
                    ),
                ),
                io.String.Input(
                    "quality_parts",
                    default="",
                    optional=True,
                    tooltip=(
                        "With a quality other than exact: what is used, separated by commas. products (in 8"
                        " bits), fp16_accumulation, reuse (steps reuse what an earlier one computed in the"
                        " model's deep part: fast only, and only if named). Empty: all but reuse."
                    ),
                ),
            ],
            outputs=[SETTINGS.Output(display_name="settings", tooltip="Connect it to Apply Fast Compile's settings.")],
        )

    @classmethod
    def validate_inputs(cls, disabled_rewrites: Any = None, quality_parts: Any = None) -> bool | str:
        """True, or what is wrong with an input, before anything runs."""
        try:
            if isinstance(disabled_rewrites, str):  # else it comes from another node: execute looks at it
                rewrite_names(disabled_rewrites)
            if isinstance(quality_parts, str):
                CompileConfig(quality_parts=_listed(quality_parts))
        except ValueError as error:
            return str(error).removeprefix("CompileConfig.")
        return True

    @classmethod
    def execute(
        cls,
        graph_memory_mb: int = 0,
        capture_after: int = 2,
        adopt_weights: bool = True,
        measure_impls: bool = True,
        disabled_rewrites: str = "",
        quality_budget: float = 0.0,
        quality_layers: str = "",
        quality_parts: str = "",
    ) -> io.NodeOutput:
        """The settings as a :class:`CompileConfig`.

        Raises:
            ValueError: an input is out of its range or names no rewrite; the message names the input.
        """
        if graph_memory_mb < 0:
            raise ValueError(f"graph_memory_mb: got {graph_memory_mb}, needs 0 (automatic) or more")
        if capture_after < 2:
            raise ValueError(f"capture_after: got {capture_after}, needs 2 or more (the first call traces)")
        config = CompileConfig(
            graph_budget_bytes=graph_memory_mb * 2**20 or None,
            capture_after=capture_after,
            adopt_weights=adopt_weights,
            measure=measure_impls,
            disabled_passes=rewrite_names(disabled_rewrites),
            quality_budget=quality_budget or None,
            quality_layers=_listed(quality_layers),
            quality_parts=_listed(quality_parts) or None,
        )
        return io.NodeOutput(config)


def _listed(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip()))


def rewrite_names(text: str) -> tuple[str, ...]:
    """The rewrites named in ``text``, sorted, each once. Former names count, too: workflows have them.

    Raises:
        ValueError: there is no such rewrite; the message lists those that there are.
    """
    from ..sfast_core.rewrite.pipeline import known_passes

    names = tuple(sorted(set(_listed(text))))
    try:
        known_passes(names)
    except ValueError as error:
        found = str(error).partition(": ")[2]
        raise ValueError(f"disabled_rewrites: there is no rewrite of such a name: {found}") from None
    return names
