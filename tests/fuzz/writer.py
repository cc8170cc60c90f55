"""Writes a random module's source, step by step: what values there are so far, and of which shapes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

IMAGE, TOKENS, VECTOR = "image", "tokens", "vector"


@dataclass(frozen=True)
class Value:
    """A local name of the forward.

    Attributes:
        name: of the variable.
        kind: IMAGE is B x C x H x W, TOKENS B x L x C, VECTOR B x C.
        channels: C.
        size: what the rest of the shape is: of an image the power of two by which it is smaller than the input, of
            tokens a label of their number.
        own: whether the forward has made it, and nothing else is a view of it, so that it may be written to.
    """

    name: str
    kind: str
    channels: int
    size: int | str = 0
    own: bool = True


@dataclass
class Writer:
    """The source so far. ``init`` and ``forward`` are the lines of the two methods."""

    random: random.Random
    init: list[str] = field(default_factory=list)
    forward: list[str] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    linears: dict[tuple[int, int], list[str]] = field(default_factory=dict)
    inputs: list[tuple[str, str]] = field(default_factory=list)
    _count: int = 0

    def name(self, prefix: str) -> str:
        """A new name."""
        self._count += 1
        return f"{prefix}{self._count}"

    def chance(self, probability: float) -> bool:
        """True so often."""
        return self.random.random() < probability

    def choice(self, *options: str) -> str:
        """One of them."""
        return self.random.choice(options)

    def channels(self) -> int:
        """Some number of channels."""
        return self.random.choice((8, 8, 16))

    def line(self, text: str) -> None:
        """One more line of the forward."""
        self.forward.append(text)

    def let(
        self,
        expression: str,
        like: Value,
        channels: int | None = None,
        size: int | str | None = None,
        kind: str = "",
        own: bool = True,
        keep: bool | None = True,
    ) -> Value:
        """A new value of the forward, shaped like ``like`` but for what is said.

        ``keep``: later steps may use it; False: some of them may, None: none.
        """
        made = Value(
            self.name("v"), kind or like.kind, channels or like.channels, like.size if size is None else size, own
        )
        self.line(f"{made.name} = {expression}")
        if keep or (keep is False and self.chance(0.15)):  # what is read twice can't be fused away
            self.values.append(made)
        return made

    def layer(self, expression: str) -> str:
        """A new child of the module, as the forward calls it."""
        name = f"self.{self.name('m')}"
        self.init.append(f"{name} = {expression}")
        return name

    def attribute(self, expression: str) -> str:
        """A new attribute that is no module."""
        name = f"self.{self.name('a')}"
        self.init.append(f"{name} = {expression}")
        return name

    def parameter(self, *shape: int, plain: bool = True) -> str:
        """A parameter of the module's own. ``plain``: or a tensor that is none, which stays in float32."""
        sizes = ", ".join(map(str, shape))
        return self.attribute(
            f"torch.randn({sizes}) * 0.3" if plain and self.chance(0.3) else f"nn.Parameter(torch.randn({sizes}) * 0.3)"
        )

    def linear(self, taken: int, given: int, bias: bool | None = None) -> str:
        """A Linear, now and then one that is there already."""
        known = self.linears.setdefault((taken, given), [])
        if known and self.chance(0.15):
            return self.random.choice(known)
        with_bias = self.chance(0.7) if bias is None else bias
        name = self.layer(f"nn.Linear({taken}, {given}, bias={with_bias})")
        if known and self.chance(0.15):
            self.init.append(f"{name}.weight = {self.random.choice(known)}.weight")
        known.append(name)
        return name

    def pick(self, kind: str, accepts: Callable[[Value], bool] = lambda value: True) -> Value | None:
        """A value of that kind, rather a late one; None where there is none."""
        found = [value for value in self.values if value.kind == kind and accepts(value)]
        if not found:
            return None
        return found[-1] if self.chance(0.6) else self.random.choice(found)

    def partner(self, value: Value) -> Value | None:
        """Another value of the same shape."""
        return self.pick(
            value.kind,
            lambda other: other is not value and (other.channels, other.size) == (value.channels, value.size),
        )

    def vector(self, channels: int) -> str:
        """An expression for a vector of so many channels, for each in the batch."""
        found = self.pick(VECTOR)
        if found is None or self.chance(0.1):
            return self.parameter(1, channels, plain=False)
        if found.channels == channels:
            return found.name
        return f"{self.linear(found.channels, channels)}({found.name})"
