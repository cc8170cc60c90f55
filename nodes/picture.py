"""Pictures of text and bars, drawn with Pillow, which every ComfyUI has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL import Image, ImageDraw, ImageFont

BACKGROUND, INK, FAINT, TRACK = (24, 26, 31), (232, 234, 238), (150, 156, 168), (48, 52, 61)
GREEN, BLUE, AMBER, RED = (88, 190, 120), (92, 150, 235), (230, 176, 80), (226, 104, 96)
Colour = tuple[int, int, int]
_MARGIN, _LABEL, _VALUE = 28, 250, 220  # pixels; the width of what stands before and behind a bar


class Picture:
    """A page that is written from top to bottom:
    ``Picture().title("...").bar("eager", "2.1 s", [(1.0, BLUE)]).image()``.
    """

    def __init__(self, width: int = 1000) -> None:
        self._width = width
        self._ruler = ImageDraw.Draw(Image.new("RGB", (1, 1)))
        self._rows: list[tuple[int, Any]] = []  # height, and what draws it at (draw, y)

    def title(self, text: str) -> Picture:
        """A heading."""
        return self._text(text, 28, INK)

    def line(self, text: str, colour: Colour = INK) -> Picture:
        """A paragraph, wrapped to the width."""
        return self._text(text, 18, colour)

    def gap(self) -> Picture:
        """Some room."""
        self._rows.append((14, lambda draw, y: None))
        return self

    def bar(self, label: str, value: str, parts: Sequence[tuple[float, Colour]]) -> Picture:
        """A bar of ``parts`` side by side, fractions of the whole track; a label before it, a value behind it."""
        font = _font(18)
        label, value = self._shortened(_latin(label), font, _LABEL - 10), _latin(value)
        left, right = _MARGIN + _LABEL, self._width - _MARGIN - _VALUE

        def draw_at(draw: ImageDraw.ImageDraw, y: int) -> None:
            draw.text((_MARGIN, y + 6), label, fill=INK, font=font)
            draw.rectangle((left, y + 5, right, y + 27), fill=TRACK)
            at = float(left)
            for fraction, colour in parts:
                end = min(float(right), at + max(0.0, fraction) * (right - left))
                if end - at >= 1:
                    draw.rectangle((at, y + 5, end, y + 27), fill=colour)
                at = end
            draw.text((right + 12, y + 6), value, fill=INK, font=font)

        self._rows.append((34, draw_at))
        return self

    def legend(self, entries: Sequence[tuple[str, Colour]]) -> Picture:
        """What the colours mean."""
        font = _font(16)

        def draw_at(draw: ImageDraw.ImageDraw, y: int) -> None:
            x = float(_MARGIN + _LABEL)
            for text, colour in entries:
                draw.rectangle((x, y + 6, x + 12, y + 18), fill=colour)
                draw.text((x + 18, y + 3), text, fill=FAINT, font=font)
                x += 40 + draw.textlength(text, font=font)

        self._rows.append((28, draw_at))
        return self

    def image(self) -> Image.Image:
        """The picture, as high as what was written."""
        image = Image.new("RGB", (self._width, 2 * _MARGIN + sum(height for height, _ in self._rows)), BACKGROUND)
        draw, y = ImageDraw.Draw(image), _MARGIN
        for height, draw_at in self._rows:
            draw_at(draw, y)
            y += height
        return image

    def tensor(self) -> Any:
        """The picture as ComfyUI's IMAGE: [1, H, W, 3], float32, 0 to 1."""
        import numpy
        import torch

        return torch.from_numpy(numpy.asarray(self.image(), dtype=numpy.float32) / 255.0)[None]

    def _text(self, text: str, size: int, colour: Colour) -> Picture:
        font = _font(size)
        for part in self._wrapped(text, font):
            self._rows.append(
                (int(size * 1.45), lambda draw, y, part=part: draw.text((_MARGIN, y), part, fill=colour, font=font))
            )
        return self

    def _wrapped(self, text: str, font: Any) -> list[str]:
        lines, line = [], ""
        for word in _latin(text).split():
            if line and self._length(f"{line} {word}", font) > self._width - 2 * _MARGIN:
                lines.append(line)
                line = word
            else:
                line = f"{line} {word}".strip()
        return [self._shortened(found, font, self._width - 2 * _MARGIN) for found in [*lines, line]]

    def _shortened(self, text: str, font: Any, width: int) -> str:
        if self._length(text, font) <= width:
            return text
        while text and self._length(text + "...", font) > width:
            text = text[:-1]
        return text + "..."

    def _length(self, text: str, font: Any) -> float:
        return self._ruler.textlength(text, font=font)


def _latin(text: str) -> str:
    """``text`` in letters that every version's font has."""
    return text.encode("latin-1", "replace").decode("latin-1")


def _font(size: int) -> Any:
    """Pillow's own font. Before 10.1, or where it was built without FreeType, there is one of 11 pixels only."""
    try:
        return ImageFont.load_default(size)
    except (TypeError, OSError, ImportError):
        return ImageFont.load_default()
