"""A model with our node and one without, loaded and patched alike, and adapters for them. Needs the driver."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import comfy.model_management as management
import comfy.sd
import tiny
import torch
from driver import fast_compile, load, sample

#: ComfyUI compares devices, and to it this is another one than "cpu": weights are offloaded from it, as they are from a
#: GPU.
ELSEWHERE = torch.device("cpu:0")


class Twins:
    """A model with our node and one without, loaded.

    ``sampled``: ours is laid out for its program, as it is after the first step.
    """

    def __init__(
        self, family: str = "sd15", device: torch.device = ELSEWHERE, sampled: bool = True, **options: Any
    ) -> None:
        self.model, self.twin = load(family, **options), load(family, **options)
        self.model.load_device = self.twin.load_device = device
        self.plain = copied(self.model)
        self.fast = fast_compile.apply(self.model)
        management.load_models_gpu([self.fast])
        management.load_models_gpu([self.twin])
        if sampled:
            sample(self.fast, steps=1)

    def load(self, made: Callable[[Any], Any] = lambda model: model) -> Any:
        """Load what ``made`` makes of both models, and compare all that the host keeps about them. Returns ours."""
        mine, theirs = made(self.fast), made(self.twin)
        management.load_models_gpu([mine])
        management.load_models_gpu([theirs])
        self.compare()
        for name in ("model_loaded_weight_memory", "model_lowvram", "lowvram_patch_counter", "device"):
            assert getattr(self.model.model, name) == getattr(self.twin.model, name), name
        assert mine.loaded_size() == theirs.loaded_size() == mine.model_size()
        assert self.model.model.current_weight_patches_uuid == mine.patches_uuid
        return mine

    def compare(self) -> None:
        """Both have the same weights."""
        assert_equal(self.model, dict(self.twin.model.state_dict()))

    def unload(self) -> None:
        """Take both off the device: nothing is left, and the weights are those of the checkpoint."""
        management.free_memory(1e30, self.model.load_device)
        for model in (self.model, self.twin):
            assert_equal(model, self.plain)
            assert (
                not model.backup and not model.object_patches_backup and model.model.current_weight_patches_uuid is None
            )
            assert model.loaded_size() == 0 and not any(
                hasattr(module, "comfy_patched_weights") for module in model.model.modules()
            )


def copied(model: Any) -> dict[str, torch.Tensor]:
    """The weights as they are now."""
    return {name: value.clone() for name, value in model.model.state_dict().items()}


def assert_equal(model: Any, expected: dict[str, torch.Tensor]) -> None:
    """The weights have these bits."""
    found = model.model.state_dict()
    assert found.keys() == expected.keys()
    for name, value in found.items():
        bits = torch.uint8 if value.dtype.itemsize == 1 else None  # float8 can't be compared
        mine, theirs = (value, expected[name]) if bits is None else (value.view(bits), expected[name].view(bits))
        assert value.dtype == expected[name].dtype and torch.equal(mine, theirs), name


def _where(model: Any) -> dict[str, tuple[Any, int]]:
    """Each parameter, not held (others' parameters aren't written to), and its address."""
    return {name: (weakref.ref(value), value.data_ptr()) for name, value in model.model.named_parameters()}


def _moved(model: Any, before: dict[str, tuple[Any, int]]) -> list[str]:
    return [
        name
        for name, value in model.model.named_parameters()
        if before[name][0]() is not value or before[name][1] != value.data_ptr()
    ]


@contextmanager
def unmoved(model: Any) -> Iterator[None]:
    """No parameter is another one afterwards, or lies elsewhere."""
    before = _where(model)
    yield
    assert not _moved(model, before), _moved(model, before)[:3]


def with_loras(*patches: tuple[float, dict[str, torch.Tensor]]) -> Callable[[Any], Any]:
    """What nodes Load LoRA make of a model."""

    def made(model: Any) -> Any:
        for strength, weights in patches:
            model = comfy.sd.load_lora_for_models(model, None, dict(weights), strength, 0.0)[0]
        return model

    return made


def adapter(kind: str, seed: int, layers: str = "") -> dict[str, torch.Tensor]:
    """A file of patches of this kind for the linear and convolution layers whose names hold ``layers``."""
    found: dict[str, torch.Tensor] = {}
    for name, weight in tiny.diffusion_model("sd15").state_dict().items():
        layer, seed = name.removesuffix(".weight"), seed + 7
        if (
            layer == name
            or weight.dim() < 2
            or not any(part in name for part in ("attn", "ff.net", "in_layers.2"))
            or layers not in name
        ):
            continue
        rows, columns = weight.shape[0], math.prod(weight.shape[1:])
        flat = {"lora_up": (rows, 4), "lora_down": (4, columns)}
        shapes: dict[str, tuple[int, ...]] = {
            "lora": {f"{one}.weight": shape for one, shape in flat.items()},
            "dora": {"dora_scale": (rows, *[1] * (weight.dim() - 1))}
            | {f"{one}.weight": shape for one, shape in flat.items()},
            "loha": {
                "hada_w1_a": (rows, 4),
                "hada_w1_b": (4, columns),
                "hada_w2_a": (rows, 4),
                "hada_w2_b": (4, columns),
            },
            "lokr": {"lokr_w1": (4, 4), "lokr_w2": (rows // 4, columns // 4)},
            "oft": {"oft_blocks": (rows // 8, 8, 8)},
            "diff": {"diff": tuple(weight.shape)},
        }[kind]
        key = "lora_unet_" + layer.replace(".", "_")
        for number, (part, shape) in enumerate(shapes.items()):
            scale = 1 / math.sqrt(columns) if part.startswith(("lora_down", "hada_w1_b", "lokr_w2", "diff")) else 0.3
            found[f"{key}.{part}"] = tiny.noise(shape, seed + number, scale) + float(part == "dora_scale")
    assert found
    return found


FIRST, SECOND, ATTENTION = adapter("lora", 1), adapter("lora", 900), adapter("lora", 500, "attn2")
