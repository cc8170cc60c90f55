"""One call of a module on its way from the host's hook to a program: what is called with what, and how it runs as it
was.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch

from .callers_own import CallersOwn, callers_own
from .errors import CaptureError
from .live import Surroundings
from .signature import Signature


class Call:
    """One call of a module's forward.

    Args:
        module: the module.
        forward: its forward as it was before it was compiled.
        args: the forward's arguments, as far as they may steer it.
        kwargs: its keyword arguments, likewise.
        eager: runs the forward with all that the host passed. None: ``forward`` with these arguments.
        around: what the call brings along for code that runs live.
        seen: somebody looks at the arguments' lists and dicts again though the host has ``eager``.

    Attributes:
        collecting: Python's collector was on when the call came.
        signature: what :meth:`sign` made.
        served: the cache entry that its result came from; None where it ran as it was.
    """

    signature: Signature
    served: Any = None

    def __init__(
        self,
        module: torch.nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        eager: Callable[[], Any] | None = None,
        around: Surroundings | None = None,
        seen: bool = False,
    ) -> None:
        self.module, self.forward, self.args, self.kwargs = module, forward, args, kwargs
        self.around = around or Surroundings(None, module)
        self._copied = eager is not None and not seen  # a host that has kept its own: nobody sees these again
        self._eager = eager  # not ``self.run`` in its place: what refers to itself is freed late
        self.collecting = gc.isenabled()  # asked by code of ours: inside another's recorded call that isn't the model's

    def part(self, args: tuple[Any, ...], kwargs: dict[str, Any], eager: Callable[[], Any]) -> Call:
        """A call of a part of these arguments, which is run as it was by ``eager``."""
        part = Call(self.module, self.forward, args, kwargs, eager, self.around)
        part._copied, part.collecting = self._copied, self.collecting
        return part

    def run(self) -> Any:
        """The forward with these arguments."""
        return self.forward(*self.args, **self.kwargs)

    @property
    def eager(self) -> Callable[[], Any]:
        """Runs the forward with all that the host passed."""
        return self._eager or self.run

    @eager.setter
    def eager(self, instead: Callable[[], Any]) -> None:
        self._eager = instead

    def sign(self) -> Signature:
        """Make the call's signature.

        Raises:
            CaptureError: an argument can't be part of one.
        """
        self.signature = self._signature()
        return self.signature

    def callers_own(self) -> dict[int, CallersOwn]:
        """Lists and dicts among the arguments, as far as they are the caller's."""
        return {} if self._copied else callers_own(self.args, self.kwargs)

    def writes_arguments(self) -> bool:
        """Whether the containers among the arguments hold something else than when the call was signed."""
        if self._copied:
            return False
        before = self.signature
        try:
            after = self._signature()
        except CaptureError:
            return True
        return (
            after.key != before.key
            or any(now is not then for now, then in zip(after.tensors, before.tensors, strict=True))
            or any(now.value is not then.value for now, then in zip(after.objects, before.objects, strict=True))
        )

    def _signature(self) -> Signature:
        return Signature(self.args, self.kwargs, self.around.key, self.around.placed)
