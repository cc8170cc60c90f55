"""What a worker has loaded, as far as that can be told from its jobs."""

from __future__ import annotations

from .workflow import Needs

KEPT = 2  #: so many sets of models are taken to be loaded; ComfyUI keeps the latest that fit


class Warm:
    """The latest ``kept`` sets of models that a worker ran, and which variants (LoRAs, sizes) of each since then."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._variants: dict[tuple[str, ...], set[object]] = {}  # the latest last
        self.variant: object = None  #: of the latest job
        self.since = float("-inf")  #: when it turned to the models that it ran last

    @property
    def models(self) -> list[tuple[str, ...]]:
        """The sets of models, the latest first."""
        return list(reversed(self._variants))

    def use(self, needs: Needs, now: float) -> bool:
        """Note that a job with these needs begins. Returns whether its models have to be loaded first."""
        cold = needs.models not in self._variants
        if self.models[:1] != [needs.models]:
            self.since = now
        variants = self._variants.pop(needs.models, set())
        variants.add(needs.variant)
        self._variants[needs.models] = variants
        while len(self._variants) > self._kept:
            del self._variants[next(iter(self._variants))]
        self.variant = needs.variant
        return cold

    def has_run(self, needs: Needs) -> bool:
        """Whether a job with these needs has run since its models were loaded."""
        return needs.variant in self._variants.get(needs.models, ())
