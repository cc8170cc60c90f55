"""The accordion in the txt2img and img2img tabs, and what the webui tells an always-visible script of a generation."""

from __future__ import annotations

import html
from typing import Any

import gradio as gr
from modules import devices, scripts
from modules.ui_components import InputAccordion

from . import settings
from .accelerator import Accelerator
from .arguments import parse
from .status import status_line
from .toggles import Toggles
from .xyz import chosen

TITLE = "Fast Compile"
_GRAPHS_FIELD = "Fast Compile CUDA graphs"


class FastCompileScript(scripts.Script):  # type: ignore[misc]
    """One for each tab; both share the accelerator. ``entry.load`` makes the class that the webui gets."""

    accelerator: Accelerator
    toggles: Toggles

    def title(self) -> str:
        """Also its name in the API's ``alwayson_scripts``."""
        return TITLE

    def show(self, is_img2img: bool) -> Any:
        """In both tabs, always."""
        return scripts.AlwaysVisible

    def ui(self, is_img2img: bool) -> list[Any]:
        """The accordion. What it returns is the order of the arguments."""
        with InputAccordion(settings.enabled(), label=TITLE, elem_id=self.elem_id("enabled")) as enabled:
            cuda_graphs = gr.Checkbox(
                settings.cuda_graphs(),
                label="CUDA graphs: the fastest way, for GPU memory per resolution in use",
                elem_id=self.elem_id("cuda_graphs"),
            )
            with gr.Row():
                status = gr.HTML(self._status(), elem_id=self.elem_id("status"))
                refresh = gr.Button("Refresh status", elem_id=self.elem_id("refresh"), size="sm")
            refresh.click(fn=self._status, inputs=[], outputs=[status], show_progress=False)
        for component in (enabled, cuda_graphs):
            component.do_not_save_to_config = True  # or the webui would keep a second default for it in ui-config.json
        tab = "img2img" if is_img2img else "txt2img"
        self.toggles.add(tab, enabled, cuda_graphs)
        self.on_after_component(  # what the webui fills when a picture is done
            lambda shown: shown.component.change(fn=self._status, inputs=[], outputs=[status], show_progress=False),
            elem_id=f"html_info_{tab}",
        )
        self.infotext_fields = [(enabled, TITLE), (cuda_graphs, _pasted_graphs)]
        self.paste_field_names = [TITLE]
        return [enabled, cuda_graphs]

    def process(self, p: Any, *args: Any) -> None:
        """A generation begins."""
        arguments = chosen(p, parse(args))
        self.accelerator.begin(arguments.enabled)
        if arguments.enabled:
            p.extra_generation_params[TITLE] = "on"
            if not arguments.cuda_graphs:
                p.extra_generation_params[_GRAPHS_FIELD] = "False"

    def process_before_every_sampling(self, p: Any, *args: Any, **kwargs: Any) -> None:
        """The model, its LoRAs and what other extensions do to it are in place now."""
        arguments = chosen(p, parse(args))
        if arguments.enabled:
            self.accelerator.attach(p.sd_model, settings.config(arguments.cuda_graphs))

    def post_sample(self, p: Any, ps: Any, *args: Any) -> None:
        """The latents are there, and will be decoded. Webuis that know no such moment don't call it."""
        self.accelerator.before_decoding(ps.samples, getattr(devices, "dtype_vae", None))

    def postprocess(self, p: Any, processed: Any, *args: Any) -> None:
        """The generation has ended. After an exception this isn't called; the next ``process`` cleans up then."""
        self.accelerator.end()

    def _status(self) -> str:
        return html.escape(self.accelerator.read(status_line))


def _pasted_graphs(params: dict[str, str]) -> bool | None:
    return params.get(_GRAPHS_FIELD) != "False" if params.get(TITLE) == "on" else None
