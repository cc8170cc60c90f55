"""Keeps the same switch in several places in step: the accordions of both tabs, and the extension's own tab."""

from __future__ import annotations

from typing import Any

from . import settings


class Toggles:
    """The switches as the user interface shows them, by place."""

    def __init__(self) -> None:
        self._enabled: dict[str, Any] = {}
        self._cuda_graphs: dict[str, Any] = {}

    def add(self, place: str, enabled: Any, cuda_graphs: Any) -> None:
        """Another place that has both."""
        self._enabled[place] = enabled
        self._cuda_graphs[place] = cuda_graphs

    def connect(self) -> None:
        """Let a change in one place reach the others and the settings. Inside ``gr.Blocks``, once all places are there."""
        for key, places in ((settings.ENABLED, self._enabled), (settings.CUDA_GRAPHS, self._cuda_graphs)):
            for component in places.values():
                others = [other for other in places.values() if other is not component]
                component.change(fn=_follow(key, len(others)), inputs=[component], outputs=others, show_progress=False)


def _follow(key: str, others: int) -> Any:
    def changed(value: bool) -> Any:
        settings.remember(key, value)
        return [value] * others if others > 1 else value

    return changed
