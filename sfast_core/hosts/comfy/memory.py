"""Captured graphs in ComfyUI's own list of loaded models, so that its memory management counts them and can take them
away.

``free_memory``, ``unload_all_models`` and the server's ``/free`` walk that list and ask each entry for its size, to
unload a part of it, or to go. The graphs of a device are one entry there, and so are the copies of a model's weights on
another GPU: the smallest patcher that answers these questions. A patcher's own callbacks can't do it: when a model was
last sampled without our node, ``unload_all_models`` calls none of them.
"""

from __future__ import annotations

import functools
import logging
import weakref
from typing import Any, Protocol

import torch

log = logging.getLogger("fast_compile")


class Held(Protocol):
    """Memory of ours on a device: its graphs, or copies of weights."""

    @property
    def bytes(self) -> int: ...

    def evict(self, wanted_bytes: int) -> int: ...

    def release_all(self) -> int: ...


class FastCompileGraphs(torch.nn.Module):
    """What an entry names as its model.

    Holds nothing: a graph reads the weights of the model that it was captured from.
    """

    device: torch.device | None = None


@functools.cache
def _patcher_class() -> Any:
    from comfy.model_patcher import ModelPatcher

    class GraphsPatcher(ModelPatcher):
        """One device's graphs as ComfyUI sees a loaded model. Nothing in here raises into the host."""

        def __init__(self, graphs: Held, device: torch.device) -> None:
            self._graphs = weakref.ref(graphs)  # first: some versions ask for the size while they are made
            super().__init__(FastCompileGraphs(), load_device=device, offload_device=torch.device("cpu"))
            self.model.device = device

        def loaded_size(self) -> int:
            """Bytes that the graphs hold now."""
            graphs = self._graphs()
            try:
                return graphs.bytes if graphs is not None else 0
            except RuntimeError:  # another thread captures at this moment
                return 0

        def model_size(self) -> int:
            """The same: a graph is never partly loaded."""
            return self.loaded_size()

        def current_loaded_device(self) -> torch.device:
            return self.load_device

        def partially_load(self, device_to: Any, extra_memory: int = 0, *args: Any, **kwargs: Any) -> int:
            """Graphs come back when they are captured again."""
            return 0

        def partially_unload(self, device_to: Any, memory_to_free: int = 0, *args: Any, **kwargs: Any) -> int:
            """Evict least recently used graphs; returns the bytes released."""
            return self._release(lambda graphs: graphs.evict(memory_to_free))

        def detach(self, unpatch_all: bool = True) -> Any:
            """Drop every graph when the host unloads. Without ``unpatch_all`` it only renews the entry."""
            if unpatch_all:
                self._release(lambda graphs: graphs.release_all())
            return self.model

        def is_clone(self, other: Any) -> bool:
            return other is self

        def clone(self, *args: Any, **kwargs: Any) -> Any:
            return self

        def __del__(self) -> None:
            """The graphs outlive the entry."""

        def _release(self, release: Any) -> int:
            graphs = self._graphs()
            try:
                return int(release(graphs)) if graphs is not None else 0
            except Exception:
                log.warning(
                    "Fast Compile: graphs couldn't be released for ComfyUI, which frees other memory; please report it",
                    exc_info=True,
                )
                return 0

    return GraphsPatcher


#: The entry of each device's graphs. The host's list holds patchers weakly, so somebody has to.
_ENTRIES: weakref.WeakKeyDictionary[Held, Any] = weakref.WeakKeyDictionary()


def make_room(size: int, device: torch.device) -> None:
    """Have the host free memory of a device, so that so many bytes are to be had. Never raises."""
    try:
        import comfy.model_management

        comfy.model_management.free_memory(size, device)
    except Exception:
        log.debug("Fast Compile: ComfyUI couldn't free memory of %s", device, exc_info=True)


def keep_listed(graphs: Held | None, device: torch.device) -> None:
    """See to it that ``graphs`` are in the host's list while they hold memory.

    Never raises; costs a microsecond when they are.

    Args:
        graphs: a device's graphs, or copies of weights there; None where there are none.
        device: the device that they are on.
    """
    try:
        if graphs is None or not graphs.bytes:
            return
        import comfy.model_management

        loaded = comfy.model_management.current_loaded_models
        entry = _ENTRIES.get(graphs)
        if entry is not None and any(listed.model is entry for listed in loaded):
            return
        if entry is None:
            entry = _ENTRIES[graphs] = _patcher_class()(graphs, device)
        listed = comfy.model_management.LoadedModel(entry)
        listed.model_load()
        listed.currently_used = False  # or a ControlNet that reloads "the models in use" would ask for the graphs too
        loaded.append(listed)
    except Exception:
        log.debug("Fast Compile: the graphs couldn't be listed with ComfyUI's models", exc_info=True)
