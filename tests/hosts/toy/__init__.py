"""A host in one folder of five files: what docs/adding-a-host.md describes. ``application`` is the host itself."""

from .install import install, remove

__all__ = ["install", "remove"]
