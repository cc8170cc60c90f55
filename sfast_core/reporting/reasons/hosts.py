"""What is a host's: its VAEs, text encoders and ControlNets, its nodes and extensions."""

from __future__ import annotations

from ..reason import REPORT, Advice, Kind
from .advice import EXTENSION_OFF, GIVE_BACK, NOTHING, ONE_OF_TWO, TAKE_OUT, TURN_OFF

# -- VAEs, text encoders, ControlNets ---------------------------------------------------------------------------------

FLOAT32 = Kind(
    "float32",
    "it computes in float32 with TF32 switched off, and the fused kernels only pay with TF32, float16 or bfloat16",
    "A VAE in float32.",
    Advice(
        "another precision",
        "load the VAE in bfloat16, if its pictures come out right that way",
        "start ComfyUI with --bf16-vae, if the VAE's pictures come out right that way",
        "start without --no-half-vae, if the VAE's pictures come out right that way",
    ),
)
NOT_A_PICTURE = Kind(
    "not-a-picture",
    "its input has {shown}: VAEs of pictures, video and sound are accelerated",
    "The VAE is not one of those.",
    NOTHING,
)
NO_CLIP = Kind("no-clip", "it is no {known}: {why}", "A text encoder whose prompts differ in length.", NOTHING)
NO_HALVES = Kind(
    "no-halves", "it has no encoder or decoder that is understood", "A VAE with an unknown structure.", REPORT
)
OTHER_MODEL = Kind("other-model", "{what} is not understood", "A model with an unknown structure.", REPORT)
CONTROL_LORA = Kind(
    "control-lora",
    "a Control-LoRA makes its model anew for each sampling, and tracing that would take longer than it saves",
    "There is nothing that stays.",
    NOTHING,
)

# -- in ComfyUI -------------------------------------------------------------------------------------------------------

NODE_REPLACES = Kind(
    "node-replaces",
    "another node replaces its {attribute} ({by})",
    "Another node replaces methods or parts of the model, some for good.",
    GIVE_BACK,
)
NODE_WRAPS = Kind(
    "node-wraps",
    "another node wraps its forward: {names}",
    "Another node's code would run inside the trace.",
    TAKE_OUT,
)
RUN_BY = Kind(
    "run-by",
    "its blocks are run by {who}, not by its forward",
    "Another node runs the model's blocks with its own code.",
    GIVE_BACK,
)
GOES_AROUND = Kind(
    "goes-around",
    "for such calls the model runs its blocks with code of its own, not with its forward",
    "A causal video model, which computes a few frames at a time and remembers the others.",
    NOTHING,
)
PAST_NODE = Kind(
    "past-node",
    "the call bypassed the node and went to the diffusion model itself",
    "Another node calls the diffusion model with its own code, not with ComfyUI's.",
    TAKE_OUT,
)
NO_MODULE = Kind(
    "no-module",
    "its diffusion model is a {kind}, not a PyTorch module",
    "Another runtime, such as TensorRT's, computes it.",
    ONE_OF_TWO,
)
NOT_HOOKED = Kind("not-hooked", "its forward could not be replaced", "The log says why.", REPORT)

# -- in A1111 and Forge -----------------------------------------------------------------------------------------------

EXTENSION_REPLACES = Kind(
    "extension-replaces",
    "another extension replaces its {attribute} ({by})",
    "Another extension of the webui works inside the model.",
    EXTENSION_OFF,
)
WENT_PAST = Kind(
    "went-past", "a sampling bypassed it: {who}", "Another extension calls the UNet with its own code.", EXTENSION_OFF
)
LORA_FUNCTIONAL = Kind(
    "lora-functional",
    "the setting 'Lora: use old method' computes LoRAs in each layer",
    "One of A1111's settings: LoRAs don't go into the weights.",
    TURN_OFF,
)
ONLINE_LORA = Kind(
    "online-lora",
    "a LoRA is merged into the weights at each call ('online' LoRAs)",
    "Forge merges LoRAs at each call.",
    "choose a setting of 'Diffusion in Low Bits' without 'fp16 LoRA'",
)
LOWVRAM = Kind(
    "lowvram",
    "--lowvram moves its parts to the GPU one by one",
    "Its weights aren't where a fused program could read them.",
    "start with --medvram, if the GPU has enough memory for that",
)
SD_UNET = Kind(
    "sd-unet",
    "another UNet is selected in the setting 'SD Unet'",
    "That UNet isn't the one that is compiled.",
    "choose None there",
)
