"""A layer that runs as it is, as one call of the graph: what it does with its weights can't be recorded, what is around
it is fused all the same.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from .thread_function import in_place_of, one_recording

RunAsItIs = Callable[[torch.nn.Module, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class Leaf:
    """What a graph calls for such a layer: the layer, with whatever it has at that time. It doesn't keep it alive.

    Args:
        module: the layer.
        name: where it is.
        capturable: None, or why a CUDA graph can't hold what it does.
    """

    def __init__(self, module: torch.nn.Module, name: str, capturable: str | None) -> None:
        self._module = weakref.ref(module)
        self.__name__ = f"layer_{name.replace('.', '_')}"
        self.capturable = capturable

    def __call__(self, weights: Sequence[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the layer returns. ``weights`` are what it reads itself: here so that others see that it reads them.

        Raises:
            ReferenceError: the layer is gone.
        """
        module = self._module()
        if module is None:
            raise ReferenceError(f"the module {self.__name__} is gone")
        return module(*args, **kwargs)


@contextmanager
def run_as_they_are(modules: Sequence[torch.nn.Module], run: RunAsItIs) -> Iterator[None]:
    """While a call is recorded, let ``run`` make the calls of these modules: it is given the module, what calls it, and
    the arguments.

    Modules have no other place that all calls pass: ``torch.nn.Module.__call__`` is replaced for that long, for all
    threads, and does in others what it did; and that of a class that has one of its own.
    """
    if not modules:
        yield
        return
    ids = set(map(id, modules))
    running: list[int] = []  # one's own ``__call__`` may call the one that it inherits

    def called(call: Callable[..., Any], module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if id(module) not in ids or id(module) in running:
            return call(module, *args, **kwargs)
        running.append(id(module))
        try:
            return run(module, functools.partial(call, module), args, kwargs)
        finally:
            running.remove(id(module))

    owners = dict.fromkeys([torch.nn.Module, *(_calls(type(module)) for module in modules)])
    with one_recording("modules").lock, ExitStack() as replaced:
        for owner in owners:
            replaced.enter_context(in_place_of(owner, "__call__", called))
        yield


def _calls(cls: type) -> type:
    """The class that has the ``__call__`` of a class of modules."""
    return next(owner for owner in cls.__mro__ if "__call__" in vars(owner))
