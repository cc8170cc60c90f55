"""Replays in a real ComfyUI. There is no CUDA here: a graph is emulated by computing again, from the inputs and weights
it was captured on.

What a real graph would read, this one reads: a LoRA that it doesn't notice is a stale picture here too.
"""

from __future__ import annotations

import gc
from typing import Any

import comfy.model_management as management
import torch
from driver import assert_close, assert_differs, calls, fast_compile, load, report_of, sample
from scenario_tools import MB, STEPS, lora, replaying


def _assert_replayed(model: Any, before: Any) -> None:
    since = calls(model) - before
    assert since["replayed"] and not (since["fused"] or since["eager"] or since["traced"]), dict(since)


def scenario_replayed() -> None:
    model, fast, graphs = replaying("sd15")
    before = calls(model)
    got = sample(fast, steps=3)
    _assert_replayed(model, before)
    assert torch.equal(sample(fast, steps=3), got)
    assert report_of(model).graph_bytes == graphs.bytes > 100 * MB
    assert_close(got, sample(load("sd15"), steps=3))


def scenario_a_lora_under_a_graph() -> None:
    """Replaced weights are laid out anew where the graph reads them, or it is captured again: never a stale picture."""
    model, fast, _ = replaying("sd15")
    twin = load("sd15")
    plain = sample(fast)
    for strength in (1.0, 0.4, None, 1.0):
        mine, theirs = (
            (fast, twin) if strength is None else (lora(fast, "sd15", strength), lora(twin, "sd15", strength))
        )
        before = calls(model)
        got = sample(mine)
        assert_close(got, sample(theirs))
        _assert_replayed(model, before)
        if strength is None:
            assert torch.equal(got, plain)
        else:
            assert_differs(got, plain)


def scenario_the_host_takes_graphs_away() -> None:
    model, fast, graphs = replaying("sd3")
    expected = sample(fast, steps=STEPS)
    assert len(management.current_loaded_models) == 2, "the model and its graphs"
    management.unload_all_models()
    assert graphs.bytes == 0 and not management.current_loaded_models
    assert fast_compile.report().modules[0].graph_bytes == 0, "the report counts what is there"
    before = calls(model)
    assert torch.equal(sample(fast, steps=STEPS), expected)
    _assert_replayed(model, before)
    assert report_of(model).signatures[0].captures == 2
    entry = next(listed for listed in management.current_loaded_models if listed.model.model is not model.model)
    assert entry.model_unload(10 * MB) is False, "a part is unloaded, the entry stays"
    assert graphs.bytes == 0
    assert torch.equal(sample(fast, steps=STEPS), expected)
    assert report_of(model).signatures[0].captures == 3


def scenario_a_plain_call_gives_the_graphs_back() -> None:
    model, fast, graphs = replaying("sd3")
    expected = sample(fast)
    sample(model)
    assert graphs.bytes == 0 and report_of(model).graph_bytes == 0
    assert torch.equal(sample(fast), expected) and graphs.bytes


def scenario_graphs_go_with_the_model() -> None:
    """Without the garbage collector, though nobody unloads anything."""
    gc.collect()
    gc.disable()
    try:
        model, fast, graphs = replaying("sd3")
        assert graphs.bytes
        del model, fast
        management.cleanup_models()
        assert graphs.bytes == 0 and not fast_compile.states()
    finally:
        gc.enable()
