"""A node pack for tests: beside it Fast Compile captures on the CPU, into graphs that compute again what was captured.

The first prompt puts the backend of ``tests/fakes.py`` under the pack's engine, 100 MB a graph. Everything above it is
real.
"""

import functools
import importlib.util
import sys
from pathlib import Path

from server import PromptServer

MB = 2**20
NODE_CLASS_MAPPINGS: dict = {}


def _module(path: Path):
    spec = importlib.util.spec_from_file_location("fast_compile_fakes", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def _pretend() -> None:
    (engine,) = [module for name, module in sys.modules.items() if name.endswith(".sfast_core.engine")]
    package = engine.__name__.rpartition(".")[0]
    fakes = _module(Path(__file__).resolve().parents[3] / "fakes.py")
    graphs = sys.modules[f"{package}.runtime.graphs"].DeviceGraphs(fakes.FakeBackend(free=1000 * MB, cost=100 * MB))
    engine.device_graphs = lambda device: graphs


def _on_prompt(prompt: dict) -> dict:
    _pretend()
    return prompt


PromptServer.instance.add_on_prompt_handler(_on_prompt)
