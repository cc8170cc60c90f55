"""``Fast Compile Benchmark``: eager against fast, on the user's own model in the real sampler."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from comfy_api.latest import io

from ..sfast_core.hosts.comfy.benchmark import NO_GPU, compare, rounds_in_words, steps_in_all, why_not
from ..sfast_core.hosts.comfy.board import measured
from ..sfast_core.hosts.comfy.events import send
from ..sfast_core.hosts.comfy.lookup import graph_bytes_by_model
from ..sfast_core.hosts.comfy.sampling import Sampling
from .picture import AMBER, BLUE, FAINT, GREEN, RED, Picture
from .sampler_inputs import cfg, conditioning, sampler_and_scheduler
from .schema import CATEGORY, aliases
from .shown import show

if TYPE_CHECKING:
    from ..sfast_core.hosts.comfy.benchmark import Comparison


class FastCompileBenchmark(io.ComfyNode):
    """Measures and leaves nothing behind."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """The node as ComfyUI shows it."""
        return io.Schema(
            node_id="FastCompileBenchmark",
            display_name="Fast Compile Benchmark",
            category=CATEGORY,
            description=(
                "Samples your model plain and fast in turn, from the same noise, and compares times and latents. It"
                " takes as long as 2 x rounds pictures and a little more, at every queue (bypass it when you don't need"
                " it), and can be cancelled. Afterwards everything is as before; graphs that the model had are captured"
                " again when they are needed."
            ),
            **aliases("speed test", "measure compile", "it/s"),
            inputs=[
                io.Model.Input(
                    "model", tooltip="From a loader, or from Apply Fast Compile: then its settings are measured."
                ),
                *conditioning("then sampling takes as long as for your pictures."),
                *(
                    io.Int.Input(
                        name,
                        default=1024,
                        min=16,
                        max=16384,
                        step=8,
                        tooltip="Of the pictures, in pixels. Larger takes longer.",
                    )
                    for name in ("width", "height")
                ),
                io.Int.Input(
                    "batch_size",
                    default=1,
                    min=1,
                    max=4096,
                    tooltip="Pictures at once. More takes longer and more memory.",
                ),
                io.Int.Input(
                    "steps",
                    default=20,
                    min=1,
                    max=1000,
                    tooltip="Steps of each timed sampling. Fewer: done sooner, less exact.",
                ),
                cfg(),
                *sampler_and_scheduler(),
                io.Int.Input(
                    "rounds",
                    default=3,
                    min=1,
                    max=100,
                    tooltip=(
                        "How often plain and fast are sampled in turn; the medians count. Each takes two samplings and"
                        " some steps."
                    ),
                ),
            ],
            outputs=[
                io.Image.Output(display_name="picture", tooltip="A bar chart of the times."),
                io.String.Output(display_name="text", tooltip="The numbers."),
            ],
            is_output_node=True,
        )

    @classmethod
    def fingerprint_inputs(cls, **_: Any) -> float:
        """Never the same: whoever queues it wants to measure."""
        return float("nan")

    @classmethod
    def execute(
        cls,
        model: Any,
        positive: Any,
        negative: Any,
        width: int = 1024,
        height: int = 1024,
        batch_size: int = 1,
        steps: int = 20,
        cfg: float = 8.0,
        sampler_name: str = "euler",
        scheduler: str = "normal",
        rounds: int = 3,
    ) -> io.NodeOutput:
        """Measure, draw and tell."""
        import comfy.utils

        if (reason := why_not(model)) is not None:
            return io.NodeOutput(
                Picture().title("Fast Compile Benchmark").line(reason, AMBER).tensor(), reason, ui=show(reason)
            )
        bar = comfy.utils.ProgressBar(steps_in_all(model, steps, rounds))
        how = Sampling(positive, negative, cfg, sampler_name, scheduler)
        found = compare(model, (width, height, batch_size), how, steps, rounds, lambda: bar.update(1))
        send({"graphs": graph_bytes_by_model()})
        measured(found.model, found.inputs, found.speedup)
        return io.NodeOutput(draw(found).tensor(), found.text(), ui=show(found.text()))


def draw(found: Comparison) -> Picture:
    """The chart: a bar each for eager and fast, as long as the time of one sampling."""
    eager, fast = statistics.median(found.eager_s), statistics.median(found.fast_s)
    width, height, batch = found.shape
    picture = (
        Picture()
        .title(f"{found.speedup:.2f} x eager")
        .line(
            f"{found.model}, {width}x{height}{f' x{batch}' if batch > 1 else ''}, {found.steps} steps, {found.device}",
            FAINT,
        )
    )
    if not found.device.startswith("cuda"):
        picture.line(NO_GPU, AMBER)
    longest = max(eager, fast)
    for label, seconds, colour in (("eager", eager, BLUE), ("fast", fast, GREEN)):
        picture.bar(label, f"{seconds:.3f} s, {found.steps / seconds:.1f} steps/s", [(seconds / longest, colour)])
    picture.gap().line(
        f"Getting ready took {found.ready_s:.2f} s for the first {found.ready_steps} steps, once per size."
    )
    picture.line(
        f"Largest difference between the two latents: {found.largest:.2e}; their values spread by {found.spread:.2e}."
    )
    picture.line(f"These are {rounds_in_words(len(found.fast_s))}. Graphs: {found.graph_bytes / 2**20:.0f} MB.", FAINT)
    for reason, count in found.reasons.most_common(6):
        picture.line(f"as before, {count}x: {reason}", RED)
    return picture
