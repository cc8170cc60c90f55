"""The model families of ComfyUI, each as small as its class lets it be: its own code and options, few and narrow blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

Make = Callable[[int], Any]


@dataclass(frozen=True)
class Family:
    """A family.

    Attributes:
        config: the name of its class in ``comfy.supported_models``.
        unet: what ComfyUI reads of a checkpoint's shapes, and the options of the class.
        latent: the shape of what is sampled; ``sound``: of the sound that is sampled beside it, if there is one.
        context: tokens and width of a prompt; ``pooled``: the width of its pooled output, if it has one.
        cfg: the guidance: at 1 the negative prompt isn't computed.
        more: what else comes with a prompt, by a number.
        from_picture: whether the first frame is given, and each frame has a time of its own.
    """

    config: str
    unet: Mapping[str, Any]
    latent: tuple[int, ...]
    context: tuple[int, int]
    pooled: int = 0
    cfg: float = 1.0
    more: Mapping[str, Make] = field(default_factory=dict)
    sound: tuple[int, ...] | None = None
    from_picture: bool = False

    def prompt(self, seed: int) -> list[Any]:
        """Random conditioning."""
        found = {name: make(seed + 1) for name, make in self.more.items()}
        if self.pooled:
            found["pooled_output"] = noise(1, self.pooled)(seed + 2)
        return [[noise(1, *self.context)(seed), found]]


def noise(*shape: int) -> Make:
    """Makes a random tensor."""
    return lambda seed: torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def ones(*shape: int) -> Make:
    """Makes a mask that hides nothing."""
    return lambda seed: torch.ones(shape, dtype=torch.long)


def numbers(below: int, *shape: int) -> Make:
    """Makes random tokens."""
    return lambda seed: torch.randint(0, below, shape, generator=torch.Generator().manual_seed(seed))


_UNET = {
    **{"image_size": 32, "in_channels": 4, "out_channels": 4, "model_channels": 64, "use_spatial_transformer": True, "legacy": False},
    **{"num_head_channels": 32, "num_res_blocks": [1, 1], "channel_mult": [1, 2], "transformer_depth": [1, 1], "transformer_depth_middle": 1},
    **{"transformer_depth_output": [1] * 4, "use_linear_in_transformer": True, "adm_in_channels": None, "use_temporal_attention": False},
}
_XL = {**_UNET, "num_classes": "sequential", "adm_in_channels": 2816, "context_dim": 256}
_VIDEO_UNET = {
    **{**_UNET, "in_channels": 8, "context_dim": 64, "num_classes": "sequential", "adm_in_channels": 768, "use_temporal_attention": True},
    **{"use_temporal_resblock": True, "extra_ff_mix_layer": True, "use_spatial_context": True, "merge_strategy": "learned_with_images"},
    **{"merge_factor": 0.0, "video_kernel_size": [3, 1, 1], "disable_temporal_crossattention": False},
}
_SD3 = {
    **{"in_channels": 16, "out_channels": 16, "patch_size": 2, "depth": 2, "input_size": None, "adm_in_channels": 256, "num_blocks": 2},
    **{"pos_embed_scaling_factor": None, "num_patches": 36, "pos_embed_max_size": 6},
    "context_embedder_config": {"target": "torch.nn.Linear", "params": {"in_features": 256, "out_features": 128}},
}
_PIXART = {
    **{"num_heads": 2, "patch_size": 2, "hidden_size": 144, "in_channels": 4, "depth": 2, "model_max_length": 20, "input_size": 64},
    **{"pe_interpolation": 1, "image_model": "pixart_sigma", "micro_condition": False},
}
_HYDIT = {"image_model": "hydit", "depth": 4, "hidden_size": 176, "num_heads": 2, "mlp_ratio": 4.3637}
_FLUX = {
    **{"image_model": "flux", "in_channels": 16, "out_channels": 16, "vec_in_dim": 768, "context_in_dim": 256, "hidden_size": 256},
    **{"mlp_ratio": 4.0, "num_heads": 2, "depth": 1, "depth_single_blocks": 2, "axes_dim": [16, 56, 56], "theta": 10000, "patch_size": 2},
    **{"qkv_bias": True, "guidance_embed": True, "txt_ids_dims": [], "yak_mlp": False, "txt_norm": False},
}
_FLUX2 = {
    **{**_FLUX, "image_model": "flux2", "in_channels": 128, "out_channels": 128, "vec_in_dim": None, "mlp_ratio": 3.0, "theta": 2000},
    **{"axes_dim": [32, 32, 32, 32], "patch_size": 1, "qkv_bias": False, "guidance_embed": False, "txt_ids_dims": [3]},
    **{"global_modulation": True, "mlp_silu_act": True, "ops_bias": False, "default_ref_method": "index", "ref_index_scale": 10.0},
}
_CHROMA = {
    **{name: value for name, value in _FLUX.items() if name not in ("guidance_embed", "yak_mlp", "txt_norm")},
    **{"image_model": "chroma", "in_channels": 64, "out_channels": 64, "in_dim": 64, "out_dim": 256, "hidden_dim": 256, "n_layers": 2},
    "vec_in_dim": None,
}
_LUMINA = {
    **{"image_model": "lumina2", "patch_size": 2, "in_channels": 16, "cap_feat_dim": 256, "n_layers": 1, "qk_norm": True},
    **{"n_refiner_layers": 1, "axes_lens": [300, 512, 512]},
}
_Z_IMAGE = {
    **{**_LUMINA, "dim": 256, "n_heads": 2, "n_kv_heads": 2, "axes_dims": [32, 48, 48], "rope_theta": 256.0, "ffn_dim_multiplier": 8 / 3},
    **{"z_image_modulation": True, "time_scale": 1000.0, "pad_tokens_multiple": 32},
}
_HIDREAM = {
    **{"image_model": "hidream", "attention_head_dim": 128, "axes_dims_rope": [64, 32, 32], "caption_channels": [256, 256], "patch_size": 2},
    **{"max_resolution": [128, 128], "in_channels": 16, "out_channels": 16, "llama_layers": [0, 1], "num_attention_heads": 2, "num_layers": 1},
    **{"num_routed_experts": 4, "num_activated_experts": 2, "num_single_layers": 1, "text_emb_dim": 256},
}
_OMNIGEN = {
    **{"image_model": "omnigen2", "axes_dim_rope": [40, 40, 40], "axes_lens": [1024, 1664, 1664], "ffn_dim_multiplier": None, "in_channels": 16},
    **{"hidden_size": 360, "multiple_of": 256, "norm_eps": 1e-5, "num_attention_heads": 3, "num_kv_heads": 1, "num_layers": 1},
    **{"num_refiner_layers": 1, "out_channels": None, "patch_size": 2, "text_feat_dim": 256, "timestep_scale": 1000.0},
}
_KREA = {
    **{"image_model": "krea2", "features": 256, "channels": 16, "patch": 2, "layers": 2, "heads": 2, "kvheads": 1, "txtdim": 2560},
    "txtlayers": 12,
}
_QWEN = {"image_model": "qwen_image", "in_channels": 64, "num_layers": 1, "num_attention_heads": 2, "joint_attention_dim": 256}
_WAN = {
    **{"image_model": "wan2.1", "dim": 256, "out_dim": 16, "num_heads": 2, "ffn_dim": 512, "num_layers": 2, "patch_size": (1, 2, 2)},
    **{"freq_dim": 256, "window_size": (-1, -1), "qk_norm": True, "cross_attn_norm": True, "eps": 1e-6, "in_dim": 16, "model_type": "t2v"},
    "text_dim": 256,
}
_HUNYUAN = {
    **{"image_model": "hunyuan_video", "in_channels": 16, "patch_size": [1, 2, 2], "out_channels": 16, "vec_in_dim": 768, "theta": 256},
    **{"axes_dim": [16, 56, 56], "meanflow": False, "context_in_dim": 256, "hidden_size": 256, "mlp_ratio": 4.0, "num_heads": 2, "depth": 1},
    **{"depth_single_blocks": 2, "qkv_bias": True, "byt5": False, "guidance_embed": True, "use_cond_type_embedding": False},
    **{"vision_in_dim": None, "meanflow_sum": False},
}
_LTX = {
    **{"image_model": "ltxv", "num_layers": 2, "attention_head_dim": 64, "cross_attention_dim": 128, "num_attention_heads": 2},
    "caption_channels": 256,
}
_LTX_2 = {
    **{"image_model": "ltxav", "num_layers": 1, "attention_head_dim": 128, "cross_attention_dim": 256, "num_attention_heads": 2},
    **{"audio_attention_head_dim": 64, "audio_cross_attention_dim": 128, "audio_num_attention_heads": 2, "caption_channels": 192},
}
_COSMOS2 = {
    **{"image_model": "cosmos_predict2", "max_img_h": 240, "max_img_w": 240, "max_frames": 128, "in_channels": 16, "out_channels": 16},
    **{"patch_spatial": 2, "patch_temporal": 1, "model_channels": 256, "concat_padding_mask": True, "crossattn_emb_channels": 1024},
    **{"pos_emb_cls": "rope3d", "pos_emb_learnable": True, "pos_emb_interpolation": "crop", "min_fps": 1, "max_fps": 30},
    **{"use_adaln_lora": True, "adaln_lora_dim": 64, "num_blocks": 2, "num_heads": 2, "extra_per_block_abs_pos_emb": False},
    **{f"rope_{axis}_extrapolation_ratio": ratio for axis, ratio in (("h", 4.0), ("w", 4.0), ("t", 1.0))},
    **{f"extra_{axis}_extrapolation_ratio": 1.0 for axis in "hwt"},
    "rope_enable_fps_modulation": False,
}
_ACE = {
    **{"audio_model": "ace1.5", "hidden_size": 256, "intermediate_size": 512, "num_heads": 2, "encoder_hidden_size": 256, "fsq_dim": 256},
    **{"encoder_num_heads": 2, "encoder_intermediate_size": 512, "num_dit_layers": 2, "num_kv_heads": 1, "num_lyric_layers": 1},
    "num_timbre_layers": 1,
}
_KANDINSKY = {
    **{"image_model": "kandinsky5", "model_dim": 256, "axes_dims": (16, 24, 24), "time_dim": 128, "ff_dim": 512, "visual_embed_dim": 132},
    **{"num_text_blocks": 1, "num_visual_blocks": 1},
}
_COG = {
    **{"image_model": "cogvideox", "num_attention_heads": 4, "attention_head_dim": 64, "time_embed_dim": 256, "num_layers": 2, "patch_size": 2},
    **{"in_channels": 16, "text_embed_dim": 256, "use_learned_positional_embeddings": False, "use_rotary_positional_embeddings": True},
}
_HUNYUAN_3D = {"image_model": "hunyuan3d2_1", "in_channels": 64, "context_dim": 256, "hidden_size": 128, "mlp_ratio": 4.0, "num_heads": 2}
_IMAGE, _LATENT, _VIDEO = (1, 16, 16, 16), (1, 4, 16, 16), (1, 16, 3, 16, 16)
_IMAGE_OF_VIDEO = (1, 16, 1, 16, 16)

FAMILIES = {
    "SD1.5": Family("SD15", {**_UNET, "context_dim": 768, "use_linear_in_transformer": False}, _LATENT, (77, 768), cfg=5.0),
    "SD2.1": Family("SD20", {**_UNET, "context_dim": 256}, _LATENT, (77, 256), cfg=5.0),
    "SDXL": Family("SDXL", _XL, _LATENT, (77, 256), 1280, 5.0),
    "Stable Video Diffusion": Family("SVD_img2vid", _VIDEO_UNET, (3, 4, 16, 16), (1, 64), cfg=2.5, more={"concat_latent_image": noise(1, 4, 16, 16)}),
    "SD3": Family("SD3", _SD3, (1, 16, 12, 12), (20, 256), 256, 5.0),
    "SD3.5": Family("SD3", {**_SD3, "qk_norm": "rms", "x_block_self_attn_layers": [0]}, (1, 16, 12, 12), (20, 256), 256, 5.0),
    "AuraFlow": Family(
        "AuraFlow",
        {**{"max_seq": 64, "cond_seq_dim": 256, "n_double_layers": 1, "n_layers": 2, "dim": 512, "n_heads": 2}, "global_conddim": 512},
        _LATENT, (20, 256), cfg=5.0,
    ),
    "PixArt Sigma": Family("PixArtSigma", _PIXART, (1, 4, 72, 72), (20, 4096), cfg=5.0, more={name: lambda seed: 576 for name in ("width", "height")}),
    "Hunyuan DiT": Family(
        "HunyuanDiT", _HYDIT, _LATENT, (77, 1024), cfg=5.0,
        more={"attention_mask": ones(1, 77), "conditioning_mt5xl": noise(1, 256, 2048), "attention_mask_mt5xl": ones(1, 256)},
    ),
    "Flux": Family("Flux", _FLUX, _IMAGE, (20, 256), 768),
    "Flux Kontext": Family("Flux", _FLUX, _IMAGE, (20, 256), 768, more={"reference_latents": lambda seed: [noise(*_IMAGE)(seed)]}),
    "Flux.2": Family("Flux2", _FLUX2, (1, 128, 8, 8), (20, 256)),
    "LongCat Image": Family("LongCatImage", {**_FLUX, "vec_in_dim": None, "guidance_embed": False, "txt_ids_dims": [1, 2]}, _IMAGE, (20, 256), cfg=4.0),
    "Chroma": Family("Chroma", _CHROMA, _IMAGE, (20, 256), cfg=4.0),
    "Chroma Radiance": Family(
        "ChromaRadiance",
        {
            **{**_CHROMA, "image_model": "chroma_radiance", "in_channels": 3, "out_channels": 3, "patch_size": 16, "nerf_hidden_size": 64},
            **{"nerf_mlp_ratio": 4, "nerf_depth": 4, "nerf_max_freqs": 8, "nerf_tile_size": 512, "nerf_final_head_type": "conv"},
            **{"nerf_embedder_dtype": torch.float32, "use_x0": False, "use_sequential_txt_ids": False},
        },
        (1, 3, 64, 64), (20, 256), cfg=4.0,
    ),
    "Lumina 2": Family(
        "Lumina2",
        {**_LUMINA, "dim": 288, "n_heads": 3, "n_kv_heads": 1, "axes_dims": [32, 32, 32], "rope_theta": 10000.0, "ffn_dim_multiplier": 4.0},
        _IMAGE, (20, 256), cfg=4.0,
    ),
    "Z-Image": Family("ZImage", _Z_IMAGE, _IMAGE, (20, 256)),
    "HiDream": Family("HiDream", _HIDREAM, _IMAGE, (16, 256), 256, 5.0, {"conditioning_llama3": noise(1, 32, 16, 256)}),
    "OmniGen 2": Family("Omnigen2", _OMNIGEN, _IMAGE, (20, 256), cfg=4.0, more={"attention_mask": ones(1, 20)}),
    "Qwen-Image": Family("QwenImage", _QWEN, _IMAGE_OF_VIDEO, (20, 256), cfg=4.0),
    "Qwen-Image Edit": Family("QwenImage", _QWEN, _IMAGE_OF_VIDEO, (20, 256), more={"reference_latents": lambda seed: [noise(*_IMAGE_OF_VIDEO)(seed)]}),
    "Qwen-Image Edit 2511": Family(
        "QwenImage", {**_QWEN, "default_ref_method": "index_timestep_zero"}, _IMAGE_OF_VIDEO, (20, 256),
        more={"reference_latents": lambda seed: [noise(*_IMAGE_OF_VIDEO)(seed)]},
    ),
    "Wan 2.1 and 2.2": Family("WAN21_T2V", _WAN, _VIDEO, (20, 256)),
    "Wan 2.2 5B": Family("WAN22_T2V", {**_WAN, "in_dim": 48, "out_dim": 48}, (1, 48, 3, 8, 8), (20, 256)),
    "Wan 2.2 5B, from a picture": Family("WAN22_T2V", {**_WAN, "in_dim": 48, "out_dim": 48}, (1, 48, 3, 8, 8), (20, 256), from_picture=True),
    "Hunyuan Video": Family("HunyuanVideo", _HUNYUAN, _VIDEO, (20, 256), 768),
    "Hunyuan Video 1.5": Family(
        "HunyuanVideo15",
        {
            **{**_HUNYUAN, "in_channels": 65, "out_channels": 32, "patch_size": [1, 1, 1], "vec_in_dim": None, "depth": 2},
            **{"depth_single_blocks": 0, "byt5": True, "guidance_embed": False, "use_cond_type_embedding": True, "vision_in_dim": 1152},
            "meanflow_sum": True,
        },
        (1, 32, 3, 8, 8), (20, 256), 768, 6.0, {"conditioning_byt5small": noise(1, 32, 1472)},
    ),
    "LTX-Video": Family("LTXV", _LTX, (1, 128, 2, 4, 4), (16, 256), cfg=3.0, more={"attention_mask": ones(1, 16)}),
    "LTX-2": Family(
        "LTXAV", _LTX_2, (1, 128, 2, 4, 4), (16, 384), cfg=3.0, more={"attention_mask": ones(1, 16)}, sound=(1, 8, 12, 16)
    ),
    "LTX-2, from a picture": Family(
        "LTXAV", _LTX_2, (1, 128, 2, 4, 4), (16, 384), cfg=3.0, more={"attention_mask": ones(1, 16)}, sound=(1, 8, 12, 16), from_picture=True
    ),
    "Cosmos-Predict2": Family("CosmosT2IPredict2", _COSMOS2, _IMAGE_OF_VIDEO, (20, 1024), cfg=4.0),
    "Anima": Family(
        "Anima", {**_COSMOS2, "image_model": "anima"}, _IMAGE_OF_VIDEO, (20, 1024), cfg=4.0,
        more={"t5xxl_ids": numbers(30000, 20), "t5xxl_weights": lambda seed: torch.ones(20)},
    ),
    "ACE-Step 1.5": Family("ACEStep15", _ACE, (1, 64, 40), (16, 1024), more={"conditioning_lyrics": noise(1, 16, 1024)}),
    "Kandinsky 5": Family("Kandinsky5", _KANDINSKY, (1, 16, 2, 16, 16), (20, 3584), 768, 5.0),
    "CogVideoX": Family("CogVideoX_T2V", _COG, (1, 16, 2, 16, 16), (20, 256), cfg=6.0),
    "ERNIE Image": Family(
        "ErnieImage", {"image_model": "ernie", "num_layers": 2, "hidden_size": 256, "num_attention_heads": 2, "ffn_hidden_size": 512},
        (1, 128, 8, 8), (20, 3072), cfg=4.0,
    ),
    "Krea 2": Family("Krea2", _KREA, _IMAGE_OF_VIDEO, (16, 12 * 2560), cfg=4.0),
    "Krea 2 Edit": Family(
        "Krea2", _KREA, _IMAGE_OF_VIDEO, (16, 12 * 2560),
        more={"reference_latents": lambda seed: [noise(*_IMAGE_OF_VIDEO)(seed)], "reference_latents_method": lambda seed: "index_timestep_zero"},
    ),
    "Mage Flow": Family(
        "MageFlow", {"image_model": "mage_flow", "in_channels": 128, "num_layers": 1, "num_attention_heads": 2}, (1, 128, 8, 8), (20, 2560), cfg=4.0
    ),
    "Lens": Family(
        "Lens",
        {
            **{"image_model": "lens", "in_channels": 128, "out_channels": 32, "num_layers": 1, "num_attention_heads": 2, "enc_hidden_dim": 128},
            **{"multi_layer_encoder_feature": True, "selected_layer_index": (0, 1, 2, 3)},
        },
        (1, 128, 8, 8), (20, 512), cfg=4.0, more={"attention_mask": ones(1, 20)},
    ),
    "Joy Image": Family(
        "JoyImage",
        {"image_model": "joyimage", "in_channels": 16, "hidden_size": 256, "patch_size": [1, 2, 2], "num_layers": 1, "num_attention_heads": 2, "text_dim": 256},
        _IMAGE_OF_VIDEO, (20, 256), cfg=4.0,
    ),
    "PixelDiT": Family(
        "PixelDiTT2I",
        {
            **{"image_model": "pixeldit_t2i", "num_groups": 2, "hidden_size": 128, "pixel_attn_hidden_size": 128, "pixel_num_groups": 2},
            **{"patch_depth": 2, "pixel_depth": 1},
        },
        (1, 3, 64, 64), (20, 2304), cfg=4.0,
    ),
    "Hunyuan3D 2.1": Family("Hunyuan3Dv2_1", {**_HUNYUAN_3D, "depth": 7, "qkv_bias": False, "guidance_cond_proj_dim": None}, (1, 64, 32), (20, 256), cfg=5.0),
}  # fmt: skip
