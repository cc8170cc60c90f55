"""Forwards that keep a state in their arguments: caches that they read, change and return."""

from .calls import StatefulCalls, has_state

__all__ = ["StatefulCalls", "has_state"]
