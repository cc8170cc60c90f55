"""Checkpoints with random weights, as small as ComfyUI's model detection lets them be. Needs ``comfy`` to be importable.

What detection reads must stay: 320 model channels and the context's width for SD1.5; the transformer depths for SDXL and SSD-1B's sister
Vega; a hidden size of 64 x depth for SD3 and of 24 x 128 for Flux. The number of blocks and of resolutions is free.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch

#: ComfyUI's class for each, its text context's width, and its pooled text's (None: there is none).
FAMILIES = {
    "sd15": ("SD15", 768, None),
    "sdxl": ("SDXL", 2048, 1280),
    "vega": ("Segmind_Vega", 2048, 1280),
    "sd3": ("SD3", 4096, 2048),
    "flux": ("Flux", 4096, 768),
    "inpaint": ("SD15", 768, None),
    "edit": ("SD15_instructpix2pix", 768, None),
    "video": ("SVD_img2vid", 1024, None),
}
_UNET = {"image_size": 32, "in_channels": 4, "out_channels": 4, "model_channels": 320, "use_spatial_transformer": True, "legacy": False}
_XL = {**_UNET, "context_dim": 2048, "use_linear_in_transformer": True, "num_head_channels": 64, "num_classes": "sequential"}
_XL |= {"adm_in_channels": 2816, "num_res_blocks": [2, 2, 2], "channel_mult": [1, 1, 1]}
UNETS: dict[str, dict[str, Any]] = {
    "sd15": {**_UNET, "context_dim": 768, "num_heads": 8, "num_res_blocks": [1, 1], "channel_mult": [1, 1], "transformer_depth": [1, 1]}
    | {"transformer_depth_middle": 1, "transformer_depth_output": [1, 1, 1, 1], "use_linear_in_transformer": False},
    "vega": {**_XL, "transformer_depth": [0, 0, 1, 1, 2, 2], "transformer_depth_middle": -1}
    | {"transformer_depth_output": [0, 0, 0, 1, 1, 1, 2, 2, 2]},
    "sdxl": {**_XL, "transformer_depth": [0, 0, 2, 2, 10, 10], "transformer_depth_middle": 10}
    | {"transformer_depth_output": [0, 0, 0, 2, 2, 2, 10, 10, 10]},
}
UNETS["inpaint"] = {**UNETS["sd15"], "in_channels": 9}  #: and a mask, and the masked picture
UNETS["edit"] = {**UNETS["sd15"], "in_channels": 8}  #: and the picture to change
UNETS["video"] = {**_UNET, "in_channels": 8, "context_dim": 1024, "use_linear_in_transformer": True, "num_head_channels": 64}
UNETS["video"] |= {"num_classes": "sequential", "adm_in_channels": 768, "num_res_blocks": [2, 2, 2, 2], "channel_mult": [1, 1, 1, 1]}
UNETS["video"] |= {"transformer_depth": [1, 1, 1, 1, 1, 1, 0, 0], "transformer_depth_middle": 1}
UNETS["video"] |= {"transformer_depth_output": [1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0], "use_temporal_attention": True}
UNETS["video"] |= {"use_temporal_resblock": True, "extra_ff_mix_layer": True, "use_spatial_context": True, "video_kernel_size": [3, 1, 1]}
UNETS["video"] |= {"merge_strategy": "learned_with_images", "merge_factor": 0.0, "disable_temporal_crossattention": False}
_PACKED = ("nvfp4", "convrot_w4a4", "asym_w4a8_int8")  # two numbers in a byte
_PERIOD = 1_000_003  # a prime: no two rows of a weight are the same part of the noise


def noise(shape: tuple[int, ...], seed: int, scale: float = 1.0) -> torch.Tensor:
    """Normal noise; large tensors repeat a period of it, since drawing half a billion numbers takes seconds."""
    count = math.prod(shape)
    base = torch.randn(min(count, _PERIOD), generator=torch.Generator().manual_seed(seed)) * scale
    return base.repeat(-(-count // base.numel()))[:count].reshape(shape)


def fill(shapes: dict[str, torch.Tensor], dtype: torch.dtype, gain: float = 1.0) -> dict[str, torch.Tensor]:
    """Weights that keep activations of order one, for the names and shapes of a state dict on the meta device."""
    weights = {}
    for seed, (name, like) in enumerate(shapes.items()):
        shape = tuple(like.shape)
        if name.endswith("position_ids"):
            weights[name] = torch.arange(shape[-1]).expand(shape).contiguous()
        elif len(shape) < 2:
            base = 1.0 if name.endswith(("norm.weight", "norm1.weight", "norm2.weight", "norm3.weight", ".scale", "vae_scale")) else 0.0
            if name.endswith(("in_layers.0.weight", "out_layers.0.weight", "out.0.weight")):
                base = 1.0
            weights[name] = (base + noise(shape, seed, 0.05)).to(dtype)
        else:
            last = name.endswith(("out.2.weight", "final_layer.linear.weight"))  # the predicted noise should be of order one too
            scale = 0.02 if "embedding" in name else gain * (0.3 if last else 1.0) / math.sqrt(math.prod(shape[1:]))
            weights[name] = noise(shape, seed, scale).to(dtype)
    return weights


def diffusion_model(family: str) -> torch.nn.Module:
    """ComfyUI's module of this family, on the meta device."""
    import comfy.ops

    build: dict[str, Any] = {"device": "meta", "operations": comfy.ops.disable_weight_init}
    if family in UNETS:
        from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel

        return UNetModel(**UNETS[family], **build)
    if family == "sd3":
        from comfy.ldm.modules.diffusionmodules.mmdit import OpenAISignatureMMDITWrapper

        embedder = {"target": "torch.nn.Linear", "params": {"in_features": 4096, "out_features": 128}}
        sizes = {"in_channels": 16, "out_channels": 16, "patch_size": 2, "depth": 2, "adm_in_channels": 2048, "input_size": None}
        sizes |= {"context_embedder_config": embedder, "num_patches": 36, "pos_embed_max_size": 6, "pos_embed_scaling_factor": None}
        return OpenAISignatureMMDITWrapper(**sizes, **build)
    from comfy.ldm.flux.model import Flux, FluxParams

    sizes = {"in_channels": 16, "out_channels": 16, "vec_in_dim": 768, "context_in_dim": 4096, "hidden_size": 3072, "mlp_ratio": 4.0}
    sizes |= {"num_heads": 24, "depth": 1, "depth_single_blocks": 1, "axes_dim": [16, 56, 56], "theta": 10000, "patch_size": 2}
    sizes |= {"qkv_bias": True, "guidance_embed": True, "txt_ids_dims": []}
    return Flux(**{name: value for name, value in sizes.items() if name in FluxParams.__dataclass_fields__}, image_model="flux", **build)


