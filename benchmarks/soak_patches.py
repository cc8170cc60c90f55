"""Nodes of ComfyUI's own that ``benchmarks.soak`` puts between the model and the sampler, with their inputs behind the
model.
"""

from __future__ import annotations

import importlib
from typing import Any

#: name: file, class, inputs. All go with a UNet.
PATCHES: dict[str, tuple[str, str, tuple[Any, ...]]] = {
    "FreeU": ("nodes_freelunch", "FreeU_V2", (1.3, 1.4, 0.9, 0.2)),
    "FreeU, first version": ("nodes_freelunch", "FreeU", (1.1, 1.2, 0.9, 0.2)),
    "PAG": ("nodes_pag", "PerturbedAttentionGuidance", (3.0,)),
    "SAG": ("nodes_sag", "SelfAttentionGuidance", (0.5, 2.0)),
    "NAG": ("nodes_nag", "NAGuidance", (5.0, 0.5, 1.5)),
    "HyperTile": ("nodes_hypertile", "HyperTile", (32, 2, 0, False)),
    "token merging": ("nodes_tomesd", "TomePatchModel", (0.3,)),
    "deep shrink": ("nodes_model_downscale", "PatchModelAddDownscale", (1, 2.0, 0.0, 0.5, True, "bicubic", "bicubic")),
    "self attention multiplied": ("nodes_attention_multiply", "UNetSelfAttentionMultiply", (1.1, 0.9, 1.2, 1.0)),
    "cross attention multiplied": ("nodes_attention_multiply", "UNetCrossAttentionMultiply", (1.0, 1.0, 0.8, 1.1)),
    "EasyCache": ("nodes_easycache", "EasyCacheNode", (0.3, 0.1, 0.95, False)),
    "LazyCache": ("nodes_easycache", "LazyCacheNode", (0.3, 0.1, 0.95, False)),
    "v-prediction": ("nodes_model_advanced", "ModelSamplingDiscrete", ("v_prediction", False)),
    "RescaleCFG": ("nodes_model_advanced", "RescaleCFG", (0.7,)),
    "FreSca": ("nodes_fresca", "FreSca", (1.0, 1.25, 20)),
    "CFGZeroStar": ("nodes_cfg", "CFGZeroStar", ()),
    "APG": ("nodes_apg", "APG", (1.0, 5.0, 0.0)),
    "TCFG": ("nodes_tcfg", "TCFG", ()),
}


def patched(model: Any, names: tuple[str, ...]) -> Any:
    """The model behind these nodes, in order."""
    for name in names:
        file, kind, inputs = PATCHES[name]
        model = _node(file, kind, model, *inputs)
    return model


def _node(module: str, name: str, *inputs: Any) -> Any:
    """What a node gives first: some versions of ComfyUI have it in the old style, some in the new."""
    kind = getattr(importlib.import_module(f"comfy_extras.{module}"), name)
    if not hasattr(kind, "execute"):
        return getattr(kind(), kind.FUNCTION)(*inputs)[0]
    output = kind.execute(*inputs)
    return output[0] if isinstance(output, tuple) else output.result[0]
