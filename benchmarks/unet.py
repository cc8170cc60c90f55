"""``python -m benchmarks.unet``: a UNet's forward at full size; eager, torch.compile and ours, interleaved.

SD1.5 at 512x512 and SDXL at 1024x1024, random weights, fp16, batch 2 (both halves of classifier-free guidance).
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from .full_size import MODELS, FullSize, build_unet, inputs_for
from .interleaved import Subject, main
from .memory import in_own_process

_DEVICE = torch.device("cuda")


def _build(model: FullSize, dtype: torch.dtype) -> Any:
    return build_unet(model.config, _DEVICE, dtype)


def _inputs(unet: Any, dtype: torch.dtype) -> dict[str, Any]:
    return inputs_for(unet, _DEVICE, dtype)


if __name__ == "__main__":
    subjects = [Subject(model.name, torch.float16, functools.partial(_build, model), _inputs) for model in MODELS]
    main("unet", __doc__, "UNet, batch 2", subjects, in_own_process)
