"""The extension's page in the webui's settings, and what the settings say."""

from __future__ import annotations

import logging
from typing import Any

from modules import shared

from ...config import CompileConfig
from ...quality.levels import EXACT, FAST, PARTS
from .switches import SWITCHES, TITLE, Switch

log = logging.getLogger("fast_compile")

_GRAPH_MEMORY = "fast_compile_graph_memory_mb"
_CAPTURE_AFTER = "fast_compile_capture_after"
_ADOPT_WEIGHTS = "fast_compile_adopt_weights"
_MEASURE = "fast_compile_measure"
_DISABLED_REWRITES = "fast_compile_disabled_rewrites"
_QUALITY_BUDGET = "fast_compile_quality_budget"
_QUALITY_LAYERS = "fast_compile_quality_layers"
_QUALITY_REUSE = "fast_compile_quality_reuse"
_GPUS = "fast_compile_gpus"
_SECTION = ("fast_compile", TITLE)


def add() -> None:
    """Add the page; the webui calls this when it builds its settings."""
    import gradio as gr

    def option(
        key: str, default: Any, label: str, info: str, component: Any = None, limits: dict[str, Any] | None = None
    ) -> None:
        shared.opts.add_option(key, shared.OptionInfo(default, label, component, limits, section=_SECTION).info(info))

    for switch in SWITCHES:
        component, limits = (gr.Radio, {"choices": list(switch.values)}) if switch.values else (None, None)
        option(switch.setting, switch.default, switch.label, switch.info, component, limits)
    option(
        _GRAPH_MEMORY,
        0,
        "Most GPU memory for CUDA graphs, in MB",
        "the least recently used go first; 0: at each capture, what they hold and a third of what is free",
        gr.Number,
        {"precision": 0},
    )
    option(
        _CAPTURE_AFTER,
        2,
        "Capture a graph at this call with the same shapes",
        "2 or more; higher saves captures for shapes that come only a few times",
        gr.Number,
        {"precision": 0},
    )
    option(
        _ADOPT_WEIGHTS,
        True,
        "Lay weights out as the fused kernels want them",
        "values stay the same, and the layout is undone when a picture is made with the toggle off",
    )
    option(_MEASURE, True, "Time kernels once per GPU and shape", "off: the first that fits is used")
    option(_DISABLED_REWRITES, "", "Rewrites to leave out", "names separated by commas, as the report lists them")
    option(
        _QUALITY_BUDGET,
        0.0,
        "Budget, where the quality isn't exact",
        "the largest relative distance of the UNet's result from the exact one; 0: near-exact 0.01, fast 0.03",
        gr.Number,
    )
    option(
        _QUALITY_LAYERS,
        "",
        "Layers that may compute in 8 bits, where the quality isn't exact",
        "patterns of their names, separated by commas; a ! in front excludes layers; empty: all",
    )
    option(
        _QUALITY_REUSE,
        False,
        "Let steps reuse what earlier ones computed deep inside the model, where the quality is fast",
        "in samplings of 9 steps or more, within 0.1 of the exact result of each step",
    )
    option(
        _GPUS,
        1,
        "GPUs that share the UNet's batches",
        "the two prompts of a cfg above 1, or several pictures; each needs a copy of the weights; 0: all that are as"
        " large as the webui's",
        gr.Number,
        {"precision": 0},
    )


def config(cuda_graphs: bool, quality: str = EXACT) -> CompileConfig:
    """What the settings and the accordion's switches say.

    A setting out of its range counts as its default, and the log says so.
    """
    fields: dict[str, Any] = {
        "graph_budget_bytes": int(_option(_GRAPH_MEMORY, 0)) * 2**20 or None,
        "capture_after": int(_option(_CAPTURE_AFTER, 2)),
        "adopt_weights": bool(_option(_ADOPT_WEIGHTS, True)),
        "measure": bool(_option(_MEASURE, True)),
        "disabled_passes": _listed(_DISABLED_REWRITES),
        "quality_budget": float(_option(_QUALITY_BUDGET, 0.0)) or None,
        "quality_layers": _listed(_QUALITY_LAYERS),
        "quality_parts": PARTS[FAST] if _option(_QUALITY_REUSE, False) else None,
        "devices": {0: "all", 1: None}.get(gpus := int(_option(_GPUS, 1)), gpus),
    }
    kept: dict[str, Any] = {"cuda_graphs": cuda_graphs, "quality": quality}
    for name, value in fields.items():
        try:
            CompileConfig(**{name: value})
        except ValueError as error:
            log.warning("Fast Compile: the setting is left at its default: %s", error)
        else:
            kept[name] = value
    return CompileConfig(**kept)


def stands(switch: Switch) -> bool | str:
    """Where a switch stands when the user interface is built."""
    value = _option(switch.setting, switch.default)
    return switch.read(str(value)) if switch.values else bool(value)


def remember(switch: Switch, value: bool | str) -> None:
    """Keep a toggle for the next start, where the webui's settings may be changed."""
    try:
        if shared.opts.set(switch.setting, value if switch.values else bool(value)):
            shared.opts.save(shared.config_filename)
    except Exception as error:  # --freeze-settings, say
        log.info("Fast Compile: the toggle isn't remembered: %s", error)


def _listed(key: str) -> tuple[str, ...]:
    return tuple(sorted({name.strip() for name in str(_option(key, "")).split(",")} - {""}))


def _option(key: str, default: Any) -> Any:
    """A setting; its default before the page was added, or where it holds nothing."""
    value = getattr(shared.opts, key, None)
    return default if value is None else value
