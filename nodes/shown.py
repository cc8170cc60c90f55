"""Text that a node shows on itself."""

from __future__ import annotations

import sys
from typing import Any

from comfy_api.latest import ui


def show(text: str) -> ui.PreviewText:
    """The ``ui`` of a node's output that shows ``text``. Also sent as progress text, which the editor shows on any node."""
    server: Any = getattr(getattr(sys.modules.get("server"), "PromptServer", None), "instance", None)
    node = _node()
    if node is not None and hasattr(server, "send_progress_text"):
        try:
            server.send_progress_text(text, node)
        except Exception:  # nobody listens, or not any more: the text is in the output too
            pass
    return ui.PreviewText(text)


def _node() -> str | None:
    """The id of the node that is being executed, where this ComfyUI tells."""
    try:
        from comfy_execution.utils import get_executing_context
    except ImportError:
        return None
    context = get_executing_context()
    return None if context is None else context.node_id
