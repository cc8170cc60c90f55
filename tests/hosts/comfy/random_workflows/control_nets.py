"""ControlNets of the families that have some, with random weights whose zero layers aren't zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import comfy.cldm.cldm
import comfy.controlnet
import comfy.latent_formats
import comfy.ops
import torch
from driver import has

from random_workflows.models import Subject, noise

_CPU = torch.device("cpu")


class PictureVAE:
    """As much of a VAE as a control uses: 16 channels of a picture's three, an eighth as high and wide."""

    def __init__(self, video: bool = False) -> None:
        """``video``: its latents have frames."""
        self.video = video

    def spacial_compression_encode(self) -> int:
        """Pixels for a latent's one."""
        return 8

    def encode(self, image: torch.Tensor) -> torch.Tensor:
        """The latent of a picture, whose channels are last."""
        small = torch.nn.functional.interpolate(image.movedim(-1, 1), scale_factor=1 / 8)
        found = torch.cat([small * (index + 1) for index in range(6)], dim=1)[:, :16]
        return found[:, :, None] if self.video else found


def filled(module: torch.nn.Module) -> torch.nn.Module:
    """The same, with weights under which activations stay O(1)."""
    for number, weight in enumerate(module.parameters()):
        scale = weight[0].numel() ** -0.5 if weight.dim() > 1 else 0.1
        weight.data = noise(*weight.shape)(number) * scale + float(weight.dim() < 2 and number % 2 == 0) * 0.5
    for name, buffer in module.named_buffers():
        if name.endswith("pos_embed"):  # which only a checkpoint fills
            buffer.copy_(noise(*buffer.shape)(0))
    return module.eval()


def control_net(subject: Subject) -> Any:
    """What Load ControlNet Model makes of a file for this family, or nothing."""
    kind = next((kind for name, kind in _KINDS.items() if subject.name.startswith(name)), None)
    if kind is None or subject.dtype != torch.float32:
        return None
    with torch.inference_mode(False):
        return kind(subject)


def hinted(net: Any, subject: Subject, hint: torch.Tensor, strength: float, span: tuple[float, float]) -> Any:
    """What Apply ControlNet makes of it."""
    vae = PictureVAE(len(subject.family.latent) == 5) if net.latent_format is not None else None
    return net.copy().set_cond_hint(hint, strength, span, vae)


def _options(subject: Subject, *without: str) -> dict[str, Any]:
    sizes = {name: value for name, value in subject.family.unet.items() if name not in without}
    return {**sizes, "dtype": torch.float32, "device": _CPU, "operations": comfy.ops.disable_weight_init}


def _of_unet(subject: Subject) -> Any:
    options = _options(subject, "out_channels", "transformer_depth_output")
    inside = comfy.cldm.cldm.ControlNet(**{**options, "in_channels": 4}, hint_channels=3)
    return comfy.controlnet.ControlNet(filled(inside), load_device=_CPU, manual_cast_dtype=None)


def _of_latents(inside: torch.nn.Module, latent_format: Any, *extra: str) -> Any:
    return comfy.controlnet.ControlNet(
        filled(inside),
        compression_ratio=1,
        latent_format=latent_format,
        load_device=_CPU,
        manual_cast_dtype=None,
        extra_conds=list(extra),
    )


def _of_flux(subject: Subject) -> Any:
    from comfy.ldm.flux.controlnet import ControlNetFlux

    options = {**_options(subject), "in_channels": 16}
    inside = ControlNetFlux(latent_input=True, num_union_modes=0, control_latent_channels=16, **options)
    return _of_latents(inside, comfy.latent_formats.Flux(), "y", "guidance")


def _of_qwen(subject: Subject) -> Any:
    if not has("comfy.ldm.qwen_image.controlnet"):
        return None
    from comfy.ldm.qwen_image.controlnet import QwenImageControlNetModel

    inside = QwenImageControlNetModel(extra_condition_channels=0, **_options(subject))
    return _of_latents(inside, comfy.latent_formats.Wan21())


def _of_sd3(subject: Subject) -> Any:
    from comfy.cldm.mmdit import ControlNet

    inside = ControlNet(**_options(subject))
    return _of_latents(inside, comfy.latent_formats.SD3(), "y")


_KINDS: dict[str, Callable[[Subject], Any]] = {
    **{"SD1.5": _of_unet, "SDXL": _of_unet, "Flux": _of_flux, "Qwen-Image": _of_qwen, "SD3": _of_sd3}
}
