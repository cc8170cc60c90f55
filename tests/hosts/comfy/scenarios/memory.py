"""Graphs in ComfyUI's list of loaded models.

There is no CUDA here, so the graphs are of a backend that only counts bytes.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

import comfy.model_management as management
import torch
from driver import PACK, fast_compile, load, sample
from scenario_tools import MB, fake_graphs

MEMORY = importlib.import_module(".sfast_core.hosts.comfy.memory", PACK.__name__)
CPU = torch.device("cpu")


def _entries() -> list[Any]:
    return [
        listed
        for listed in management.current_loaded_models
        if type(listed.model.model).__name__ == "FastCompileGraphs"
    ]


def _listed(count: int = 3) -> Any:
    assert not _entries()
    graphs = fake_graphs(count)
    MEMORY.keep_listed(graphs, CPU)
    MEMORY.keep_listed(graphs, CPU)
    assert len(_entries()) == 1
    return graphs


def scenario_listed_once_and_only_with_bytes() -> None:
    MEMORY.keep_listed(None, CPU)
    MEMORY.keep_listed(fake_graphs(0), CPU)
    assert not _entries()
    graphs = _listed()
    (entry,) = _entries()
    assert entry.model_memory() == entry.model_loaded_memory() == graphs.bytes and entry.model_offloaded_memory() == 0
    assert entry.device == CPU and not entry.is_dead() and not entry.currently_used
    assert entry.model not in management.loaded_models(only_currently_used=True)
    assert entry.model in management.loaded_models()


def scenario_unload_all_models_drops_every_graph() -> None:
    graphs = _listed()
    management.unload_all_models()
    assert graphs.bytes == 0 and not _entries()
    graphs.capture([torch.zeros(4)], lambda inputs: [], 10**12)
    MEMORY.keep_listed(graphs, CPU)
    assert len(_entries()) == 1, "captured again, they are listed again"


def scenario_free_memory_takes_the_least_recently_used() -> None:
    """What is asked for more than is free goes; the rest stays listed."""
    graphs = _listed(5)
    free = management.get_free_memory
    management.get_free_memory = lambda device=None, torch_free_too=False: (
        (0, 0) if torch_free_too else graphs.backend.free
    )
    try:
        management.free_memory(graphs.backend.free + 150 * MB, CPU)
    finally:
        management.get_free_memory = free
    assert 299 * MB < graphs.bytes < 301 * MB, f"{graphs.bytes / MB} MB of 500 are left"
    assert len(_entries()) == 1


def scenario_a_whole_model_beside_it() -> None:
    """Models are loaded, sampled and unloaded beside the entry, and it outlives them."""
    graphs = _listed()
    model = load("sd3")
    fast = fast_compile.apply(model)
    sample(fast), sample(model), sample(fast)
    assert len(_entries()) == 1 and graphs.bytes
    assert sum(listed.model.model is model.model for listed in management.current_loaded_models) == 1
    if hasattr(management, "unload_model_and_clones"):
        management.unload_model_and_clones(fast)
        assert all(listed.model.model is not model.model for listed in management.current_loaded_models)
        assert len(_entries()) == 1 and graphs.bytes
    management.unload_all_models()
    assert not management.current_loaded_models and graphs.bytes == 0


def scenario_a_control_net_that_reloads_what_is_in_use() -> None:
    """As the host does when a ControlNet encodes its hint: it loads the list of used models again."""
    graphs, model = _listed(), load("sd3")
    management.load_models_gpu([model])
    used = management.loaded_models(only_currently_used=True)
    assert model in used and all(type(patcher.model).__name__ != "FastCompileGraphs" for patcher in used)
    management.load_models_gpu(used)
    management.load_models_gpu([*used, _entries()[0].model])  # even if somebody did ask for it
    assert graphs.bytes and len(_entries()) == 1


def scenario_what_other_nodes_ask_an_entry() -> None:
    """Any question that a patcher answers: monitors walk the list."""
    graphs = _listed()
    (entry,) = _entries()
    patcher = entry.model
    assert (
        patcher.is_clone(patcher) and not patcher.is_clone(load("sd3")) and not getattr(patcher, "is_dynamic", bool)()
    )
    assert patcher.current_loaded_device() == CPU and patcher.load_device == CPU and patcher.clone() is patcher
    assert patcher.model_state_dict() == {} and patcher.lowvram_patch_counter() == 0 and patcher.model_dtype() is None
    assert entry.model_use_more_vram(10**9) == 0 and entry.should_reload_model() is False
    assert patcher.get_all_callbacks("on_detach_after") == [] and isinstance(repr(patcher), str)
    assert graphs.bytes


def scenario_nothing_raises_into_the_host() -> None:
    graphs = _listed()

    def broken(*args: Any) -> int:
        raise RuntimeError("a bug")

    logging.getLogger("fast_compile").setLevel(logging.CRITICAL)
    graphs.release_all = graphs.evict = broken
    (entry,) = _entries()
    assert entry.model.partially_unload(CPU, 10) == 0
    management.unload_all_models()
    assert not _entries()

    class Broken:
        bytes = 5

    MEMORY.keep_listed(Broken(), CPU)  # not even something that can't be referred to weakly
    keep = management.LoadedModel
    management.LoadedModel = broken
    try:
        MEMORY.keep_listed(fake_graphs(1), CPU)
    finally:
        management.LoadedModel = keep
    assert not [entry for entry in _entries() if entry.model.loaded_size() > 5]


def scenario_graphs_that_are_gone() -> None:
    graphs = _listed()
    (entry,) = _entries()
    patcher = entry.model
    del graphs
    assert patcher.loaded_size() == 0 and patcher.partially_unload(CPU, 10) == 0
    patcher.detach()