def state_dict(family: str, dtype: torch.dtype = torch.float16) -> dict[str, torch.Tensor]:
    """The diffusion model of a checkpoint, under the names that checkpoints use."""
    return {f"model.diffusion_model.{name}": value for name, value in fill(diffusion_model(family).state_dict(), dtype).items()}


def formats() -> frozenset[str]:
    """The names of the formats in which this ComfyUI loads quantised weights."""
    try:
        from comfy.quant_ops import QUANT_ALGOS
    except ImportError:
        return frozenset()
    return frozenset(QUANT_ALGOS)


def quantised(weights: dict[str, torch.Tensor], how: str, rotate: int = 0, full_precision: bool = False, input_scale: float | None = None) -> dict[str, torch.Tensor]:
    """A checkpoint with the weights of its linear layers quantised, under the keys that ComfyUI's own quantised files have.

    Args:
        weights: the checkpoint.
        how: one of :func:`formats`.
        rotate: int8_tensorwise's ConvRot group, where it divides the layer's input.
        full_precision: the layers' products are in 16 or 32 bits.
        input_scale: float8's, of every layer.
    """
    from comfy.quant_ops import QUANT_ALGOS, QuantizedTensor

    layout, out = QUANT_ALGOS[how]["comfy_tensor_layout"], {}
    for name, weight in weights.items():
        layer = name.removesuffix(".weight")
        tells = how in _PACKED and name.endswith("attn2.to_k.weight")  # by its width detection knows SD1.5
        if layer == name or tells or not _may_be_quantised(name, weight):
            out[name] = weight
            continue
        conf: dict[str, Any] = {"format": how}
        options: dict[str, Any] = {"scale": "recalculate"} if how.startswith("float8") else {}
        if how in ("convrot_w4a4", "asym_w4a8_int8"):
            conf["convrot_groupsize"] = options["convrot_groupsize"] = rotate or 64
        if how == "int8_tensorwise":
            options = {"per_channel": True}
            if rotate and weight.shape[1] % rotate == 0:
                conf |= {"convrot": True, "convrot_groupsize": rotate}
                options |= {"convrot": True, "convrot_groupsize": rotate}
        if full_precision:
            conf["full_precision_matrix_mult"] = True
        out |= QuantizedTensor.from_float(weight.float(), layout, **options).state_dict(name)
        out[f"{layer}.comfy_quant"] = torch.tensor(list(json.dumps(conf).encode()), dtype=torch.uint8)
        if input_scale is not None:
            out[f"{layer}.input_scale"] = torch.tensor(input_scale)
    return out


