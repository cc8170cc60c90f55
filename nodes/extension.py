"""The ComfyUI extension: its nodes, and its route on the server."""

from __future__ import annotations

import logging

from comfy_api.latest import ComfyExtension, io

from ..sfast_core.hosts.comfy.board import machine
from .apply import ApplyFastCompile
from .apply_clip import ApplyFastCompileCLIP
from .apply_controlnet import ApplyFastCompileControlNet
from .apply_vae import ApplyFastCompileVAE
from .benchmark import FastCompileBenchmark
from .free_memory import FastCompileFreeMemory
from .report import FastCompileReport
from .routes import add_routes
from .settings import FastCompileSettings
from .several_gpus import FastCompileSeveralGPUs
from .warm_up import FastCompileWarmUp

log = logging.getLogger("fast_compile")


class FastCompileExtension(ComfyExtension):
    """Lists the nodes. The route is added with them: older ComfyUI never calls ``on_load``."""

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        """Every node of the pack."""
        add_routes()
        if (found := machine()) is not None:
            log.warning(
                "Fast Compile: nothing is faster here, because %s. What you can do: %s.", found["why"], found["advice"]
            )
        return [
            ApplyFastCompile,
            ApplyFastCompileVAE,
            ApplyFastCompileCLIP,
            ApplyFastCompileControlNet,
            FastCompileSettings,
            FastCompileSeveralGPUs,
            FastCompileWarmUp,
            FastCompileReport,
            FastCompileBenchmark,
            FastCompileFreeMemory,
        ]
