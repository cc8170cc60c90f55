"""Tiny diffusers pipelines with random weights, the same ones at each call, and the pictures that they make."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import torch
import transformers
from PIL import Image

TOKENS = 16
PROMPT = "red fox"
SD = {
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
}
SDXL = {
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    "cross_attention_dim": 64,
    "use_linear_projection": True,
    "transformer_layers_per_block": (1, 2),
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 8,
    "projection_class_embeddings_input_dim": 6 * 8 + 32,
}


def tokenizer() -> Any:
    """CLIPTokenizer of single letters."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    pieces = [*letters, *(letter + "</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "vocab.json").write_text(
            json.dumps({piece: number for number, piece in enumerate(pieces)}), "utf-8"
        )
        Path(folder, "merges.txt").write_text("#version: 0.2\n", "utf-8")
        return transformers.CLIPTokenizer.from_pretrained(folder, model_max_length=TOKENS, pad_token="<|endoftext|>")


def clip(words: Any, seed: int, projection: bool = False) -> torch.nn.Module:
    """A CLIP text encoder of 2 layers of 32."""
    torch.manual_seed(seed)
    ids = {name: getattr(words, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    config = transformers.CLIPTextConfig(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=64,
        projection_dim=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=TOKENS,
        hidden_act="gelu" if projection else "quick_gelu",
        **ids,
    )
    return (transformers.CLIPTextModelWithProjection if projection else transformers.CLIPTextModel)(config).eval()


def t5(width: int) -> torch.nn.Module:
    """A T5 encoder of 1 layer."""
    torch.manual_seed(8)
    sizes = {"d_model": width, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4}
    return transformers.T5EncoderModel(
        transformers.T5Config(vocab_size=64, feed_forward_proj="gated-gelu", **sizes)
    ).eval()


def vae(**changes: Any) -> torch.nn.Module:
    """AutoencoderKL: [B, 3, 2H, 2W] <-> [B, 4, H, W]."""
    torch.manual_seed(2)
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    sizes = {"sample_size": 32, "latent_channels": 4, "block_out_channels": (8, 16), "norm_num_groups": 4}
    return diffusers.AutoencoderKL(**sizes, **blocks, **changes).eval()


def unet(kind: dict[str, Any], seed: int = 3) -> torch.nn.Module:
    """UNet2DConditionModel of two levels, laid out as SD1.5's or SDXL's."""
    torch.manual_seed(seed)
    sizes = {
        "sample_size": 16,
        "block_out_channels": (16, 32),
        "layers_per_block": 1,
        "attention_head_dim": 4,
        "norm_num_groups": 4,
    }
    return diffusers.UNet2DConditionModel(**{**sizes, "cross_attention_dim": 32, **kind}).eval()


def sd(pipeline: type = diffusers.StableDiffusionPipeline, **more: Any) -> Any:
    """A pipeline of SD1.5's kind."""
    words = tokenizer()
    models = {"vae": vae(), "text_encoder": clip(words, 1), "tokenizer": words, "unet": unet(SD)}
    scheduler = diffusers.DDIMScheduler(beta_schedule="scaled_linear", clip_sample=False, steps_offset=1)
    off = {"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False}
    return quiet(pipeline(**models, scheduler=scheduler, **off, **more))


def sdxl() -> Any:
    """A pipeline of SDXL's kind."""
    words = tokenizer()
    encoders = {"text_encoder": clip(words, 1), "text_encoder_2": clip(words, 4, projection=True)}
    scheduler = diffusers.EulerDiscreteScheduler(beta_schedule="scaled_linear")
    return quiet(
        diffusers.StableDiffusionXLPipeline(
            vae(), **encoders, tokenizer=words, tokenizer_2=words, unet=unet(SDXL), scheduler=scheduler
        )
    )


def sd3() -> Any:
    """A pipeline of Stable Diffusion 3's kind: three text encoders and a transformer."""
    words = tokenizer()
    torch.manual_seed(4)
    sizes = {
        "sample_size": 16,
        "in_channels": 4,
        "num_layers": 2,
        "attention_head_dim": 8,
        "num_attention_heads": 4,
        "pos_embed_max_size": 32,
    }
    widths = {"joint_attention_dim": 64, "caption_projection_dim": 32, "pooled_projection_dim": 64, "out_channels": 4}
    transformer = diffusers.SD3Transformer2DModel(patch_size=2, **sizes, **widths).eval()
    encoders = {f"text_encoder{end}": clip(words, seed, projection=True) for end, seed in (("", 1), ("_2", 4))}
    words_of = {f"tokenizer{end}": words for end in ("", "_2", "_3")}
    image = vae(use_quant_conv=False, use_post_quant_conv=False, shift_factor=0.06)
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    return quiet(
        diffusers.StableDiffusion3Pipeline(transformer, scheduler, image, **encoders, **words_of, text_encoder_3=t5(64))
    )


def flux() -> Any:
    """A pipeline of Flux's kind."""
    words = tokenizer()
    torch.manual_seed(4)
    sizes = {
        "in_channels": 16,
        "num_layers": 1,
        "num_single_layers": 1,
        "attention_head_dim": 16,
        "num_attention_heads": 2,
    }
    widths = {
        "joint_attention_dim": 32,
        "pooled_projection_dim": 32,
        "axes_dims_rope": (4, 4, 8),
        "guidance_embeds": True,
    }
    transformer = diffusers.FluxTransformer2DModel(patch_size=1, **sizes, **widths).eval()
    image = vae(use_quant_conv=False, use_post_quant_conv=False, shift_factor=0.06)
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    return quiet(diffusers.FluxPipeline(scheduler, image, clip(words, 1), words, t5(32), words, transformer))


def controlled(count: int) -> Any:
    """SD with ``count`` ControlNets whose last layers aren't zero."""
    torch.manual_seed(9)
    nets = []
    for _ in range(count):
        net = diffusers.ControlNetModel.from_unet(unet(SD), conditioning_embedding_out_channels=(8, 16)).eval()
        for layer in (*net.controlnet_down_blocks, net.controlnet_mid_block, net.controlnet_cond_embedding.conv_out):
            torch.nn.init.normal_(layer.weight, std=0.2)
        nets.append(net)
    return sd(diffusers.StableDiffusionControlNetPipeline, controlnet=nets if count > 1 else nets[0])


def quiet(pipeline: Any) -> Any:
    """``pipeline`` without progress bars."""
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def picture(pipeline: Any, seed: int = 0, **changes: Any) -> np.ndarray:
    """What ``pipeline`` draws, [B, H, W, 3] in 0..1."""
    settings = {"prompt": PROMPT, "height": 32, "width": 32, "num_inference_steps": 2, "output_type": "np"}
    if "image" in changes and "strength" in changes:
        del settings["height"], settings["width"]
    return np.asarray(pipeline(**{**settings, **changes}, generator=torch.Generator().manual_seed(seed)).images)


def noise_picture(size: int = 32) -> Image.Image:
    """A picture to begin from or to be controlled by."""
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (size, size, 3), dtype=np.uint8))


def lora(pipeline: Any, seed: int, rank: int = 2) -> dict[str, torch.Tensor]:
    """A LoRA for the UNet and the text encoder, in the format that ``load_lora_weights`` takes."""
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, torch.Tensor] = {}
    for prefix in ("unet", "text_encoder"):
        for name, layer in getattr(pipeline, prefix).named_modules():
            if name.endswith(("to_q", "to_v", "to_out.0", "q_proj", "v_proj")):
                weights[f"{prefix}.{name}.lora_A.weight"] = (
                    torch.randn(rank, layer.in_features, generator=generator) / 2
                )
                weights[f"{prefix}.{name}.lora_B.weight"] = (
                    torch.randn(layer.out_features, rank, generator=generator) / 2
                )
    return weights


def ip_adapter(pipeline: Any, width: int = 24) -> dict[str, dict[str, torch.Tensor]]:
    """An IP-Adapter of 4 tokens for image embeddings of ``width``."""
    generator = torch.Generator().manual_seed(3)
    keys: dict[str, torch.Tensor] = {}
    for number, name in enumerate(pipeline.unet.attn_processors):
        if name.endswith("attn2.processor"):
            inner = pipeline.unet.get_submodule(name.removesuffix(".processor")).inner_dim
            keys |= {f"{number}.to_{kind}_ip.weight": torch.randn(inner, 32, generator=generator) / 5 for kind in "kv"}
    projection = {"proj.weight": torch.randn(4 * 32, width, generator=generator) / 5, "proj.bias": torch.zeros(4 * 32)}
    return {
        "image_proj": {**projection, "norm.weight": torch.ones(32), "norm.bias": torch.zeros(32)},
        "ip_adapter": keys,
    }
