"""A dict that live code has returned, as the model gets it while a call is recorded: which of its keys the model looks
for steers the forward.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Looks:
    """What was looked for. ``everything``: all there is, by going through it."""

    keys: set[Any] = field(default_factory=set)
    everything: bool = False


class Looked(dict):
    """A dict that notes in ``looks`` what is looked for in it."""

    def __init__(self, content: dict[Any, Any]) -> None:
        super().__init__(content)
        self.looks = Looks()

    def __getitem__(self, key: Any) -> Any:
        self.looks.keys.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.looks.keys.add(key)
        return super().__contains__(key)

    def get(self, key: Any, default: Any = None) -> Any:
        """As of any dict."""
        self.looks.keys.add(key)
        return super().get(key, default)

    def pop(self, key: Any, *default: Any) -> Any:
        """As of any dict."""
        self.looks.keys.add(key)
        return super().pop(key, *default)

    def _all(self) -> None:
        self.looks.everything = True

    def __iter__(self) -> Iterator[Any]:
        self._all()
        return super().__iter__()

    def __len__(self) -> int:
        self._all()
        return super().__len__()

    def __eq__(self, other: object) -> bool:
        self._all()
        return super().__eq__(other)

    __hash__ = None

    def keys(self) -> Any:
        """As of any dict."""
        self._all()
        return super().keys()

    def values(self) -> Any:
        """As of any dict."""
        self._all()
        return super().values()

    def items(self) -> Any:
        """As of any dict."""
        self._all()
        return super().items()

    def copy(self) -> dict[Any, Any]:
        """As of any dict."""
        self._all()
        return dict(super().items())
