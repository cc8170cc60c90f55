"""A SD1.5 checkpoint with random weights that A1111 and Forge load, as small as Forge's detection lets it be (a UNet of
44 M parameters, the whole CLIP-L, the whole VAE: 500 MB), a LoRA for it, and what A1111 would download: a CLIP
tokenizer, here one without merges.

The names are those of the original repository's state dicts, written down here and in ``benchmarks/clip_shapes.py``, so
that no host is needed to make one.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.clip_shapes import Shapes, affine, clip_l, linear

WIDTH, CONTEXT, TIME = 320, 768, 1280
_PERIOD = 1_000_003  # a prime: no two rows of a weight are the same part of the noise


def _conv(name: str, rows: int, columns: int, size: int = 3) -> Shapes:
    yield f"{name}.weight", (rows, columns, size, size)
    yield f"{name}.bias", (rows,)


def _residual(name: str, before: int) -> Shapes:
    yield from affine(f"{name}.in_layers.0", before)
    yield from _conv(f"{name}.in_layers.2", WIDTH, before)
    yield from linear(f"{name}.emb_layers.1", WIDTH, TIME)
    yield from affine(f"{name}.out_layers.0", WIDTH)
    yield from _conv(f"{name}.out_layers.3", WIDTH, WIDTH)
    if before != WIDTH:
        yield from _conv(f"{name}.skip_connection", WIDTH, before, 1)


def _transformer(name: str) -> Shapes:
    yield from affine(f"{name}.norm", WIDTH)
    yield from _conv(f"{name}.proj_in", WIDTH, WIDTH, 1)
    yield from _conv(f"{name}.proj_out", WIDTH, WIDTH, 1)
    block = f"{name}.transformer_blocks.0"
    for attention, source in (("attn1", WIDTH), ("attn2", CONTEXT)):
        yield from linear(f"{block}.{attention}.to_q", WIDTH, WIDTH, bias=False)
        yield from linear(f"{block}.{attention}.to_k", WIDTH, source, bias=False)
        yield from linear(f"{block}.{attention}.to_v", WIDTH, source, bias=False)
        yield from linear(f"{block}.{attention}.to_out.0", WIDTH, WIDTH)
    yield from linear(f"{block}.ff.net.0.proj", 8 * WIDTH, WIDTH)
    yield from linear(f"{block}.ff.net.2", WIDTH, 4 * WIDTH)
    for norm in ("norm1", "norm2", "norm3"):
        yield from affine(f"{block}.{norm}", WIDTH)


def unet() -> Shapes:
    """Two resolutions of one residual block each, with a transformer everywhere."""
    name = "model.diffusion_model"
    yield from linear(f"{name}.time_embed.0", TIME, WIDTH)
    yield from linear(f"{name}.time_embed.2", TIME, TIME)
    yield from _conv(f"{name}.input_blocks.0.0", WIDTH, 4)
    yield from _conv(f"{name}.input_blocks.2.0.op", WIDTH, WIDTH)
    for index in (1, 3):
        yield from _residual(f"{name}.input_blocks.{index}.0", WIDTH)
        yield from _transformer(f"{name}.input_blocks.{index}.1")
    yield from _residual(f"{name}.middle_block.0", WIDTH)
    yield from _transformer(f"{name}.middle_block.1")
    yield from _residual(f"{name}.middle_block.2", WIDTH)
    for index in range(4):
        yield from _residual(f"{name}.output_blocks.{index}.0", 2 * WIDTH)
        yield from _transformer(f"{name}.output_blocks.{index}.1")
    yield from _conv(f"{name}.output_blocks.1.2.conv", WIDTH, WIDTH)
    yield from affine(f"{name}.out.0", WIDTH)
    yield from _conv(f"{name}.out.2", 4, WIDTH)


def _vae_block(name: str, before: int, width: int) -> Shapes:
    yield from affine(f"{name}.norm1", before)
    yield from _conv(f"{name}.conv1", width, before)
    yield from affine(f"{name}.norm2", width)
    yield from _conv(f"{name}.conv2", width, width)
    if before != width:
        yield from _conv(f"{name}.nin_shortcut", width, before, 1)


def _vae_half(
    name: str, side: str, blocks: list[tuple[int, list[int]]], width: int, resample: str, plain: int
) -> Shapes:
    """``blocks``: per resolution its index and the widths from block to block; ``plain``: the resolution that isn't
    resampled.
    """
    for block in ("block_1", "block_2"):
        yield from _vae_block(f"{name}.mid.{block}", 512, 512)
    yield from affine(f"{name}.mid.attn_1.norm", 512)
    for part in ("q", "k", "v", "proj_out"):
        yield from _conv(f"{name}.mid.attn_1.{part}", 512, 512, 1)
    for index, widths in blocks:
        for number, (before, after) in enumerate(zip(widths, widths[1:], strict=False)):
            yield from _vae_block(f"{name}.{side}.{index}.block.{number}", before, after)
        if index != plain:
            yield from _conv(f"{name}.{side}.{index}.{resample}.conv", widths[-1], widths[-1])
    yield from affine(f"{name}.norm_out", width)


def vae() -> Shapes:
    """The whole VAE: Forge takes its sizes for granted."""
    name = "first_stage_model"
    yield from _conv(f"{name}.encoder.conv_in", 128, 3)
    down = [(0, [128, 128, 128]), (1, [128, 256, 256]), (2, [256, 512, 512]), (3, [512, 512, 512])]
    yield from _vae_half(f"{name}.encoder", "down", down, 512, "downsample", 3)
    yield from _conv(f"{name}.encoder.conv_out", 8, 512)
    yield from _conv(f"{name}.quant_conv", 8, 8, 1)
    yield from _conv(f"{name}.post_quant_conv", 4, 4, 1)
    yield from _conv(f"{name}.decoder.conv_in", 512, 4)
    up = [(3, [512] * 4), (2, [512] * 4), (1, [512, 256, 256, 256]), (0, [256, 128, 128, 128])]
    yield from _vae_half(f"{name}.decoder", "up", up, 128, "upsample", 0)
    yield from _conv(f"{name}.decoder.conv_out", 3, 128)


def text_encoder() -> Shapes:
    """CLIP-L, with the buffer that old checkpoints hold."""
    yield from clip_l("cond_stage_model", CONTEXT)
    yield "cond_stage_model.transformer.text_model.embeddings.position_ids", (1, 77)


def _noise(shape: tuple[int, ...], seed: int, scale: float) -> torch.Tensor:
    count = math.prod(shape)
    base = torch.randn(min(count, _PERIOD), generator=torch.Generator().manual_seed(seed)) * scale
    return base.repeat(-(-count // base.numel()))[:count].reshape(shape)


def _value(name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    if name.endswith("position_ids"):
        return torch.arange(shape[-1]).expand(shape).contiguous()
    if len(shape) == 1:  # norms scale by about 1; the text encoder's mean mustn't be 0, A1111's emphasis divides by it
        scales = name.endswith(("norm.weight", "norm1.weight", "norm2.weight", "norm3.weight", "norm_out.weight"))
        scales = scales or name.endswith((".in_layers.0.weight", ".out_layers.0.weight", ".out.0.weight"))
        base = 1.0 if scales else 0.1 if name.endswith("final_layer_norm.bias") else 0.0
        return base + _noise(shape, seed, 0.3 if name.endswith("final_layer_norm.bias") else 0.02)
    gain = (
        0.02
        if "embedding" in name
        else (0.3 if name.endswith(".out.2.weight") else 1.0) / math.sqrt(math.prod(shape[1:]))
    )
    return _noise(shape, seed, gain)


def write_checkpoint(path: Path, seed: int = 0) -> None:
    """Write a checkpoint; another seed is another UNet."""
    shapes = [*unet(), *vae(), *text_encoder()]
    weights = {}
    for index, (name, shape) in enumerate(shapes):
        value = _value(name, shape, index + (seed if name.startswith("model.") else 0))
        weights[name] = value.half() if value.is_floating_point() else value
    save_file(weights, path)


def write_vae(path: Path) -> None:
    """Write a VAE by itself, another one than the checkpoints'."""
    weights = {
        name.removeprefix("first_stage_model."): _value(name, shape, 500 + index)
        for index, (name, shape) in enumerate(vae())
    }
    save_file(weights, path)