def _may_be_quantised(name: str, weight: torch.Tensor) -> bool:
    """Whether every format has room for this layer's weight."""
    return weight.dim() == 2 and not any(size % 64 for size in weight.shape) and "embed" not in name


def mixed(weights: dict[str, torch.Tensor], *hows: dict[str, Any]) -> dict[str, torch.Tensor]:
    """A checkpoint whose layers are quantised in turn as ``hows`` say, each as :func:`quantised` is told; an empty one leaves them as they are."""
    out: dict[str, torch.Tensor] = {}
    matrices = [name for name, weight in weights.items() if weight.dim() == 2 and name.endswith(".weight")]
    for turn, how in enumerate(hows):
        mine = {name: weights[name] for name in matrices[turn :: len(hows)]}
        out |= quantised(mine, **how) if how else mine
    return out | {name: weight for name, weight in weights.items() if name not in matrices}


def in_older_keys(weights: dict[str, torch.Tensor], full_precision: bool = False) -> dict[str, torch.Tensor]:
    """A float8 checkpoint under the keys that such files had first: a mark for the whole, and ``scale_weight`` beside each weight."""
    prefix, out = "model.diffusion_model.", {}
    for name, weight in weights.items():
        layer = name.removesuffix(".weight")
        if layer != name and _may_be_quantised(name, weight):
            scale = weight.float().abs().max() / torch.finfo(torch.float8_e4m3fn).max
            out[name], out[f"{layer}.scale_weight"] = (weight.float() / scale).to(torch.float8_e4m3fn), scale
        else:
            out[name] = weight
    out[f"{prefix}scaled_fp8"] = torch.zeros(2 if full_precision else 0, dtype=torch.float8_e4m3fn)
    return out


def control_net(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """A ControlNet for the SD1.5 UNet above, whose zero convolutions aren't zero."""
    import comfy.cldm.cldm
    import comfy.ops

    sizes = {name: value for name, value in UNETS["sd15"].items() if name not in ("out_channels", "transformer_depth_output")}
    model = comfy.cldm.cldm.ControlNet(**sizes, hint_channels=3, device="meta", operations=comfy.ops.disable_weight_init)
    return fill(model.state_dict(), dtype)


def text_and_image(latent_channels: int = 4, dtype: torch.dtype = torch.float16) -> dict[str, torch.Tensor]:
    """A CLIP-L text encoder (its size is fixed: 246 MB) and a tiny VAE for a SD1.5 checkpoint."""
    import comfy.sd1_clip
    import comfy.taesd.taesd

    clip = fill(comfy.sd1_clip.SD1ClipModel(device="meta", dtype=torch.float32).state_dict(), dtype, gain=0.5)
    weights = {name.replace("clip_l.", "cond_stage_model.", 1): value for name, value in clip.items() if "logit_scale" not in name}
    with torch.device("meta"):
        vae = comfy.taesd.taesd.TAESD(latent_channels=latent_channels)
    return weights | {f"first_stage_model.{name}": value for name, value in fill(vae.state_dict(), dtype).items()}


def lora(family: str, seed: int = 5, rank: int = 4) -> dict[str, torch.Tensor]:
    """A LoRA on attention, feed-forward and convolution layers of a UNet, strong enough to be seen."""
    tensors = {}
    layers = ("to_q", "to_k", "to_v", "to_out.0", "ff.net.0.proj", "ff.net.2", "proj_in", "in_layers.2", "emb_layers.1")
    for name, weight in diffusion_model(family).state_dict().items():
        if name.endswith(".weight") and name[: -len(".weight")].endswith(layers):
            key = "lora_unet_" + name[: -len(".weight")].replace(".", "_")
            rows, columns = weight.shape[0], math.prod(weight.shape[1:])
            up, down = noise((rows, rank), seed, 0.3), noise((rank, columns), seed + 1, 1 / math.sqrt(columns))
            if weight.dim() == 4:
                up, down = up[:, :, None, None], down.reshape(rank, *weight.shape[1:])
            tensors |= {f"{key}.lora_up.weight": up, f"{key}.lora_down.weight": down, f"{key}.alpha": torch.tensor(float(rank))}
            seed += 2
    return tensors


def save(tensors: dict[str, torch.Tensor], path: Path) -> None:
    """Write a safetensors file, leaving the tensors of zeros as holes: they take no room on the disk."""
    names = {torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.int64: "I64"}
    header, offset = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, offset + tensor.nbytes]}
        offset += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, tensor in tensors.items():
            if tensor.any():
                file.seek(8 + len(text) + header[name]["data_offsets"][0])
                file.write(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        file.truncate(8 + len(text) + offset)
