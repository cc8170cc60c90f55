"""Fast Compile's core: traces a module once, fuses it, replays it as a CUDA graph, and stays right while everything
around it changes.

The public names are imported when they are first used. That imports torch, but no kernel library and no host, and
touches no GPU. So ``python -m sfast_core`` can say what is missing even where there is no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .version import VERSION as __version__

if TYPE_CHECKING:
    from .compiled import CompiledModule, compile, uninstall
    from .config import CompileConfig
    from .operators import register_operators
    from .reporting.report import Report

__all__ = [
    "CompileConfig",
    "CompiledModule",
    "Report",
    "__version__",
    "compile",
    "compile_pipeline",
    "register_operators",
    "uninstall",
]
_FILES = {
    "CompileConfig": "config",
    "CompiledModule": "compiled",
    "Report": "reporting.report",
    "compile": "compiled",
    "register_operators": "operators",
    "uninstall": "compiled",
}


def compile_pipeline(pipeline: Any, config: CompileConfig | None = None) -> Any:
    """Compile the models of a diffusers pipeline; see :func:`sfast_core.hosts.diffusers.compile_pipeline`."""
    install: Any = _file("hosts.diffusers").compile_pipeline
    return install(pipeline, config)


def _file(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(f".{name}", __name__)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        what = "sfast_core needs PyTorch 2.6 or newer; pytorch.org, Get Started, says how to install it"
        raise ImportError(what) from None


def __getattr__(name: str) -> Any:
    if name not in _FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(_file(_FILES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
