"""Keeps the same switches in several places in step: the accordions of both tabs, and the extension's own tab."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import settings
from .switches import SWITCHES, Switch


def shown(switch: Switch, elem_id: str) -> Any:
    """A switch on the screen, as the settings have it whenever a page is loaded: what Gradio is given to ask, it asks
    then.
    """
    import gradio as gr

    def stands() -> bool | str:
        return settings.stands(switch)

    if switch.values:
        return gr.Radio(list(switch.values), value=stands, label=switch.label, elem_id=elem_id)
    return gr.Checkbox(stands, label=switch.label, elem_id=elem_id)


class Toggles:
    """The switches as the user interface shows them, by place."""

    def __init__(self) -> None:
        self._places: dict[str, Mapping[str, Any]] = {}

    def add(self, place: str, components: Mapping[str, Any]) -> None:
        """Another place that has them all, by name."""
        for component in components.values():
            component.do_not_save_to_config = True  # or the webui would keep a second default for it in ui-config.json
        self._places[place] = components

    def connect(self) -> None:
        """Let what a person changes in one place reach the others and the settings.

        Inside ``gr.Blocks``, once all places are there.

        What is pasted from a picture's infotext is for the next picture of that tab, and reaches nothing else.
        """
        for switch in SWITCHES:
            components = [place[switch.name] for place in self._places.values()]
            for component in components:
                others = [other for other in components if other is not component]
                component.input(
                    fn=_follow(switch, len(others)), inputs=[component], outputs=others, show_progress="hidden"
                )


def _follow(switch: Switch, others: int) -> Any:
    def changed(value: bool | str) -> Any:
        settings.remember(switch, value)
        return [value] * others if others > 1 else value

    return changed
