"""What the nodes' schemas share."""

from __future__ import annotations

from comfy_api.latest import io

CATEGORY = "model/fast compile"
#: The type that connects ``Fast Compile Settings`` to ``Apply Fast Compile``: a CompileConfig.
SETTINGS = io.Custom("FAST_COMPILE_SETTINGS")


def aliases(*words: str) -> dict[str, list[str]]:
    """Words that the node's search finds a node by, where this ComfyUI knows such."""
    return {"search_aliases": list(words)} if "search_aliases" in io.Schema.__dataclass_fields__ else {}
