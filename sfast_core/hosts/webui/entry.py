"""Registers everything with the webui. Imported, and thereby all the rest, while the webui loads
``scripts/fast_compile.py``.
"""

from __future__ import annotations

from modules import script_callbacks

from . import routes, settings, tab, xyz
from .accelerator import Accelerator
from .script import FastCompileScript
from .toggles import Toggles


def load() -> type[FastCompileScript]:
    """Register the callbacks. Returns the class of the script, which the webui finds in the file that calls this.

    "Reload UI" unloads the extension and calls this again.
    """
    accelerator, toggles = Accelerator(), Toggles()

    def unloaded() -> None:
        accelerator.end()
        accelerator.drop()

    script_callbacks.on_ui_settings(settings.add)
    script_callbacks.on_ui_tabs(lambda: tab.build(accelerator, toggles))
    script_callbacks.on_app_started(lambda _, app: routes.add_route(app, accelerator))
    script_callbacks.on_model_loaded(accelerator.loaded)
    script_callbacks.on_before_ui(xyz.add_axes)
    script_callbacks.on_cfg_denoiser(
        lambda params: accelerator.before_step(getattr(params, "total_sampling_steps", None))
    )
    script_callbacks.on_script_unloaded(unloaded)
    return type("FastCompile", (FastCompileScript,), {"accelerator": accelerator, "toggles": toggles})
