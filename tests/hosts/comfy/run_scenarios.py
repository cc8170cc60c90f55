"""Run the scenarios of one file in this process: ``python run_scenarios.py scenarios/lora.py [NAME...]``.

A scenario is a function ``scenario_...()`` that raises when something is wrong. One JSON line each: its name, seconds, and the traceback.
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


def main(path: str, names: list[str]) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    import driver
    import torch

    logging.getLogger().setLevel(logging.ERROR)
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in names or [name for name in vars(module) if name.startswith("scenario_")]:
        start, failure = time.perf_counter(), None
        torch.manual_seed(0)
        try:
            with torch.inference_mode():  # as ComfyUI executes a prompt
                getattr(module, name)()
        except BaseException:
            failure = traceback.format_exc(limit=-8)
        driver.comfy.model_management.unload_all_models()
        gc.collect()
        print("\n" + json.dumps({"name": name, "seconds": round(time.perf_counter() - start, 2), "failure": failure}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
