"""Pictures as hosts give them, as numbers."""

from __future__ import annotations

import io
from typing import Any

import pytest


def pixels(png: bytes) -> Any:
    """An array of ints, height x width x 3."""
    numpy, image = pytest.importorskip("numpy"), pytest.importorskip("PIL.Image")
    return numpy.asarray(image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def only_picture(images: list[bytes]) -> Any:
    """The one that there is, as :func:`pixels`."""
    (png,) = images
    return pixels(png)
