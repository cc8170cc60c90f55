"""The accordion in the txt2img and img2img tabs, and what the webui tells an always-visible script of a generation."""

from __future__ import annotations

import html
from typing import Any

import gradio as gr
from modules import devices, scripts

from ...quality.levels import EXACT
from . import settings
from .accelerator import Accelerator
from .arguments import given
from .endings import at_the_end
from .parts import TEXT_ENCODER, VAE
from .status import lossy_of, status_line
from .switches import DONE, ENABLED, OTHERS, TITLE, Switch
from .toggles import Toggles, shown
from .xyz import chosen


class FastCompileScript(scripts.Script):
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
        # not the webui's own, which opening ticks
        with gr.Accordion(TITLE, open=False, elem_id=self.elem_id("accordion")):
            components = {ENABLED.name: shown(ENABLED, self.elem_id(ENABLED.name))}
            with gr.Row():
                for switch in OTHERS:
                    components[switch.name] = shown(switch, self.elem_id(switch.name))
            with gr.Row():
                status = gr.HTML(self._status(), elem_id=self.elem_id("status"))
                refresh = gr.Button("Refresh status", elem_id=self.elem_id("refresh"), size="sm")
            refresh.click(fn=self._status, inputs=[], outputs=[status], show_progress="hidden")
        tab = "img2img" if is_img2img else "txt2img"
        self.toggles.add(tab, components)
        # What the webui fills when a picture is done. Not the text below the picture: Gradio 4 says at each update of a
        # page that an HTML component has changed, and our answer is one, so that each open page asked 7 times a second,
        # for ever.
        self.on_after_component(
            lambda shown: shown.component.change(fn=self._status, inputs=[], outputs=[status], show_progress="hidden"),
            elem_id=f"generation_info_{tab}",
        )
        self.infotext_fields = [
            (components[ENABLED.name], TITLE),
            *((components[switch.name], _pasted(switch)) for switch in OTHERS),
        ]
        self.paste_field_names = [TITLE]
        return list(components.values())

    def process(self, p: Any, *args: Any) -> None:
        """A generation begins."""
        arguments = chosen(p, given(p, args))
        at_the_end(p, self.accelerator.end)
        self.accelerator.begin(arguments.enabled)
        if arguments.enabled:
            wanted = frozenset(name for name in (VAE, TEXT_ENCODER) if getattr(arguments, name))
            self.accelerator.attach_parts(
                p.sd_model, settings.config(arguments.cuda_graphs).replace(devices=None), wanted
            )
            p.extra_generation_params[TITLE] = "on"
            given_otherwise = {
                switch.field: str(value)
                for switch in OTHERS
                if (value := getattr(arguments, switch.name)) != switch.default
            }
            p.extra_generation_params.update(given_otherwise)

    def process_before_every_sampling(self, p: Any, *args: Any, **kwargs: Any) -> None:
        """The model, its LoRAs and what other extensions do to it are in place now."""
        arguments = chosen(p, given(p, args))
        if arguments.enabled:
            self.accelerator.attach(p.sd_model, settings.config(arguments.cuda_graphs, arguments.quality))

    def post_sample(self, p: Any, ps: Any, *args: Any) -> None:
        """The latents are there, and will be decoded. Webuis that know no such moment don't call it."""
        self.accelerator.before_decoding(ps.samples, getattr(devices, "dtype_vae", None))
        if chosen(p, given(p, args)).quality != EXACT and (done := self.accelerator.read(lossy_of)):
            p.extra_generation_params[DONE] = done

    def postprocess(self, p: Any, processed: Any, *args: Any) -> None:
        """The generation has ended. After an exception this isn't called; the webui closes its object for the
        generation then, too.
        """
        self.accelerator.end()

    def _status(self) -> str:
        last = self.accelerator.last_picture()
        return "<br>".join(html.escape(line) for line in (last, self.accelerator.read(status_line)) if line)


def _pasted(switch: Switch) -> Any:
    def value(params: dict[str, str]) -> bool | str | None:
        return switch.read(params.get(switch.field, str(switch.default))) if params.get(TITLE) == "on" else None

    return value
