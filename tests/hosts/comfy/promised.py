"""What saved workflows rely on: ids, inputs with their order, group, type and default, outputs.

Changing anything here breaks somebody's.
"""

from __future__ import annotations

from typing import Any

_REQUIRED, _OPTIONAL = "required", "optional"
_SWITCHES = [
    ("enabled", _REQUIRED, "BOOLEAN", True),
    ("cuda_graphs", _REQUIRED, "BOOLEAN", True),
    ("settings", _OPTIONAL, "FAST_COMPILE_SETTINGS", None),
]
_SAMPLED = [
    ("model", _REQUIRED, "MODEL", None),
    ("positive", _REQUIRED, "CONDITIONING", None),
    ("negative", _REQUIRED, "CONDITIONING", None),
]
_CFG = ("cfg", _REQUIRED, "FLOAT", 8.0)

#: By id: the name that is shown, the inputs as (name, group, type, default), the outputs' types, and whether it ends a
#: workflow.
NODES: dict[str, tuple[str, list[tuple[str, str, str, Any]], list[str], bool]] = {
    "ApplyFastCompile": (
        "Apply Fast Compile",
        [("model", _REQUIRED, "MODEL", None), *_SWITCHES, ("quality", _OPTIONAL, "COMBO", "exact")],
        ["MODEL"],
        False,
    ),
    "ApplyFastCompileVAE": (
        "Apply Fast Compile (VAE)",
        [("vae", _REQUIRED, "VAE", None), *_SWITCHES, ("gpus", _OPTIONAL, "INT", 1)],
        ["VAE"],
        False,
    ),
    "ApplyFastCompileCLIP": (
        "Apply Fast Compile (CLIP)",
        [("clip", _REQUIRED, "CLIP", None), *_SWITCHES],
        ["CLIP"],
        False,
    ),
    "ApplyFastCompileControlNet": (
        "Apply Fast Compile (ControlNet)",
        [("control_net", _REQUIRED, "CONTROL_NET", None), *_SWITCHES],
        ["CONTROL_NET"],
        False,
    ),
    "FastCompileSettings": (
        "Fast Compile Settings",
        [
            ("graph_memory_mb", _REQUIRED, "INT", 0),
            ("capture_after", _REQUIRED, "INT", 2),
            ("adopt_weights", _REQUIRED, "BOOLEAN", True),
            ("measure_impls", _REQUIRED, "BOOLEAN", True),
            ("disabled_rewrites", _REQUIRED, "STRING", ""),
            ("quality_budget", _OPTIONAL, "FLOAT", 0.0),
            ("quality_layers", _OPTIONAL, "STRING", ""),
            ("quality_parts", _OPTIONAL, "STRING", ""),
        ],
        ["FAST_COMPILE_SETTINGS"],
        False,
    ),
    "FastCompileSeveralGPUs": (
        "Fast Compile on Several GPUs",
        [("model", _REQUIRED, "MODEL", None), ("gpus", _REQUIRED, "INT", 0), ("devices", _OPTIONAL, "STRING", "")],
        ["MODEL"],
        False,
    ),
    "FastCompileWarmUp": (
        "Fast Compile Warm-Up",
        [*_SAMPLED, ("sizes", _REQUIRED, "STRING", "1024x1024"), _CFG],
        ["MODEL"],
        False,
    ),
    "FastCompileReport": (
        "Fast Compile Report",
        [("of", _OPTIONAL, "*", None), ("after", _OPTIONAL, "*", None)],
        ["STRING", "IMAGE"],
        True,
    ),
    "FastCompileBenchmark": (
        "Fast Compile Benchmark",
        [
            *_SAMPLED,
            ("width", _REQUIRED, "INT", 1024),
            ("height", _REQUIRED, "INT", 1024),
            ("batch_size", _REQUIRED, "INT", 1),
            ("steps", _REQUIRED, "INT", 20),
            _CFG,
            ("sampler_name", _REQUIRED, "COMBO", "euler"),
            ("scheduler", _REQUIRED, "COMBO", "normal"),
            ("rounds", _REQUIRED, "INT", 3),
        ],
        ["IMAGE", "STRING"],
        True,
    ),
    "FastCompileFreeMemory": ("Free Fast Compile Memory", [("anything", _REQUIRED, "*", None)], ["*"], True),
}


def inputs_of(described: dict[str, Any]) -> list[tuple[str, str, str, Any]]:
    """The inputs of a node as a ComfyUI describes them (``INPUT_TYPES``, ``/object_info``), in the form of
    :data:`NODES`.
    """
    found = []
    for group in (_REQUIRED, _OPTIONAL):
        for name, (kind, *more) in described.get(group, {}).items():
            found.append(
                (
                    name,
                    group,
                    "COMBO" if isinstance(kind, list) else str(kind),
                    more[0].get("default") if more else None,
                )
            )
    return found
