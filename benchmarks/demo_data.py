"""The pictures that the demo's model learns from: a coloured shape on a coloured ground, drawn by torch, captioned.

Everything is vectorised over the batch, so that a GPU draws thousands of pictures in a few milliseconds and data never
limits training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

RESOLUTION = 64
COLOURS: dict[str, tuple[float, float, float]] = {
    "red": (0.86, 0.14, 0.16),
    "orange": (0.96, 0.55, 0.10),
    "yellow": (0.97, 0.87, 0.20),
    "green": (0.14, 0.62, 0.26),
    "teal": (0.12, 0.68, 0.70),
    "blue": (0.14, 0.30, 0.82),
    "purple": (0.50, 0.20, 0.66),
    "pink": (0.97, 0.58, 0.74),
    "white": (0.96, 0.96, 0.96),
    "black": (0.07, 0.07, 0.09),
}
#: word -> smallest and largest radius, where 1 is half the picture's side
SIZES: dict[str, tuple[float, float]] = {"": (0.40, 0.56), "small": (0.22, 0.30), "large": (0.70, 0.82)}
#: words after the ground -> centre (x to the right, y down); None is anywhere near the middle
PLACES: dict[str, tuple[float, float] | None] = {
    "": None,
    "in the middle": (0.0, 0.0),
    "on the left": (-0.45, 0.0),
    "on the right": (0.45, 0.0),
    "at the top": (0.0, -0.45),
    "at the bottom": (0.0, 0.45),
}


def _length(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.sqrt(x * x + y * y)


def _box(x: torch.Tensor, y: torch.Tensor, half_width: float, half_height: float) -> torch.Tensor:
    return torch.maximum(x.abs() - half_width, y.abs() - half_height)


def _circle(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return _length(x, y) - 0.92


def _square(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return _box(x, y, 0.82, 0.82)


def _triangle(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Equilateral, point up, its centre of mass at the origin and its corners at radius 1.1."""
    y = y + 0.1
    return torch.maximum(y - 0.55, 0.866 * x.abs() - 0.5 * y - 0.55)


