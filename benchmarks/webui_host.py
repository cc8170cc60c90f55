"""Forge without its user interface, in this process: how its server makes a picture, with this extension's script."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from .absent import Absent

#: What Forge imports for pictures of other kinds, and this run doesn't use.
_UNUSED = ("cv2", "skimage", "scipy", "pandas", "pillow_avif", "sentencepiece")


def start(folder: Path, data: Path) -> set[str]:
    """Set Forge up as its server would, without extensions. Once per process.

    Args:
        folder: Forge's.
        data: a folder for what it writes.

    Returns:
        the libraries of its that aren't installed, and weren't needed so far.
    """
    absent = Absent(_UNUSED)
    absent.install()
    os.chdir(folder)
    sys.path[:0] = [str(folder), *map(str, sorted((folder / "repositories").glob("*")))]
    flags = (
        "--skip-prepare-environment --skip-install --no-download-sd-model --no-hashing --disable-all-extensions"
        " --disable-console-progressbars"
    )
    sys.argv = [
        "launch.py",
        *flags.split(),
        "--data-dir",
        str(data),
        *([] if torch.cuda.is_available() else ["--always-cpu"]),
    ]
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", GRADIO_ANALYTICS_ENABLED="False")
    from modules_forge.initialization import initialize_forge

    initialize_forge()
    from modules import shared_init

    shared_init.initialize()
    from modules import extra_networks, processing, sd_samplers, shared  # noqa: F401

    sd_samplers.set_samplers()
    extra_networks.initialize()
    shared.opts.data.update(live_previews_enable=False, show_progressbar=False, samples_save=False, grid_save=False)
    return absent.missing


def load(checkpoint: Path) -> None:
    """Make a checkpoint the one that pictures are made with; it is loaded with the first."""
    from modules import sd_models

    info = sd_models.CheckpointInfo(str(checkpoint))
    info.register()
    sd_models.model_data.forge_loading_parameters = {
        "checkpoint_info": info,
        "additional_modules": [],
        "unet_storage_dtype": None,
    }


def runner(watch: Callable[[str, Any], None]) -> Any:
    """A runner of scripts with this extension's alone.

    Args:
        watch: told ``"sampling"`` and the processing object when a sampling begins, ``"sampled"`` and the latents when
            it has ended.
    """
    from modules import scripts

    from sfast_core.hosts.webui.entry import load as load_extension

    class Watch(scripts.Script):
        """After ours."""

        def process_before_every_sampling(self, p: Any, *args: Any, **kwargs: Any) -> None:
            watch("sampling", p)

        def post_sample(self, p: Any, ps: Any, *args: Any) -> None:
            watch("sampled", ps.samples)

    found = scripts.ScriptRunner()
    both: tuple[Any, Any] = load_extension()(), Watch()
    for index, script in enumerate(both):
        script.args_from, script.args_to = (0, 1) if index == 0 else (0, 0)
        script.filename, script.alwayson = __file__, True
        found.scripts.append(script)
        found.alwayson_scripts.append(script)
    return found


def picture(scripts: Any, enabled: bool, side: int, steps: int, seed: int) -> Any:
    """Make one picture, of a prompt of its own, as the txt2img tab does. Nothing is saved.

    Returns what the webui does of it.

    Args:
        scripts: what :func:`runner` gave.
        enabled: the extension's toggle.
        side: width and height in pixels.
        steps: of Euler, with cfg 7.
        seed: the picture's; the prompt names it, as Forge keeps what it has encoded last.
    """
    from modules import processing

    p = processing.StableDiffusionProcessingTxt2Img(
        prompt=f"a red fox in the snow, number {seed}",
        negative_prompt="blurry",
        seed=seed,
        steps=steps,
        sampler_name="Euler",
        scheduler="Automatic",
        cfg_scale=7.0,
        width=side,
        height=side,
        do_not_save_samples=True,
        do_not_save_grid=True,
    )
    p.scripts, p.script_args = scripts, ({"enabled": enabled},)
    with closing(p), torch.inference_mode():
        return processing.process_images(p)
