"""Workflows and queues for the farm's tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sfast_core.farm.store import Store


def prompt(
    seed: int = 1, model: str = "a.safetensors", lora: str | None = None, width: int = 64, **more: Any
) -> dict[str, Any]:
    """A workflow in the API's form."""
    nodes: dict[str, Any] = {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": model}},
        "4": {"class_type": "EmptyLatentImage", "inputs": {"width": width, "height": 64, "batch_size": 1}},
        "5": {"class_type": "KSampler", "inputs": {"model": ["1", 0], "latent_image": ["4", 0], "seed": seed, **more}},
        "7": {"class_type": "SaveImage", "inputs": {"images": ["5", 0], "filename_prefix": "test"}},
    }
    if lora:
        nodes["2"] = {
            "class_type": "LoraLoaderModelOnly",
            "inputs": {"model": ["1", 0], "lora_name": lora, "strength_model": 1.0},
        }
    return nodes


@pytest.fixture
def make_prompt() -> Any:
    """:func:`prompt`."""
    return prompt


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """An empty queue."""
    opened = Store(tmp_path / "queue.sqlite")
    yield opened
    opened.close()
