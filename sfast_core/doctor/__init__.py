"""What is installed, what works here, what doesn't and how to fix it: ``python -m sfast_core doctor``."""

from .checks import examine
from .findings import Finding

__all__ = ["Finding", "examine"]
