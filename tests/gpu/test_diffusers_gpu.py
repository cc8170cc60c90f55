"""diffusers pipelines on a real GPU, with their models resident or taken there by accelerate: the pictures of an
uncompiled twin.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

diffusers = pytest.importorskip("diffusers")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import sfast_core  # noqa: E402
from tests.hosts import diffusers_pipelines as tiny  # noqa: E402
from tests.hosts.diffusers_checks import distance, reports  # noqa: E402
from tests.hosts.diffusers_pipelines import picture  # noqa: E402

pytestmark = pytest.mark.gpu
FAR = 0.03  # of 0..1, in float16: eight steps of an 8-bit picture
PLACES = {
    "resident": lambda pipeline: pipeline.to("cuda"),
    "model offloading": lambda pipeline: pipeline.enable_model_cpu_offload(device="cuda"),
    "sequential offloading": lambda pipeline: pipeline.enable_sequential_cpu_offload(device="cuda"),
    "group offloading, blocks": lambda pipeline: pipeline.enable_group_offload(
        torch.device("cuda"), offload_type="block_level", num_blocks_per_group=1
    ),
    "group offloading, layers": lambda pipeline: pipeline.enable_group_offload(
        torch.device("cuda"), offload_type="leaf_level", use_stream=True
    ),
}


def _half(pipeline: Any) -> Any:
    return pipeline.to(torch.float16)


@pytest.mark.parametrize("compiled_first", [True, False], ids=["compiled, then placed", "placed, then compiled"])
@pytest.mark.parametrize("place", PLACES)
def test_pictures_wherever_the_models_lie(place: str, compiled_first: bool) -> None:
    """The second picture of a prompt has the bits of the first; another one and another size come between."""
    twin, fast = _half(tiny.sd()), _half(tiny.sd())
    if place.startswith("group") and not hasattr(twin, "enable_group_offload"):
        pytest.skip("this diffusers has no group offloading for pipelines")
    PLACES[place](twin)
    if compiled_first:
        fast = sfast_core.compile_pipeline(fast)
        PLACES[place](fast)
    else:
        PLACES[place](fast)
        fast = sfast_core.compile_pipeline(fast)
    if place == "group offloading, layers":
        picture(fast)  # each layer's first call tells diffusers which one comes next: it runs as it was
    first = picture(fast)
    assert distance(first, picture(twin)) < FAR
    for settings in ({"prompt": "blue owl"}, {"height": 48}):
        assert distance(picture(fast, **settings), picture(twin, **settings)) < FAR, settings
    assert (picture(fast) == first).all()
    for name, report in reports(fast).items():
        calls = report.calls
        if place == "resident" and calls:
            assert calls["replayed"] and not calls["eager"], f"{name}\n{report.text()}"
        assert calls["eager"] == sum(report.reasons.values()), f"{name}\n{report.text()}"
