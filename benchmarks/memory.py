"""``python -m benchmarks.memory MODEL PROVIDER``: the peak GPU memory of one provider's calls, alone in its process. Prints JSON.

``peak_bytes`` is the most that PyTorch had allocated at any time from the model's making on, tracing, measuring and capturing included;
``steady_peak_bytes`` that of later calls, with what captured graphs hold.
"""

from __future__ import annotations

import json
import subprocess
import sys

import torch

from .full_size import MODELS, build_unet, inputs_for

_CALLS = 4


@torch.no_grad()
def measure(name: str, provider: str) -> dict[str, int]:
    """Run one provider on one model and count."""
    model = next(model for model in MODELS if model.name == name)
    device = torch.device("cuda")
    unet = build_unet(model.config, device, torch.float16)
    inputs = inputs_for(unet, device, torch.float16)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    weights = torch.cuda.memory_allocated()
    if provider == "ours":
        import sfast_core

        unet = sfast_core.compile(unet)
    for _ in range(_CALLS):
        unet(**inputs)
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_reserved()
    unet(**inputs)
    torch.cuda.synchronize()
    return {"weights_bytes": weights, "peak_bytes": peak, "steady_peak_bytes": max(held, torch.cuda.max_memory_allocated())}


def in_own_process(name: str, provider: str) -> dict[str, int]:
    """As :func:`measure`, in a new process.

    Raises:
        RuntimeError: it failed; the message holds its output.
    """
    run = subprocess.run([sys.executable, "-m", __name__, name, provider], capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(f"benchmarks.memory {name} {provider}: {run.stderr[-2000:]}")
    found: dict[str, int] = json.loads(run.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[1:3])))
