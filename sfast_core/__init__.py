"""Fast Compile's core: trace a module once, fuse it, replay it as a CUDA graph, and stay right while everything around it changes.

Importing it imports torch and nothing else: no kernel library, no GPU, no host.
"""

from .compiled import CompiledModule, compile, uninstall
from .config import CompileConfig
from .operators import register_operators
from .reporting.report import Report
from .version import VERSION as __version__

__all__ = ["CompileConfig", "CompiledModule", "Report", "__version__", "compile", "compile_pipeline", "register_operators", "uninstall"]


def compile_pipeline(pipeline, config=None):  # type: ignore[no-untyped-def]
    """Compile the models of a diffusers pipeline; see :func:`sfast_core.hosts.diffusers.compile_pipeline`."""
    from .hosts.diffusers import compile_pipeline as install

    return install(pipeline, config)
