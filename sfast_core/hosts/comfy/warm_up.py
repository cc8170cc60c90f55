"""Captures the graphs of sizes to come, by sampling a few steps of each: the signatures are then those that the sampler
makes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..warmed import Warmed, Watch
from .lookup import config_of, states_of
from .sampling import Sampling, empty_latent, sample

Shape = tuple[int, int, int]  # width and height in pixels, pictures at once


def why_not(model: Any) -> str | None:
    """Why there is nothing to capture for ``model``, or None."""
    config = config_of(model)
    if config is None:
        return "this model doesn't come from Apply Fast Compile, or that is off"
    if model.load_device.type != "cuda" and not config.cpu_allowed():
        return f"the model runs on {model.load_device.type}: there is no NVIDIA GPU to capture graphs on"
    return None


def steps_per_size(model: Any) -> int:
    """How many steps a size takes at most: the first traces, that of ``capture_after`` captures."""
    config = config_of(model)
    return config.capture_after if config else 0


def warm_up(model: Any, sizes: Sequence[Shape], how: Sampling, progress: Callable[[int], None]) -> list[Warmed]:
    """Trace and capture what ``how`` needs at each size, the largest first: the graphs of the smaller ones fit into its
    memory.

    Args:
        model: a ModelPatcher for which :func:`why_not` gives None.
        sizes: of each the width and the height in pixels, and the number of pictures at once.
        how: the conditioning and the sampler. cfg 1 samples without the negative prompt: half the batch, another
            signature.
        progress: gets the number of sizes times :func:`steps_per_size` that are done.

    Raises:
        comfy.model_management.InterruptProcessingException: the user has cancelled.
    """
    steps = steps_per_size(model)
    order = sorted(range(len(sizes)), key=lambda place: -sizes[place][0] * sizes[place][1] * sizes[place][2])
    found = {}
    for done, place in enumerate(order):
        count = [done * steps]

        def step(count: list[int] = count) -> None:
            count[0] += 1
            progress(count[0])

        found[place] = _one(model, sizes[place], how, steps, step)
        progress((done + 1) * steps)
    return [found[place] for place in range(len(sizes))]


def _one(model: Any, size: Shape, how: Sampling, steps: int, step: Callable[[], None]) -> Warmed:
    watch = Watch(lambda: [state.engine.report for state in states_of(model)])
    latent = empty_latent(model, *size)
    sample(model, latent, how, 1, step)
    # a signature that is new or has no graph: what is captured costs one step to find out
    if set(watch.calls()) - {"replayed", "eager"}:
        sample(model, latent, how, steps - 1, step)
    return watch.warmed()
