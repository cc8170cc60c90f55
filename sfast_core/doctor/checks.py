"""Everything that the doctor looks at, in order."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..machine.choices import cache_folder
from ..ops import all_ops
from ..target import probe
from .cache import examine_cache
from .examples import examples
from .findings import Finding
from .installed import examine_installed
from .ops import examine_ops


def examine() -> Iterator[Finding]:
    """Each finding as it is made; kernels that run for the first time are compiled, which takes seconds."""
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    target = probe(device)
    yield from examine_installed(target)
    yield from examine_ops(target, all_ops(), examples(device) if target.is_cuda else ())
    yield from examine_cache(target, cache_folder())
