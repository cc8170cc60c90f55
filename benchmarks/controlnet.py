"""``python -m benchmarks.controlnet``: SD1.5's step with a ControlNet; eager, torch.compile, ours, interleaved.

A step is the ControlNet's forward and the UNet's with what it adds; each of the two is compiled by itself, as a user
would. Random weights, fp16, 512x512, batch 2 (both halves of classifier-free guidance).
"""

from __future__ import annotations

from typing import Any

import torch

from .full_size import MODELS, build_unet, inputs_for, new_modules
from .interleaved import Subject, main

_DEVICE = torch.device("cuda")
_SD15 = MODELS[0]
_ZERO_CONVOLUTION_STD = 0.02  #: as trained ones have it: with zeros nothing would be added


class Controlled(torch.nn.Module):
    """A UNet and the ControlNet whose results it adds to its own: one step of denoising."""

    def __init__(self, controlnet: torch.nn.Module, unet: torch.nn.Module) -> None:
        super().__init__()
        self.controlnet = controlnet
        self.unet = unet

    def forward(
        self, hint: torch.Tensor, sample: torch.Tensor, timestep: torch.Tensor, encoder_hidden_states: torch.Tensor
    ) -> Any:
        """The predicted noise, in a tuple.

        ``hint``: [B, 3, 8 H, 8 W], the picture to follow; the rest as the UNet takes it.
        """
        down, middle = self.controlnet(sample, timestep, encoder_hidden_states, hint, return_dict=False)
        return self.unet(
            sample,
            timestep,
            encoder_hidden_states,
            down_block_additional_residuals=down,
            mid_block_additional_residual=middle,
            return_dict=False,
        )


def build(config: dict[str, Any], device: torch.device, dtype: torch.dtype) -> Controlled:
    """The pair for a UNet of this configuration, with random weights."""
    from diffusers import ControlNetModel

    unet = build_unet(config, device, dtype)
    with new_modules(device, dtype):
        controlnet = ControlNetModel.from_unet(unet, load_weights_from_unet=False)
        zero = (
            controlnet.controlnet_cond_embedding.conv_out,
            *controlnet.controlnet_down_blocks,
            controlnet.controlnet_mid_block,
        )
        for convolution in zero:
            torch.nn.init.normal_(convolution.weight, std=_ZERO_CONVOLUTION_STD)
    return Controlled(controlnet, unet).eval().requires_grad_(False)


def inputs(pair: Controlled, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Keyword arguments of one step."""
    found = {name: value for name, value in inputs_for(pair.unet, device, dtype).items() if name != "return_dict"}
    batch, _, height, width = found["sample"].shape
    generator = torch.Generator(device).manual_seed(2)
    return {
        "hint": torch.rand((batch, 3, 8 * height, 8 * width), device=device, dtype=dtype, generator=generator),
        **found,
    }


def _build(dtype: torch.dtype) -> Controlled:
    return build(_SD15.config, _DEVICE, dtype)


def _inputs(pair: Controlled, dtype: torch.dtype) -> dict[str, Any]:
    return inputs(pair, _DEVICE, dtype)


if __name__ == "__main__":
    subject = Subject(_SD15.name, torch.float16, _build, _inputs, parts=("controlnet", "unet"))
    main("controlnet", __doc__, "ControlNet and UNet, batch 2", [subject])
