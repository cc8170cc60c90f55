"""Captures the graphs of sizes to come, by making a picture of few steps of each as the webui makes them."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from modules import paths, processing, scripts, shared
from modules.call_queue import queue_lock

from ..sizes import Size
from ..warmed import Warmed, Watch
from .accelerator import Accelerator
from .arguments import Arguments
from .state import UnetState

try:
    from modules_forge import main_thread
except ImportError:  # A1111
    main_thread = None

log = logging.getLogger("fast_compile")


def warm_up(
    accelerator: Accelerator, sizes: Sequence[Size], arguments: Arguments, steps: int, progress: Callable[[int], None]
) -> Iterator[str]:
    """Trace and capture what a picture of each size needs, the largest first: the graphs of the smaller ones fit into
    its memory.

    The prompt and the negative prompt are empty, so the graphs are those of prompts of up to 75 tokens. Nothing is
    saved.

    Args:
        accelerator: whose states are warmed.
        sizes: width and height in pixels, and the pictures at once.
        arguments: what is compiled, and how.
        steps: per size, so many that graphs are captured.
        progress: gets the number of sizes that are done, before each.

    Yields:
        what became of a size, in words.
    """
    for done, size in enumerate(sorted(sizes, key=lambda size: -size.width * size.height * size.batch)):
        progress(done)
        with queue_lock:
            warmed = _in_the_host(lambda size=size: _picture(accelerator, size, arguments, steps))  # type: ignore[misc]
        if isinstance(warmed, str):
            yield warmed
            return
        yield f"{size}: {warmed.text()}"


def _in_the_host(call: Callable[[], Any]) -> Any:
    """``call()`` where the webui makes pictures: Forge has one thread for them."""

    def guarded() -> Any:
        try:
            return call()
        except Exception as error:  # out of memory, say
            log.warning("Fast Compile: warming up", exc_info=True)
            return f"It ended with {type(error).__name__}: {str(error).partition(chr(10))[0]}"

    return guarded() if main_thread is None else main_thread.run_and_wait_result(guarded)


def _picture(accelerator: Accelerator, size: Size, arguments: Arguments, steps: int) -> Warmed | str:
    shared.sd_model  # noqa: B018  waits for one that is being loaded
    watch = Watch(lambda: [state.engine.report for state in accelerator.states() if isinstance(state, UnetState)])
    shared.state.begin(job="fast-compile-warm-up")
    try:
        p = processing.StableDiffusionProcessingTxt2Img(
            prompt="",
            negative_prompt="",
            seed=1,
            steps=steps,
            sampler_name="Euler",
            cfg_scale=7.0,
            width=size.width,
            height=size.height,
            batch_size=size.batch,
            do_not_save_samples=True,
            do_not_save_grid=True,
        )
        p.scripts, p.script_args = _only_ours(accelerator), (vars(arguments),)
        with closing(p), _last_parameters_kept():
            processing.process_images(p)
        return "It was interrupted." if shared.state.interrupted else watch.warmed()
    finally:
        shared.state.end()


def _only_ours(accelerator: Accelerator) -> Any:
    """A runner of this extension's script alone: others might save pictures, or change them."""
    ours = (
        script
        for script in scripts.scripts_txt2img.alwayson_scripts
        if getattr(script, "accelerator", None) is accelerator
    )
    script = copy.copy(next(ours))
    script.args_from, script.args_to = 0, 1
    runner = scripts.ScriptRunner()
    runner.scripts, runner.alwayson_scripts = [script], [script]
    return runner


@contextmanager
def _last_parameters_kept() -> Iterator[None]:
    """The webui notes down each picture's parameters, for a button that reads them back."""
    file = Path(paths.data_path) / "params.txt"
    before = file.read_bytes() if file.exists() else None
    try:
        yield
    finally:
        if before is not None:
            file.write_bytes(before)
        else:
            file.unlink(missing_ok=True)
