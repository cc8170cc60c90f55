"""Finds rotary position embeddings in a graph, however models spell them."""

from .rotation import Rotation
from .spellings import rotations

__all__ = ["Rotation", "rotations"]
