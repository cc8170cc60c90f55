"""What a call brings besides a prompt: masks, pictures to change, boxes, regions, the frames of a video."""

from __future__ import annotations

from typing import Any

import comfy.gligen
import comfy.model_management as management
import comfy.model_patcher
import tiny
import torch
from driver import (
    assert_close,
    assert_differs,
    assert_fused,
    calls,
    fast_compile,
    load,
    node,
    prompt,
    report_of,
    sample,
)

_SIZE = (8, 8)  # of latents


def _alike(model: Any, change: Any = lambda model: model, **options: Any) -> torch.Tensor:
    """Before and behind ``change`` the node gives what the plain model gives, fused. Returns the plain model's."""
    expected: torch.Tensor = sample(change(model), **options)
    sample(fast_compile.apply(model), **options)
    for fast in (change(fast_compile.apply(model)), fast_compile.apply(change(model))):
        sample(fast, **options)
        before = calls(model)
        assert_close(sample(fast, **options), expected)
        assert_fused(model, before)
    return expected


def _picture(seed: int, channels: int = 4, frames: int = 1) -> torch.Tensor:
    return tiny.noise((frames, channels, *_SIZE), seed)


def _mask() -> torch.Tensor:
    """Its left half is to change, fully at the edge."""
    mask = torch.zeros(1, 1, *_SIZE)
    mask[..., :4] = torch.tensor([1.0, 0.8, 0.5, 0.2])
    return mask


def scenario_a_noise_mask() -> None:
    model = load("sd15")
    whole = _alike(model, latent=_picture(5))
    assert_differs(_alike(model, latent=_picture(5), mask=_mask()), whole)


def scenario_differential_diffusion() -> None:
    model, soften = load("sd15"), node("nodes_differential_diffusion", "DifferentialDiffusion")
    options = {"latent": _picture(5), "mask": _mask(), "steps": 4}
    assert_differs(_alike(model, soften, **options), sample(model, **options))


def scenario_an_inpainting_model() -> None:
    """It gets a mask and the masked picture as further channels."""
    model = load("inpaint")
    given = {"concat_latent_image": _picture(6), "concat_mask": (_mask()[0] > 0.3).float()}
    prompts = {"positive": prompt(model, 1, **given), "negative": prompt(model, 2, **given)}
    masked = _alike(model, latent=_picture(5), mask=_mask(), **prompts)
    other = {
        "positive": prompt(model, 1, **given | {"concat_latent_image": _picture(7)}),
        "negative": prompts["negative"],
    }
    assert_differs(_alike(model, latent=_picture(5), mask=_mask(), **other), masked)


def scenario_instruct_pix2pix() -> None:
    model = load("edit")
    first, second = (
        _alike(model, positive=prompt(model, 1, concat_latent_image=_picture(seed)), negative=prompt(model, 2))
        for seed in (6, 7)
    )
    assert_differs(first, second)


def _gligen() -> Any:
    """Boxes of objects for the tiny UNet: a layer for each of its transformers."""
    layers = [comfy.gligen.GatedSelfAttentionDense(320, 768, 8, 40) for _ in range(7)]
    boxes = comfy.gligen.Gligen(layers, comfy.gligen.PositionNet(768, 768), 768)
    shapes = {name: value.to("meta") for name, value in boxes.state_dict().items()}
    weights = tiny.fill(shapes, torch.float32)
    weights |= {name: torch.tensor(0.7) for name in weights if name.endswith(("alpha_attn", "alpha_dense"))}
    boxes.load_state_dict(weights)
    return comfy.model_patcher.ModelPatcher(boxes, management.get_torch_device(), management.unet_offload_device())


def scenario_gligen() -> None:
    """Its layers are a patch, a new function at each step, which runs live."""
    model, boxes = load("sd15"), _gligen()
    placed = ("position", boxes, [(tiny.noise((1, 768), 8), 4, 4, 1, 2)])
    options = {"positive": prompt(model, 1, gligen=placed), "negative": prompt(model, 2)}
    expected, without = sample(model, **options), sample(model)
    assert_differs(expected, without)
    fast = fast_compile.apply(model)
    assert_close(sample(fast, **options), expected)
    before = calls(model)
    assert_close(sample(fast, **options), expected)
    assert_fused(model, before)
    sample(fast)
    before = calls(model)
    assert_close(sample(fast), without)
    assert_fused(model, before)


def scenario_prompts_of_regions() -> None:
    """One by a mask, one by an area: ComfyUI calls the model for the whole and for the part."""
    model = load("sd15")
    part = torch.zeros(1, *_SIZE)
    part[..., 4:] = 1.0
    regions = (
        prompt(model, 1)
        + prompt(model, 3, mask=part, mask_strength=0.8)
        + prompt(model, 4, area=(4, 8, 2, 0), strength=0.7)
    )
    assert_differs(_alike(model, positive=regions), sample(model))


def scenario_skip_layer_guidance() -> None:
    """It calls the model once more per step, without some layers: by a function that runs live."""
    model, skip = load("sd3"), node("nodes_slg", "SkipLayerGuidanceDiT")

    def guide(model: Any) -> Any:
        return skip(model, scale=3.0, start_percent=0.0, end_percent=1.0, double_layers="0", single_layers="")

    expected = sample(guide(model))
    assert_differs(expected, sample(model))
    fast = guide(fast_compile.apply(model))
    sample(fast)
    before = calls(model)
    assert_close(sample(fast), expected)
    assert_fused(model, before)
    assert any("double_block" in name for signature in report_of(model).signatures for name in signature.recorded_in)


def scenario_frames_of_a_video() -> None:
    """Stable Video Diffusion: the frames are the batch, and attention goes along them too."""
    model = load("video")
    given = {"concat_latent_image": _picture(6), "fps": 6, "motion_bucket_id": 100, "augmentation_level": 0.0}
    prompts = {"positive": prompt(model, 1, 1, **given), "negative": prompt(model, 2, 1, **given)}
    for frames in (4, 6):
        _alike(model, latent=torch.zeros(frames, 4, *_SIZE), **prompts)
