"""Text that a node shows on itself."""

from __future__ import annotations

from comfy_api.latest import ui


def show(text: str) -> ui.PreviewText:
    """The ``ui`` that shows ``text``, for the pack's own widget (web/js/text.js) and whoever asks for the outputs."""
    return ui.PreviewText(text)
