"""What a compiled pipeline is held to: the pictures of an uncompiled twin, and a report in which nothing ran eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import sfast_core
from sfast_core import CompileConfig
from tests.hosts.diffusers_pipelines import picture

CONFIG = CompileConfig(allow_cpu=True)
# of 0..1, in float32: a hundred times what rounding differs by, and far below what any change of the inputs makes
NEAR = 1e-4
Step = Callable[[Any], object]

# What must have been found in each model.
UNET = "fuse_group_norm_act fuse_conv_act fuse_add_layer_norm fuse_linear fuse_attention pack_context pack_embedding pack_qkv"
TEXT = "fuse_add_layer_norm fuse_linear fuse_attention pack_qkv"
DECODER = "fuse_group_norm_act fuse_conv_act fuse_attention"
DENOISER = "fuse_attention pack_qkv"


def compiled(pipeline: Any) -> Any:
    return sfast_core.compile_pipeline(pipeline, CONFIG)


def distance(a: np.ndarray, b: np.ndarray) -> float:
    assert a.shape == b.shape and np.isfinite(a).all() and np.isfinite(b).all()
    return float(np.abs(a - b).max())


def assert_same_pictures(fast: Any, twin: Any, note: str = "", **settings: Any) -> np.ndarray:
    """The first call may trace, the second runs fused. Returns the twin's picture."""
    expected = picture(twin, **settings)
    for call in ("first", "second"):
        far = distance(picture(fast, **settings), expected)
        assert far < NEAR, f"{note} {settings}: {call} call, {far:.1e} from the twin's picture"
    return expected


def reports(fast: Any) -> dict[str, Any]:
    return {module.name: module for module in fast.report().modules}


def assert_fused(fast: Any, **fusions: str) -> None:
    """Each module was traced, ran fused and never eager; ``fusions``: by module (``vae_decoder``), what must have been
    found in it.
    """
    for name, wanted in fusions.items():
        report = reports(fast)[name.replace("vae_", "vae.")]
        assert report.calls["traced"] and report.calls["fused"], report.text()
        assert not report.calls["eager"], report.text()
        for signature in report.signatures:
            assert signature.eager_because is None, report.text()
            assert all(signature.passes[fusion] for fusion in wanted.split()), report.text()


def assert_never_stale(steps: list[tuple[str, Step]], twin: Any, fast: Any, **settings: Any) -> None:
    """After each step the picture is the twin's.

    A step whose name ends in * doesn't change the picture, every other one does.
    """
    before = assert_same_pictures(fast, twin, **settings)
    for name, step in steps:
        step(twin)
        step(fast)
        after = assert_same_pictures(fast, twin, name, **settings)
        assert (distance(after, before) < NEAR) == name.endswith("*"), (
            f"{name}: the twin's picture moved by {distance(after, before):.1e}"
        )
        before = after
