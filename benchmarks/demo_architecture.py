"""The demo's models: diffusers' and transformers' own classes at a size of 11.5 MB, and the tokenizer's files.

Small but not simplified: the tracer meets ResNet blocks with GroupNorm and SiLU, transformers with self- and
cross-attention over 77 tokens, GEGLU, a VAE with attention in its middle, and a causal CLIP text encoder.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .demo_data import RESOLUTION

MAX_TOKENS = 77
_START, _END = "<|startoftext|>", "<|endoftext|>"


def _byte_characters() -> list[str]:
    """A visible character per byte, as CLIP's BPE writes them: printable Latin-1 as it is, others from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + number) for number in range(len(rest))]


def merges_for(words: Iterable[str]) -> list[tuple[str, str]]:
    """BPE merges, first to last, after which each word is one piece; words must be lower-case letters.

    Each word is merged from the left as far as the merges so far take it, then gets merges of its own. A later merge
    has a lower rank, so it never changes how an earlier word is put together.
    """
    ranks: dict[tuple[str, str], int] = {}
    for word in sorted(set(words)):
        pieces = [*word[:-1], word[-1] + "</w>"]
        while len(pieces) > 1:
            pairs = list(zip(pieces, pieces[1:], strict=False))
            first = min(pairs, key=lambda pair: ranks.get(pair, len(ranks)))
            if first not in ranks:
                first = pairs[0]
                ranks[first] = len(ranks)
            merged: list[str] = []
            while pieces:
                if len(pieces) > 1 and (pieces[0], pieces[1]) == first:
                    merged.append(pieces[0] + pieces[1])
                    pieces = pieces[2:]
                else:
                    merged.append(pieces[0])
                    pieces = pieces[1:]
            pieces = merged
    return list(ranks)


def write_tokenizer(folder: Path, texts: Iterable[str]) -> None:
    """Write CLIPTokenizer's files (transformers 4 and 5) for the words of ``texts``; others split into letters."""
    words = {word.strip(",") for text in texts for word in text.split()}
    merges = merges_for(words)
    characters = _byte_characters()
    pieces = [
        *characters,
        *(character + "</w>" for character in characters),
        *("".join(pair) for pair in merges),
        _START,
        _END,
    ]
    folder.mkdir(parents=True, exist_ok=True)
    special = {"bos_token": _START, "eos_token": _END, "pad_token": _END, "unk_token": _END}
    config = {
        "tokenizer_class": "CLIPTokenizer",
        "model_max_length": MAX_TOKENS,
        "do_lower_case": True,
        "errors": "replace",
        **special,
    }
    files = {
        "vocab.json": json.dumps({piece: number for number, piece in enumerate(pieces)}, ensure_ascii=False),
        "merges.txt": "\n".join(["#version: 0.2", *(" ".join(pair) for pair in merges)]) + "\n",
        "tokenizer_config.json": json.dumps(config, indent=2) + "\n",
        "special_tokens_map.json": json.dumps(special, indent=2) + "\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def _start_calm(model: Any, last_layers: tuple[str, ...]) -> None:
    """Set the last layer of each residual branch to zero, so that training starts from a nearly linear network.

    Measured on the VAE after 120 steps of 8 pictures, absolute error: 0.147 with this and 1e-4, 0.227 without, 0.40 at
    a rate of 1e-3.
    """
    for name, module in model.named_modules():
        if name.endswith(last_layers):
            for parameter in module.parameters():
                parameter.detach().zero_()


def build_vae() -> Any:
    """AutoencoderKL: [B, 3, 64, 64] <-> [B, 4, 16, 16], 0.95 M parameters."""
    from diffusers import AutoencoderKL

    vae = AutoencoderKL(
        sample_size=RESOLUTION,
        latent_channels=4,
        block_out_channels=(32, 64, 64),
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        layers_per_block=1,
        # GroupNorm takes a group's mean away, and with it flat colours: with 2 channels a group it learned far slower
        norm_num_groups=4,
    )
    _start_calm(vae, ("conv2", "to_out.0"))
    vae.quant_conv.bias.detach()[4:].fill_(-4.0)  # log variance: start with little noise on the latents
    return vae


def build_unet() -> Any:
    """UNet2DConditionModel at 16x16, 8x8 and 4x4, laid out as SD1.5's (no attention on the way at the lowest level),
    3.9 M parameters.
    """
    from diffusers import UNet2DConditionModel

    unet = UNet2DConditionModel(
        sample_size=RESOLUTION // 4,
        in_channels=4,
        out_channels=4,
        block_out_channels=(64, 64, 128),
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        layers_per_block=1,
        attention_head_dim=4,  # diffusers reads this as the number of heads, as in SD1.5
        cross_attention_dim=128,
        norm_num_groups=8,
    )
    _start_calm(unet, ("conv2", "proj_out", "conv_out"))
    return unet


def build_text_encoder(tokenizer: Any) -> Any:
    """CLIPTextModel, 4 layers of 128, for ``tokenizer``'s pieces, 0.9 M parameters."""
    from transformers import CLIPTextConfig, CLIPTextModel

    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=512,
        projection_dim=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=MAX_TOKENS,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return CLIPTextModel(config)


def build_scheduler() -> Any:
    """DDIM on the velocity, with no signal left at the last step, so that a ground may be all white or all black."""
    from diffusers import DDIMScheduler

    return DDIMScheduler(
        num_train_timesteps=1000,
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        prediction_type="v_prediction",
        rescale_betas_zero_snr=True,
        timestep_spacing="trailing",
        steps_offset=1,  # without effect with "trailing", but diffusers warns of 0
        clip_sample=False,
    )


def save_pipeline(folder: Path, pipeline: Any) -> None:
    """Write ``pipeline`` in diffusers' format with fp16 weights, readable by transformers 4 and 5.

    Its dtype becomes fp16.
    """
    import torch
    from safetensors.torch import load_file, save_file

    tokenizer_files = {name: (folder / "tokenizer" / name).read_bytes() for name in _files_of(folder / "tokenizer")}
    pipeline.to(torch.float16)
    pipeline.save_pretrained(folder, safe_serialization=True)
    # transformers 5 writes one tokenizer.json, which the slow tokenizer of transformers 4 can't read: keep vocab.json
    # and merges.txt only.
    for name in _files_of(folder / "tokenizer"):
        (folder / "tokenizer" / name).unlink()
    for name, data in tokenizer_files.items():
        (folder / "tokenizer" / name).write_bytes(data)
    # transformers 5 also drops the prefix that transformers 4 expects (it would start from random weights) and that 5
    # still reads.
    weights = folder / "text_encoder" / "model.safetensors"
    tensors = {
        key if key.startswith("text_model.") else f"text_model.{key}": value
        for key, value in load_file(weights).items()
    }
    save_file(tensors, weights, metadata={"format": "pt"})
    for path in folder.rglob("*.safetensors"):
        path.chmod(0o644)  # safetensors writes files that only their owner can read


def _files_of(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.is_file()]
