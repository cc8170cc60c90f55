"""Axes for the webui's X/Y/Z plot: pictures with the toggle on beside those with it off."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from modules import scripts

from .arguments import Arguments
from .switches import SWITCHES, TITLE, Switch

log = logging.getLogger("fast_compile")
_AXES = {switch: f"[{TITLE}] {switch.shown}" for switch in SWITCHES}
_CHOICE = "_fast_compile_"  # and the argument's name: an attribute of the processing object


def add_axes() -> None:
    """Add the axes to the plot's script, once. The webui calls this when all scripts are loaded."""
    try:
        for data in scripts.scripts_data:
            if data.script_class.__module__ not in ("xyz_grid.py", "xyz_grid"):
                continue
            options = data.module.axis_options
            there = {option.label for option in options}
            for switch, label in _AXES.items():
                if label not in there:
                    options.append(data.module.AxisOption(label, str, _choose(switch), choices=_choices(switch)))
    except Exception:
        log.debug("Fast Compile: no axes for the X/Y/Z plot", exc_info=True)


def chosen(p: Any, arguments: Arguments) -> Arguments:
    """``arguments``, with what the plot has chosen for this picture."""
    values = {switch.name: getattr(p, _CHOICE + switch.name) for switch in _AXES if hasattr(p, _CHOICE + switch.name)}
    return replace(arguments, **values)


def _choices(switch: Switch) -> Any:
    return lambda: list(switch.values) or ["on", "off"]


def _choose(switch: Switch) -> Any:
    def apply(p: Any, value: str, values: list[str]) -> None:
        setattr(p, _CHOICE + switch.name, switch.read(str(value)))

    return apply
