"""A step's conditioning goes to the GPU from pinned memory, where ComfyUI copies it from pageable memory.

Text encoders hand their results over in main memory. ComfyUI joins the prompts of each step there and copies that to
the GPU, for which the thread waits until the GPU has done all that it was given: what launches the step comes behind,
and the GPU idles meanwhile. ComfyUI asks for copies that nobody waits for, which pinned memory allows. These are the
same values in main memory as before: whoever comes between sees no difference.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import torch

log = logging.getLogger("fast_compile")
STAGED_BYTES = 64 << 10  #: what is no larger is copied by way of the driver's own staging: nobody waits for it
STEPS_AHEAD = 2  #: calls that may be under way at once: each has its own copies


class Uploads:
    """The pinned copies of one model's calls.

    Args:
        pin: a copy of a tensor in pinned memory; a RuntimeError where there is no more of it.
        mark: an event that a GPU reaches when it has done what it was given so far.
    """

    def __init__(
        self,
        pin: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.pin_memory,
        mark: Callable[[torch.device], Any] | None = None,
    ) -> None:
        self._pin = pin
        self._mark = mark or _event
        self._under_way: defaultdict[torch.device, deque[Any]] = defaultdict(deque)

    def through(self, args: tuple[Any, ...], kwargs: dict[str, Any], call: Callable[..., Any]) -> Any:
        """What ``call`` returns for these arguments of ``apply_model``, of which large tensors of main memory are
        pinned.
        """
        device = args[0].device if args and isinstance(args[0], torch.Tensor) else None
        if device is None or device.type == "cpu":
            return call(*args, **kwargs)
        under_way = self._under_way[device]
        while len(under_way) >= STEPS_AHEAD:
            under_way.popleft().synchronize()
        copies: dict[int, torch.Tensor] = {}
        args = tuple(self._pinned(value, copies) for value in args)
        kwargs = {name: self._pinned(value, copies) for name, value in kwargs.items()}
        result = call(*args, **kwargs)
        if copies:
            under_way.append(self._mark(device))
        return result

    def _pinned(self, value: Any, copies: dict[int, torch.Tensor]) -> Any:
        if type(value) is list:
            return [self._pinned(each, copies) for each in value]
        if type(value) is not torch.Tensor or value.device.type != "cpu" or value.nbytes <= STAGED_BYTES:
            return value
        if id(value) not in copies:
            try:
                copies[id(value)] = self._pin(value)
            except RuntimeError as error:
                log.debug("Fast Compile: %s can't be pinned: %s", list(value.shape), error)
                return value
        return copies[id(value)]


def _event(device: torch.device) -> Any:
    event = torch.cuda.Event(blocking=True)
    event.record(torch.cuda.current_stream(device))
    return event
