"""Text that a node shows on itself."""

from __future__ import annotations

from comfy_api.latest import ui

from ..sfast_core.hosts.comfy.events import executing_node, server


def show(text: str) -> ui.PreviewText:
    """The ``ui`` of a node's output that shows ``text``. Also sent as progress text, which the editor shows on any node."""
    node, listener = executing_node(), server()
    if node is not None and hasattr(listener, "send_progress_text"):
        try:
            listener.send_progress_text(text, node)
        except Exception:  # nobody listens, or not any more: the text is in the output too
            pass
    return ui.PreviewText(text)
