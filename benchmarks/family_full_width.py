"""Model families of ComfyUI at their true width and length, with few blocks, made of :mod:`.family_models`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .family_models import FAMILIES, Family, noise, ones

_CLIP = (1, 16, 21, 60, 104)  #: 480p, 81 frames


def _wide(
    name: str,
    latent: tuple[int, ...],
    context: tuple[int, int],
    unet: Mapping[str, Any],
    pooled: int | None = None,
    **more: Any,
) -> Family:
    """A family with these in the place of its small sizes."""
    small = FAMILIES[name]
    return replace(
        small,
        unet={**small.unet, **unet},
        latent=latent,
        context=context,
        pooled=small.pooled if pooled is None else pooled,
        **more,
    )


_FLUX = {"context_in_dim": 4096, "hidden_size": 3072, "num_heads": 24, "depth": 3, "depth_single_blocks": 6}
_SD35 = {
    **{
        "depth": 38,
        "num_blocks": 4,
        "num_patches": 36864,
        "pos_embed_max_size": 192,
        "adm_in_channels": 2048,
        "x_block_self_attn_layers": [],
    },
    "context_embedder_config": {"target": "torch.nn.Linear", "params": {"in_features": 4096, "out_features": 2432}},
}
_WAN_5B = (
    (1, 48, 21, 44, 80),
    (512, 4096),
    {"dim": 3072, "num_heads": 24, "ffn_dim": 14336, "num_layers": 3, "text_dim": 4096},
)
_LTX_2 = (
    (1, 128, 13, 16, 24),
    (384, 2 * 3840),
    {
        **{"num_layers": 2, "cross_attention_dim": 4096, "num_attention_heads": 32, "caption_channels": 3840},
        **{"audio_cross_attention_dim": 2048, "audio_num_attention_heads": 32},
    },
)
_LTX_2_MORE: dict[str, Any] = {"more": {"attention_mask": ones(1, 384)}, "sound": (1, 8, 126, 16)}
WIDE = {
    "Flux dev, 3 + 6 blocks": _wide(
        "Flux", (1, 16, 128, 128), (512, 4096), {**_FLUX, "vec_in_dim": 768, "guidance_embed": True}, 768
    ),
    "Flux.2 dev, 1 + 3 blocks": _wide(
        "Flux.2",
        (1, 128, 64, 64),
        (512, 15360),
        {
            "context_in_dim": 15360,
            "hidden_size": 6144,
            "num_heads": 48,
            "depth": 1,
            "depth_single_blocks": 3,
            "guidance_embed": True,
        },
    ),
    "Chroma, 3 + 6 blocks": _wide(
        "Chroma", (1, 16, 128, 128), (256, 4096), {**_FLUX, "out_dim": 3072, "hidden_dim": 5120, "n_layers": 5}, cfg=4.0
    ),
    "Qwen-Image, 6 blocks": Family(
        "QwenImage",
        {"image_model": "qwen_image", "in_channels": 64, "num_layers": 6},
        (1, 16, 1, 128, 128),
        (100, 3584),
        cfg=4.0,
    ),
    "Qwen-Image Edit, 6 blocks": _wide(
        "Qwen-Image Edit 2511",
        (1, 16, 1, 128, 128),
        (300, 3584),
        {"num_layers": 6, "num_attention_heads": 24, "joint_attention_dim": 3584},
        more={"reference_latents": lambda seed: [noise(1, 16, 1, 128, 128)(seed)]},
    ),
    "Z-Image, 4 + 4 blocks": _wide(
        "Z-Image",
        (1, 16, 128, 128),
        (200, 2560),
        {
            "dim": 3840,
            "cap_feat_dim": 2560,
            "n_layers": 4,
            "n_heads": 30,
            "n_kv_heads": 30,
            "axes_lens": [1536, 512, 512],
            "n_refiner_layers": 2,
        },
    ),
    "Wan 14B, 2 blocks": _wide(
        "Wan 2.1 and 2.2",
        _CLIP,
        (512, 4096),
        {"dim": 5120, "num_heads": 40, "ffn_dim": 13824, "num_layers": 2, "text_dim": 4096},
    ),
    "Wan 2.2 5B, 3 blocks": _wide("Wan 2.2 5B", *_WAN_5B),
    "Wan 2.2 5B from a picture, 3 blocks": _wide("Wan 2.2 5B, from a picture", *_WAN_5B),
    "HunyuanVideo, 2 + 4 blocks": _wide(
        "Hunyuan Video",
        (1, 16, 9, 60, 104),
        (256, 4096),
        {"context_in_dim": 4096, "hidden_size": 3072, "num_heads": 24, "depth": 2, "depth_single_blocks": 4},
    ),
    "LTX-Video, 8 blocks": _wide(
        "LTX-Video",
        (1, 128, 13, 16, 24),
        (128, 4096),
        {"num_layers": 8, "cross_attention_dim": 2048, "num_attention_heads": 32, "caption_channels": 4096},
        more={"attention_mask": ones(1, 128)},
    ),
    "LTX-2, 2 blocks": _wide("LTX-2", *_LTX_2, **_LTX_2_MORE),
    "LTX-2 from a picture, 2 blocks": _wide("LTX-2, from a picture", *_LTX_2, **_LTX_2_MORE),
    "Krea 2, 3 blocks": _wide(
        "Krea 2",
        (1, 16, 1, 128, 128),
        (100, 12 * 2560),
        {"features": 6144, "layers": 3, "heads": 48, "kvheads": 12, "txtdim": 2560},
    ),
    "SD3.5 large, 4 blocks": _wide("SD3.5", (1, 16, 128, 128), (154, 4096), _SD35, 2048),
}
