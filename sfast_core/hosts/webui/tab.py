"""The tab "Fast Compile": the same switches, the report, and a button that gives memory back."""

from __future__ import annotations

from typing import Any

import gradio as gr

from . import settings
from .accelerator import Accelerator
from .toggles import Toggles

TITLE = "Fast Compile"


def build(accelerator: Accelerator, toggles: Toggles) -> list[tuple[Any, str, str]]:
    """The tab, in the form that the webui asks for: block, title, id."""
    with gr.Blocks(analytics_enabled=False) as block:
        enabled = gr.Checkbox(settings.enabled(), label="Enable Fast Compile", elem_id="fast_compile_tab_enabled")
        cuda_graphs = gr.Checkbox(settings.cuda_graphs(), label="CUDA graphs", elem_id="fast_compile_tab_cuda_graphs")
        with gr.Row():
            refresh = gr.Button("Refresh", elem_id="fast_compile_tab_refresh")
            free = gr.Button("Free memory", elem_id="fast_compile_tab_free")
        text = gr.Textbox(_text(accelerator), label="Report", lines=20, max_lines=40, interactive=False, elem_id="fast_compile_tab_report")
        for component in (enabled, cuda_graphs, text):
            component.do_not_save_to_config = True

        def freed() -> str:
            accelerator.free()
            return _text(accelerator)

        refresh.click(fn=lambda: _text(accelerator), inputs=[], outputs=[text])
        free.click(fn=freed, inputs=[], outputs=[text])
        toggles.add("tab", enabled, cuda_graphs)
        toggles.connect()
    return [(block, TITLE, "fast_compile")]


def _text(accelerator: Accelerator) -> str:
    return accelerator.read(lambda report: ("" if report.modules else "Nothing has run through it yet.\n") + report.text())
