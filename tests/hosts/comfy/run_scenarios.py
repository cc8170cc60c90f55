"""Run scenarios in this process: ``python run_scenarios.py scenarios/lora.py scenarios/node.py::scenario_settings
...``.

A scenario is a function ``scenario_...()`` that raises when something is wrong. One JSON line each: its file and name,
the seconds that it took, and the traceback. Loading ComfyUI takes longer than most scenarios, so one process runs many.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import logging
import sys
import time
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any


def load(path: str) -> ModuleType:
    """A scenario file as a module."""
    spec = importlib.util.spec_from_file_location(f"scenarios_{Path(path).stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(wanted: list[str]) -> None:
    """Run what is named, file by file."""
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    import driver

    logging.getLogger().setLevel(logging.ERROR)
    for path in dict.fromkeys(entry.partition("::")[0] for entry in wanted):
        try:
            module = load(path)
        except Exception:
            _say({"file": Path(path).stem, "name": None, "failure": traceback.format_exc()})
            continue
        names = [entry.partition("::")[2] for entry in wanted if entry.startswith(f"{path}::")]
        for name in names or [name for name in vars(module) if name.startswith("scenario_")]:
            _say({"file": Path(path).stem, "name": name, **run(getattr(module, name))})
        del module  # and the models that its scenarios shared
        driver.comfy.model_management.unload_all_models()
        gc.collect()


def run(scenario: Any) -> dict[str, Any]:
    """What became of one scenario."""
    import driver
    import torch

    start, failure = time.perf_counter(), None
    torch.manual_seed(0)
    try:
        with torch.inference_mode():  # as ComfyUI executes a prompt
            scenario()
    except BaseException:
        failure = traceback.format_exc(limit=-8)
    driver.comfy.model_management.unload_all_models()
    gc.collect()
    return {"seconds": round(time.perf_counter() - start, 2), "failure": failure}


def _say(outcome: dict[str, Any]) -> None:
    print("\n" + json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
