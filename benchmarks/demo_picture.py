"""Drawing the demo's pictures with Pillow and its own font: captioned samples, eager beside fast, their difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from PIL import Image, ImageDraw, ImageFont

PAPER, INK, FAINT, ACCENT = (250, 250, 248), (28, 30, 36), (112, 116, 126), (20, 120, 72)
#: pixels: a picture's side (3 times 64), between pictures, around everything, the rows' names
TILE, GAP, MARGIN, LABEL = 192, 12, 32, 140
_LINE = 1.35  #: line height over font size


@dataclass(frozen=True)
class Comparison:
    """What :func:`draw_comparison` shows.

    eager, fast: pictures [N, H, W, 3], float in 0..1, one per prompt. ``seconds`` are for the whole set, and None where
        a figure would mean nothing. ``table`` is a header row and the rows below it.
    """

    title: str
    prompts: Sequence[str]
    eager: np.ndarray
    fast: np.ndarray
    eager_seconds: float | None = None
    fast_seconds: float | None = None
    notes: Sequence[str] = ()
    table: Sequence[Sequence[str]] = field(default=())

    @property
    def largest_difference(self) -> float:
        """The largest difference of any pixel and channel, in levels of 255."""
        return float(np.abs(self.eager - self.fast).max() * 255.0)

    @property
    def mean_difference(self) -> float:
        """The mean absolute difference, in levels of 255."""
        return float(np.abs(self.eager - self.fast).mean() * 255.0)

    @property
    def factor(self) -> int:
        """What the difference is multiplied with to be seen: a power of two that makes its largest value visible."""
        factor = 1
        while factor < 1024 and self.largest_difference * factor * 2 <= 255.0:
            factor *= 2
        return factor


def _font(size: int) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    return ImageFont.load_default(size)


def _wrap(text: str, font: ImageFont.ImageFont | ImageFont.FreeTypeFont, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and font.getlength(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _tile(picture: np.ndarray | Image.Image) -> Image.Image:
    if isinstance(picture, np.ndarray):
        picture = Image.fromarray((np.clip(picture, 0.0, 1.0) * 255.0).round().astype(np.uint8))
    return picture.convert("RGB").resize((TILE, TILE), Image.Resampling.NEAREST)  # pixels stay visible as they are


def _text(
    draw: ImageDraw.ImageDraw, x: int, y: int, lines: Sequence[str], size: int, fill: tuple[int, int, int]
) -> int:
    """Draw lines from the top left; returns the y below them."""
    for line in lines:
        draw.text((x, y), line, font=_font(size), fill=fill)
        y += round(size * _LINE)
    return y


def _tile_row(canvas: Image.Image, y: int, pictures: Sequence[np.ndarray | Image.Image]) -> int:
    draw = ImageDraw.Draw(canvas)
    for number, picture in enumerate(pictures):
        x = MARGIN + LABEL + number * (TILE + GAP)
        canvas.paste(_tile(picture), (x, y))
        draw.rectangle((x - 1, y - 1, x + TILE, y + TILE), outline=(206, 207, 212))
    return y + TILE + GAP


def _row_names(comparison: Comparison) -> list[tuple[str, list[str]]]:
    """The three rows' names with the small lines below each."""
    eager, fast = comparison.eager_seconds, comparison.fast_seconds
    fast_lines = [] if fast is None else [f"{fast * 1000:.0f} ms"]
    if eager is not None and fast:
        fast_lines.append(f"{eager / fast:.2f}x")
    return [
        ("eager", [] if eager is None else [f"{eager * 1000:.0f} ms"]),
        ("fast", fast_lines),
        ("difference", [f"times {comparison.factor}", f"largest {comparison.largest_difference:.2g}", "of 255"]),
    ]


def _draw_table(draw: ImageDraw.ImageDraw, y: int, table: Sequence[Sequence[str]], width: int) -> int:
    """Columns as wide as their widest cell; the first is set left, the others right."""
    font = _font(16)
    widths = [max(round(font.getlength(row[column])) for row in table) for column in range(len(table[0]))]
    gap = min(36, max(12, (width - sum(widths)) // max(1, len(widths) - 1)))
    for number, row in enumerate(table):
        x = MARGIN
        for column, cell in enumerate(row):
            shift = 0 if column == 0 else widths[column] - round(font.getlength(cell))
            draw.text((x + shift, y), cell, font=font, fill=FAINT if number == 0 else INK)
            x += widths[column] + gap
        y += round(16 * _LINE) + 4
        if number == 0:
            draw.line((MARGIN, y - 3, x - gap, y - 3), fill=(206, 207, 212))
            y += 4
    return y


def draw_comparison(comparison: Comparison) -> Image.Image:
    """Rows eager, fast and difference, a column per prompt, with title, notes and table; as high as that needs."""
    count = len(comparison.prompts)
    if comparison.eager.shape != comparison.fast.shape or len(comparison.eager) != count:
        raise ValueError(
            f"draw_comparison: {count} prompts, eager {comparison.eager.shape}, fast {comparison.fast.shape}: need one"
            " picture each"
        )
    width = 2 * MARGIN + LABEL + count * (TILE + GAP) - GAP
    captions = [_wrap(prompt, _font(15), TILE) for prompt in comparison.prompts]
    notes = [line for note in comparison.notes for line in _wrap(note, _font(16), width - 2 * MARGIN)]
    height = (
        4 * MARGIN + 60 + 22 * (len(notes) + max(map(len, captions))) + 3 * (TILE + GAP) + 30 * len(comparison.table)
    )
    canvas = Image.new("RGB", (width, height), PAPER)
    draw = ImageDraw.Draw(canvas)

    y = _text(draw, MARGIN, MARGIN - 6, [comparison.title], 30, INK)
    y = _text(draw, MARGIN, y + 2, notes, 16, FAINT) + GAP
    bottom = y
    for number, lines in enumerate(captions):
        bottom = max(bottom, _text(draw, MARGIN + LABEL + number * (TILE + GAP), y, lines, 15, INK))
    y = bottom + 6

    difference = np.abs(comparison.eager - comparison.fast) * comparison.factor
    for (name, lines), pictures in zip(
        _row_names(comparison), (comparison.eager, comparison.fast, difference), strict=True
    ):
        fill = ACCENT if name == "fast" else INK
        below = _text(draw, MARGIN, y + 4, [name], 22, fill)
        _text(draw, MARGIN, below + 2, lines, 17, fill if name == "fast" else FAINT)
        y = _tile_row(canvas, y, list(pictures))
    if comparison.table:
        y = _draw_table(draw, y + GAP, comparison.table, width - 2 * MARGIN)
    return canvas.crop((0, 0, width, y + MARGIN - GAP))


def draw_samples(prompts: Sequence[str], pictures: Sequence[Image.Image], columns: int = 6) -> Image.Image:
    """A grid of pictures, each with its caption below."""
    caption_height = 3 * round(15 * _LINE) + 8
    rows = -(-len(pictures) // columns)
    columns = min(columns, len(pictures))
    canvas = Image.new(
        "RGB", (2 * MARGIN + columns * (TILE + GAP) - GAP, 2 * MARGIN + rows * (TILE + caption_height)), PAPER
    )
    draw = ImageDraw.Draw(canvas)
    for number, (prompt, picture) in enumerate(zip(prompts, pictures, strict=True)):
        x, y = MARGIN + (number % columns) * (TILE + GAP), MARGIN + (number // columns) * (TILE + caption_height)
        canvas.paste(_tile(picture), (x, y))
        _text(draw, x, y + TILE + 4, _wrap(prompt, _font(15), TILE)[:3], 15, INK)
    return canvas
