"""Arguments that a forward keeps its state in: caches that it reads, changes and returns."""

from .calls import StatefulCalls, has_state

__all__ = ["StatefulCalls", "has_state"]
