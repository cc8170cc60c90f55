"""Fast Compile's core: traces a module once, fuses it, replays it as a CUDA graph, and stays right as things change.

The public names are imported when they are first used. That imports torch, but no kernel library and no host, and
touches no GPU. So ``python -m sfast_core`` can say what is missing even where there is no torch.
"""

# Whatever Python runs this is to get as far as the sentence that says which it needs: nothing that 2.7 can't read.
import sys

from .version import VERSION as __version__

if sys.version_info < (3, 10):
    _too_old = ImportError("Fast Compile needs Python 3.10 or newer; this is {}.{}".format(*sys.version_info[:2]))
    _too_old.name = __name__  # so `python -m` says it without a traceback
    raise _too_old

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from .compiled import CompiledModule, compile, uninstall
    from .config import CompileConfig
    from .hosts.diffusers import compile_pipeline
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
    "compile_pipeline": "hosts.diffusers",
    "register_operators": "operators",
    "uninstall": "compiled",
}


def __getattr__(name):
    from importlib import import_module

    if name not in _FILES:
        raise AttributeError("module {!r} has no attribute {!r}".format(__name__, name))
    try:
        found = import_module("." + _FILES[name], __name__)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        what = ImportError("sfast_core needs PyTorch 2.6 or newer; pytorch.org, Get Started, says how to install it")
        what.__cause__ = None  # as `from None` in a syntax that 2.7 can't read
        raise what  # noqa: B904
    globals()[name] = value = getattr(found, name)
    return value


def __dir__():
    return sorted(set(globals()).union(__all__))
