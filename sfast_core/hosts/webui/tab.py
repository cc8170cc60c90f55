"""The tab "Fast Compile": the same switches, the warm-up, the report, and a button that gives memory back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr

from ..sizes import EXAMPLE, read_sizes
from . import settings
from .accelerator import Accelerator
from .arguments import Arguments
from .switches import ENABLED, SWITCHES, TITLE
from .toggles import Toggles, shown
from .warm_up import warm_up

_SIZES = f"Width x height in pixels, with xBATCH behind it for more than one picture at once: {EXAMPLE}"


def build(accelerator: Accelerator, toggles: Toggles) -> list[tuple[Any, str, str]]:
    """The tab, in the form that the webui asks for: block, title, id."""
    with gr.Blocks(analytics_enabled=False) as block:
        with gr.Row():
            switches = {switch.name: shown(switch, f"fast_compile_tab_{switch.name}") for switch in SWITCHES}
        with gr.Row():
            sizes = gr.Textbox("", label="Sizes to warm up", info=_SIZES, lines=3, elem_id="fast_compile_tab_sizes")
            warmed = gr.Textbox("", label="Warmed up", lines=3, interactive=False, elem_id="fast_compile_tab_warmed")
        warm = gr.Button("Warm up", elem_id="fast_compile_tab_warm")
        with gr.Row():
            refresh = gr.Button("Refresh", elem_id="fast_compile_tab_refresh")
            free = gr.Button("Free memory", elem_id="fast_compile_tab_free")
        text = gr.Textbox(
            _text(accelerator),
            label="Report",
            lines=20,
            max_lines=40,
            interactive=False,
            elem_id="fast_compile_tab_report",
        )
        for component in (sizes, warmed, text):
            component.do_not_save_to_config = True

        def freed() -> str:
            accelerator.free()
            return _text(accelerator)

        refresh.click(fn=lambda: _text(accelerator), inputs=[], outputs=[text])
        free.click(fn=freed, inputs=[], outputs=[text])
        warm.click(fn=_warm_up(accelerator), inputs=[sizes, *switches.values()], outputs=[warmed])
        warmed.change(fn=lambda: _text(accelerator), inputs=[], outputs=[text], show_progress="hidden")
        toggles.add("tab", switches)
        toggles.connect()
    return [(block, TITLE, "fast_compile")]


def _text(accelerator: Accelerator) -> str:
    return accelerator.read(
        lambda report: ("" if report.modules else "Nothing has run through it yet.\n") + report.text()
    )


def _warm_up(accelerator: Accelerator) -> Callable[..., str]:
    def warmed(
        text: str,
        enabled: bool,
        cuda_graphs: bool,
        vae: bool,
        text_encoder: bool,
        quality: str,
        progress: Any = gr.Progress(),  # noqa: B008  gradio looks for one
    ) -> str:
        sizes, wrong = read_sizes(text)
        arguments = Arguments(True, cuda_graphs, vae, text_encoder, quality)
        steps = settings.config(arguments.cuda_graphs).capture_after
        lines = list(
            warm_up(
                accelerator,
                sizes,
                arguments,
                steps,
                lambda done: progress((done, len(sizes)), desc="Warming up", unit="sizes"),
            )
        )
        lines += wrong  # the others are captured all the same
        if sizes and not enabled:
            lines.append(f"Now tick {ENABLED.label}: a picture made with it off gives the graphs' memory back.")
        return "\n".join(lines)

    return warmed