def write_lora(path: Path) -> None:
    """Write a LoRA on some attention layers of the UNet and of the text encoder, strong enough to be seen."""
    weights = {}
    text = [
        (f"lora_te_text_model_encoder_layers_{index}_self_attn_{part}", CONTEXT)
        for index in (0, 7)
        for part in ("q_proj", "v_proj")
    ]
    layers = (("attn1_to_q", WIDTH), ("attn1_to_v", WIDTH), ("attn2_to_k", CONTEXT), ("attn2_to_v", CONTEXT))
    for block in ("down_blocks_0_attentions_0", "mid_block_attentions_0"):
        for seed, (layer, columns) in enumerate(layers):
            weights |= _lora_layer(f"lora_unet_{block}_transformer_blocks_0_{layer}", WIDTH, columns, seed)
    for seed, (key, width) in enumerate(text, 50):
        weights |= _lora_layer(key, width, width, seed)
    save_file(weights, path, metadata={"ss_network_module": "networks.lora", "ss_base_model_version": "sd_v1"})


def _lora_layer(key: str, rows: int, columns: int, seed: int) -> dict[str, torch.Tensor]:
    down, up = _noise((4, columns), seed, 0.1), _noise((rows, 4), seed + 100, 0.1)
    return {f"{key}.lora_down.weight": down, f"{key}.lora_up.weight": up, f"{key}.alpha": torch.tensor(4.0)}


