"""``Fast Compile Report``: what was fused and what not and why, as text and as a picture, after the models have run."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..sfast_core.hosts.comfy.lookup import report_of
from ..sfast_core.reporting.report import Report
from .report_picture import draw
from .schema import CATEGORY, aliases
from .shown import show


class FastCompileReport(io.ComfyNode):
    """An output node. It runs at every queue, as all behind it would: so it gives on nothing of what it gets."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """The node as ComfyUI shows it."""
        return io.Schema(
            node_id="FastCompileReport",
            display_name="Fast Compile Report",
            category=CATEGORY,
            description=(
                "What Fast Compile did: how the calls of each model ran, what was fused, what was not and why, what the"
                " graphs hold, and what tracing and capturing took. Connect 'after' to the sampler's output, so that it"
                " is asked when the sampler is done. It runs at every queue and takes milliseconds."
            ),
            **aliases("fast compile statistics", "why not faster", "debug compile"),
            inputs=[
                io.AnyType.Input(
                    "of",
                    display_name="of",
                    optional=True,
                    tooltip=(
                        "A MODEL, VAE, CLIP or CONTROL_NET: the report of this one. Unconnected: of all that are"
                        " loaded."
                    ),
                ),
                io.AnyType.Input(
                    "after",
                    display_name="after",
                    optional=True,
                    tooltip=(
                        "What must be done first, such as the sampler's LATENT or the decoded IMAGE. Unconnected, the"
                        " report may be made before anything has run."
                    ),
                ),
            ],
            outputs=[
                io.String.Output(display_name="text", tooltip="The whole report to read."),
                io.Image.Output(display_name="picture", tooltip="The same as a picture."),
            ],
            is_output_node=True,
        )

    @classmethod
    def fingerprint_inputs(cls, **_: Any) -> float:
        """Never the same: what has happened since is not among the inputs."""
        return float("nan")

    @classmethod
    def execute(cls, of: Any = None, after: Any = None) -> io.NodeOutput:
        """The report of ``of``. ``after`` is only waited for."""
        text, picture = report_of(of, lambda report: (_text(of, report), draw(report).tensor()))
        return io.NodeOutput(text, picture, ui=show(text))


def _text(of: Any, report: Report) -> str:
    if report.modules:
        return report.text()
    what = "It has not run" if of is not None else "No model has run"
    return (
        f"{report.text()}\n{what} through Fast Compile. Is Apply Fast Compile between the loader and the sampler, and"
        " switched on? Is 'after' connected to what the sampler gives?"
    )