def _star(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Five points: fold the angle into one half point (36 degrees),
    then one straight edge from the tip to the notch.
    """
    radius, tenth = _length(x, y), torch.pi / 5
    angle = torch.remainder(torch.atan2(x, -y) + tenth, 2 * tenth) - tenth  # 0 at a tip, +-36 degrees at a notch
    along, across = radius * angle.cos(), radius * angle.abs().sin()
    tip, notch = 1.1, 0.46
    edge_along, edge_across = notch * 0.809017 - tip, notch * 0.587785  # from the tip (1.1, 0) to the notch
    norm = (edge_along**2 + edge_across**2) ** 0.5
    return ((along - tip) * edge_across - across * edge_along) / norm


def _ring(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (_length(x, y) - 0.72).abs() - 0.25


def _cross(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.minimum(_box(x, y, 0.98, 0.30), _box(x, y, 0.30, 0.98))


def _heart(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A square on its corner with a half circle on each of its two upper sides."""
    x, side = x.abs(), 0.62
    diamond = torch.maximum((x + y - 0.1).abs(), (x - y + 0.1).abs()) / 2**0.5 - side
    offset = side / 2**0.5
    return torch.minimum(diamond, _length(x - offset, y - 0.1 + offset) - side)


def _moon(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.maximum(_length(x, y) - 0.98, 0.80 - _length(x - 0.48, y))


#: name -> signed distance to the shape's edge (below 0 inside), in units of the shape's radius
SHAPES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
    "ring": _ring,
    "cross": _cross,
    "heart": _heart,
    "moon": _moon,
}
_FACTORS = (len(SIZES), len(COLOURS), len(SHAPES), len(COLOURS), len(PLACES))
CAPTION_COUNT = len(SIZES) * len(COLOURS) * len(SHAPES) * len(COLOURS) * len(PLACES)


@dataclass(frozen=True)
class Scene:
    """What a caption names, as indices into SIZES, COLOURS, SHAPES, COLOURS and PLACES; ints, or int64 tensors [B]."""

    size: int | torch.Tensor
    colour: int | torch.Tensor
    shape: int | torch.Tensor
    ground: int | torch.Tensor
    place: int | torch.Tensor

    def index(self) -> int | torch.Tensor:
        """The scene's number below CAPTION_COUNT, the row of its caption in :func:`captions`."""
        number: int | torch.Tensor = 0
        for factor, part in zip(_FACTORS, (self.size, self.colour, self.shape, self.ground, self.place), strict=True):
            number = number * factor + part
        return number


def scene_of(number: int) -> Scene:
    """The inverse of :meth:`Scene.index`."""
    parts = []
    for factor in reversed(_FACTORS):
        number, part = divmod(number, factor)
        parts.append(part)
    return Scene(*reversed(parts))


def caption(scene: Scene) -> str:
    """The words for one scene, such as "a small red circle on a blue background, on the left"."""
    words = ["a", list(SIZES)[int(scene.size)], list(COLOURS)[int(scene.colour)], list(SHAPES)[int(scene.shape)]]
    words[0] = "an" if not words[1] and words[2].startswith("o") else "a"
    ground = list(COLOURS)[int(scene.ground)]
    text = (
        " ".join(word for word in words if word) + f" on a{'n' if ground.startswith('o') else ''} {ground} background"
    )
    place = list(PLACES)[int(scene.place)]
    return f"{text}, {place}" if place else text


def captions() -> list[str]:
    """All CAPTION_COUNT captions, in the order of :meth:`Scene.index`."""
    return [caption(scene_of(number)) for number in range(CAPTION_COUNT)]


def _uniform(
    low: torch.Tensor | float, high: torch.Tensor | float, like: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    return low + (high - low) * torch.rand(like.shape, device=like.device, generator=generator)


def draw_scenes(count: int, device: torch.device, generator: torch.Generator) -> Scene:
    """``count`` random scenes, int64 [B] each on ``device``; the ground's colour always differs from the shape's."""

    def pick(limit: int) -> torch.Tensor:
        return torch.randint(limit, (count,), device=device, generator=generator)

    colour = pick(len(COLOURS))
    ground = (colour + 1 + pick(len(COLOURS) - 1)) % len(COLOURS)
    return Scene(size=pick(len(SIZES)), colour=colour, shape=pick(len(SHAPES)), ground=ground, place=pick(len(PLACES)))


def draw_pictures(scene: Scene, generator: torch.Generator, resolution: int = RESOLUTION) -> torch.Tensor:
    """Pictures float32 [B, 3, resolution, resolution] in -1..1, edges smoothed over one pixel.

    Size, centre and colours vary a little within what the caption says, so that the model learns a class and not one
    picture.
    """
    shape = torch.as_tensor(scene.shape)
    device = shape.device
    bounds = torch.tensor(list(SIZES.values()), device=device)[scene.size]
    radius = _uniform(bounds[:, 0], bounds[:, 1], bounds[:, 0], generator)

    centres = torch.tensor([place or (0.0, 0.0) for place in PLACES.values()], device=device)[scene.place]
    spread = torch.tensor([0.35 if place is None else 0.05 for place in PLACES.values()], device=device)[scene.place]
    centres = centres + _uniform(-1.0, 1.0, centres, generator) * spread[:, None]
    # a large shape stays inside the picture: "on the left" is as far left as fits
    room = (0.95 - radius).clamp(min=0.0)[:, None]
    centres = centres.clamp(-room, room)

    pixel = 2.0 / resolution
    line = (torch.arange(resolution, device=device) + 0.5) * pixel - 1.0
    x = (line[None, None, :] - centres[:, 0, None, None]) / radius[:, None, None]
    y = (line[None, :, None] - centres[:, 1, None, None]) / radius[:, None, None]
    x, y = torch.broadcast_tensors(x, y)
    distance = torch.zeros_like(x)
    for number, signed_distance in enumerate(SHAPES.values()):
        distance = torch.where((shape == number)[:, None, None], signed_distance(x, y), distance)
    inside = (0.5 - distance * radius[:, None, None] / pixel).clamp(0.0, 1.0)[:, None]

    palette = torch.tensor(list(COLOURS.values()), device=device)
    front, back = palette[scene.colour], palette[scene.ground]
    front = (front + _uniform(-0.03, 0.03, front, generator)).clamp(0.0, 1.0)[:, :, None, None]
    back = (back + _uniform(-0.03, 0.03, back, generator)).clamp(0.0, 1.0)[:, :, None, None]
    return (back + (front - back) * inside) * 2.0 - 1.0
