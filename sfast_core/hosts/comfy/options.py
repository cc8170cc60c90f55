"""What of a sampling step's options may steer the model's forward, and what only travels along."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...capture import CaptureError

#: Read outside the model's forward, or by patches alone. They change at every step, and without patches nothing below reads them.
_TRAVELLING = frozenset({"sigmas", "sample_sigmas", "uuids", "cond_or_uncond", "wrappers", "callbacks", "prefetch_dynamic_vbars", "multigpu_thread_pool"})


def steering_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The transformer options that a trace may depend on, without those that only travel along.

    Raises:
        CaptureError: there are patches: functions of other nodes that run inside the forward and may read anything.
    """
    for name in ("patches", "patches_replace"):
        active = [key for key, functions in (options.get(name) or {}).items() if functions]
        if active:
            raise CaptureError(f"another node patches the model: {name} {', '.join(map(str, active))}")
    return {key: value for key, value in options.items() if key not in _TRAVELLING and key not in ("patches", "patches_replace")}
