"""Small transformers of diffusers', a family each, with random weights, and inputs for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

DTYPE = torch.bfloat16
Made = tuple[nn.Module, dict[str, Any]]


def _noise(*shape: int, dtype: torch.dtype = DTYPE) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


def flux() -> Made:
    from diffusers import FluxTransformer2DModel

    sizes = {"in_channels": 16, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 32, "num_attention_heads": 2}
    net = FluxTransformer2DModel(patch_size=1, joint_attention_dim=32, pooled_projection_dim=16, axes_dims_rope=(8, 12, 12), **sizes)
    ids = {"img_ids": torch.zeros(12, 3), "txt_ids": torch.zeros(5, 3)}
    given = {"hidden_states": _noise(1, 12, 16), "encoder_hidden_states": _noise(1, 5, 32), "pooled_projections": _noise(1, 16)}
    return net, {**given, **ids, "timestep": torch.ones(1), "return_dict": False}


def sd3() -> Made:
    from diffusers import SD3Transformer2DModel

    sizes = {"in_channels": 4, "num_layers": 2, "attention_head_dim": 32, "num_attention_heads": 2, "qk_norm": "rms_norm", "sample_size": 8}
    net = SD3Transformer2DModel(patch_size=2, joint_attention_dim=32, caption_projection_dim=64, pooled_projection_dim=16, pos_embed_max_size=8, **sizes)
    given = {"hidden_states": _noise(2, 4, 8, 8), "encoder_hidden_states": _noise(2, 5, 32), "pooled_projections": _noise(2, 16)}
    return net, {**given, "timestep": torch.ones(2), "return_dict": False}


def qwen_image() -> Made:
    from diffusers import QwenImageTransformer2DModel

    sizes = {"in_channels": 16, "out_channels": 4, "num_layers": 1, "attention_head_dim": 32, "num_attention_heads": 2, "joint_attention_dim": 32}
    net = QwenImageTransformer2DModel(patch_size=2, axes_dims_rope=(8, 12, 12), **sizes)
    given = {"hidden_states": _noise(1, 12, 16), "encoder_hidden_states": _noise(1, 5, 32), "timestep": torch.ones(1)}
    return net, {**given, "img_shapes": [[(1, 3, 4)]], "return_dict": False}


def wan() -> Made:
    from diffusers import WanTransformer3DModel

    sizes = {"in_channels": 4, "out_channels": 4, "num_layers": 1, "attention_head_dim": 32, "num_attention_heads": 2, "ffn_dim": 128}
    net = WanTransformer3DModel(patch_size=(1, 2, 2), text_dim=32, freq_dim=32, cross_attn_norm=True, rope_max_seq_len=32, **sizes)
    return net, {"hidden_states": _noise(1, 4, 2, 8, 8), "timestep": torch.ones(1), "encoder_hidden_states": _noise(1, 5, 32), "return_dict": False}


def ltx() -> Made:
    from diffusers import LTXVideoTransformer3DModel

    sizes = {"in_channels": 16, "out_channels": 16, "num_layers": 1, "attention_head_dim": 32, "num_attention_heads": 2, "cross_attention_dim": 64}
    net = LTXVideoTransformer3DModel(caption_channels=32, **sizes)
    given = {"hidden_states": _noise(1, 24, 16), "encoder_hidden_states": _noise(1, 5, 32), "timestep": torch.ones(1)}
    place = {"num_frames": 2, "height": 3, "width": 4}
    return net, {**given, **place, "encoder_attention_mask": None, "return_dict": False}


def lumina2() -> Made:
    from diffusers import Lumina2Transformer2DModel

    sizes = {"in_channels": 4, "out_channels": 4, "hidden_size": 96, "num_layers": 1, "num_refiner_layers": 1, "num_attention_heads": 3, "num_kv_heads": 1}
    net = Lumina2Transformer2DModel(sample_size=8, patch_size=2, cap_feat_dim=32, axes_dim_rope=(8, 12, 12), axes_lens=(16, 16, 16), multiple_of=32, **sizes)
    given = {"hidden_states": _noise(1, 4, 8, 8), "encoder_hidden_states": _noise(1, 5, 32), "timestep": torch.ones(1)}
    return net, {**given, "encoder_attention_mask": torch.ones(1, 5, dtype=torch.bool), "return_dict": False}


def chroma() -> Made:
    from diffusers import ChromaTransformer2DModel

    sizes = {"in_channels": 16, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 32, "num_attention_heads": 2, "joint_attention_dim": 32}
    net = ChromaTransformer2DModel(axes_dims_rope=(8, 12, 12), approximator_hidden_dim=32, approximator_layers=1, approximator_num_channels=16, **sizes)
    given = {"hidden_states": _noise(1, 12, 16), "encoder_hidden_states": _noise(1, 5, 32), "timestep": torch.ones(1)}
    return net, {**given, "img_ids": torch.zeros(12, 3), "txt_ids": torch.zeros(5, 3), "return_dict": False}


def hunyuan_video() -> Made:
    from diffusers import HunyuanVideoTransformer3DModel

    sizes = {"in_channels": 4, "out_channels": 4, "num_layers": 1, "num_single_layers": 1, "num_refiner_layers": 1}
    heads = {"attention_head_dim": 32, "num_attention_heads": 2, "rope_axes_dim": (8, 12, 12)}
    net = HunyuanVideoTransformer3DModel(patch_size=2, patch_size_t=1, text_embed_dim=32, pooled_projection_dim=16, **sizes, **heads)
    given = {"hidden_states": _noise(1, 4, 2, 4, 4), "encoder_hidden_states": _noise(1, 5, 32), "pooled_projections": _noise(1, 16)}
    more = {"encoder_attention_mask": torch.ones(1, 5, dtype=torch.long), "timestep": torch.ones(1), "guidance": torch.ones(1)}
    return net, {**given, **more, "return_dict": False}


def mochi() -> Made:
    from diffusers import MochiTransformer3DModel

    sizes = {"in_channels": 4, "out_channels": 4, "num_layers": 2, "attention_head_dim": 32, "num_attention_heads": 2, "pooled_projection_dim": 32}
    net = MochiTransformer3DModel(patch_size=2, text_embed_dim=32, time_embed_dim=16, max_sequence_length=8, **sizes)
    given = {"hidden_states": _noise(1, 4, 2, 4, 4), "encoder_hidden_states": _noise(1, 5, 32), "timestep": torch.ones(1)}
    return net, {**given, "encoder_attention_mask": torch.ones(1, 5, dtype=torch.bool), "return_dict": False}


def cogvideox() -> Made:
    from diffusers import CogVideoXTransformer3DModel

    sizes = {"in_channels": 4, "out_channels": 4, "num_layers": 1, "attention_head_dim": 32, "num_attention_heads": 2, "text_embed_dim": 32}
    net = CogVideoXTransformer3DModel(time_embed_dim=16, sample_width=8, sample_height=8, sample_frames=5, max_text_seq_length=5, **sizes)
    return net, {"hidden_states": _noise(1, 2, 4, 8, 8), "encoder_hidden_states": _noise(1, 5, 32), "timestep": torch.ones(1), "return_dict": False}


def pixart() -> Made:
    from diffusers import PixArtTransformer2DModel

    sizes = {"in_channels": 4, "out_channels": 8, "num_layers": 1, "attention_head_dim": 32, "num_attention_heads": 2, "sample_size": 8}
    net = PixArtTransformer2DModel(cross_attention_dim=64, caption_channels=32, use_additional_conditions=False, **sizes)
    return net, {"hidden_states": _noise(1, 4, 8, 8), "encoder_hidden_states": _noise(1, 5, 32), "timestep": torch.ones(1), "return_dict": False}


def aura_flow() -> Made:
    from diffusers import AuraFlowTransformer2DModel

    sizes = {"in_channels": 4, "out_channels": 4, "num_mmdit_layers": 1, "num_single_dit_layers": 1, "attention_head_dim": 32, "num_attention_heads": 2}
    net = AuraFlowTransformer2DModel(sample_size=8, patch_size=2, joint_attention_dim=32, caption_projection_dim=64, pos_embed_max_size=16, **sizes)
    return net, {"hidden_states": _noise(1, 4, 8, 8), "encoder_hidden_states": _noise(1, 5, 32), "timestep": torch.ones(1), "return_dict": False}


def sana() -> Made:
    from diffusers import SanaTransformer2DModel

    sizes = {"in_channels": 4, "out_channels": 4, "num_layers": 1, "attention_head_dim": 16, "num_attention_heads": 4, "num_cross_attention_heads": 2}
    net = SanaTransformer2DModel(cross_attention_head_dim=32, cross_attention_dim=64, caption_channels=32, sample_size=8, patch_size=1, **sizes)
    return net, {"hidden_states": _noise(1, 4, 8, 8), "encoder_hidden_states": _noise(1, 5, 32), "timestep": torch.ones(1), "return_dict": False}


TRANSFORMERS: dict[str, Callable[[], Made]] = {
    make.__name__: make
    for make in (flux, sd3, qwen_image, wan, ltx, lumina2, chroma, hunyuan_video, mochi, cogvideox, pixart, aura_flow, sana)
}