def write_tokenizer(folder: Path) -> None:
    """Write a CLIP tokenizer that knows single bytes alone, and the text encoder's config, in the form that
    ``transformers`` reads.
    """
    folder.mkdir(parents=True)
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [chr(256 + index) for index in range(256 - len(plain))]
    characters = [*map(chr, plain), *others]
    vocabulary = {text: index for index, text in enumerate([*characters, *(f"{c}</w>" for c in characters)])}
    vocabulary |= {"<|startoftext|>": 49406, "<|endoftext|>": 49407}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    special = {
        "bos_token": "<|startoftext|>",
        "eos_token": "<|endoftext|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
    }
    (folder / "special_tokens_map.json").write_text(json.dumps(special))
    tokenizer = {"tokenizer_class": "CLIPTokenizer", "model_max_length": 77, "do_lower_case": True, **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    model = {
        "model_type": "clip_text_model",
        "hidden_size": CONTEXT,
        "intermediate_size": 4 * CONTEXT,
        "num_hidden_layers": 12,
    }
    model |= {"num_attention_heads": 12, "vocab_size": 49408, "max_position_embeddings": 77, "hidden_act": "quick_gelu"}
    (folder / "config.json").write_text(json.dumps(model))


def write_config(path: Path, tokenizer: Path) -> None:
    """Write A1111's config for the checkpoint of the same name: SD1.5's, with our UNet and a tokenizer that needn't be
    downloaded.

    Args:
        path: the config's.
        tokenizer: what :func:`write_tokenizer` wrote.
    """
    unet = {
        "image_size": 32,
        "in_channels": 4,
        "out_channels": 4,
        "model_channels": WIDTH,
        "attention_resolutions": [2, 1],
    }
    unet |= {
        "num_res_blocks": 1,
        "channel_mult": [1, 1],
        "num_heads": 8,
        "use_spatial_transformer": True,
        "transformer_depth": 1,
    }
    unet |= {"context_dim": CONTEXT, "use_checkpoint": True, "legacy": False}
    vae = {
        "double_z": True,
        "z_channels": 4,
        "resolution": 256,
        "in_channels": 3,
        "out_ch": 3,
        "ch": 128,
        "ch_mult": [1, 2, 4, 4],
    }
    vae |= {"num_res_blocks": 2, "attn_resolutions": [], "dropout": 0.0}
    first = {"embed_dim": 4, "monitor": "val/rec_loss", "ddconfig": vae, "lossconfig": {"target": "torch.nn.Identity"}}
    params = {
        "linear_start": 0.00085,
        "linear_end": 0.0120,
        "num_timesteps_cond": 1,
        "log_every_t": 200,
        "timesteps": 1000,
    }
    params |= {
        "first_stage_key": "jpg",
        "cond_stage_key": "txt",
        "image_size": 64,
        "channels": 4,
        "cond_stage_trainable": False,
    }
    params |= {
        "conditioning_key": "crossattn",
        "monitor": "val/loss_simple_ema",
        "scale_factor": 0.18215,
        "use_ema": False,
    }
    parts: dict[str, Any] = {
        "unet_config": {"target": "ldm.modules.diffusionmodules.openaimodel.UNetModel", "params": unet},
        "first_stage_config": {"target": "ldm.models.autoencoder.AutoencoderKL", "params": first},
        "cond_stage_config": {
            "target": "ldm.modules.encoders.modules.FrozenCLIPEmbedder",
            "params": {"version": str(tokenizer)},
        },
    }
    model = {
        "base_learning_rate": 1e-4,
        "target": "ldm.models.diffusion.ddpm.LatentDiffusion",
        "params": {**params, **parts},
    }
    path.write_text(json.dumps({"model": model}))  # which is YAML
