"""Functions that run live, as code of others does: what they read is another at each call, or no record can hold what
they do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from ..thread_function import in_table, one_recording
from .surroundings import Surroundings

Run = Callable[["InTable", Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


@dataclass(frozen=True, eq=False)
class InTable:
    """A function that runs live, by where the model's code finds it.

    Attributes:
        table: the attributes of an object, or the names of a file.
        place: its name there.
        function: it.
        reason: why it runs so.
    """

    table: dict[str, Any]
    place: str
    function: Any
    reason: str

    @property
    def key(self) -> tuple[str, int, str]:
        return ("function", id(self.table), self.place)

    @property
    def name(self) -> str:
        """Which function it is and why it runs live, in words."""
        return f"{self.place} ({self.reason})"

    @property
    def there(self) -> bool:
        """Whether nobody has put another one into its place."""
        return self.table.get(self.place) is self.function

    def find(self, around: Surroundings) -> Callable[..., Any]:
        """The function that is there now."""
        function: Callable[..., Any] = self.table[self.place]
        return function


@contextmanager
def found_as_live(functions: Sequence[InTable], run: Run) -> Iterator[None]:
    """While a call is recorded, let ``run`` make the calls of these functions: it is given which, the function, and the
    arguments.
    """
    if not functions:
        yield
        return
    with one_recording("live functions").lock, ExitStack() as replaced:
        for each in functions:
            replaced.enter_context(in_table(each.table, each.place, functools.partial(_called, run, each)))
        yield


def _called(run: Run, which: InTable, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return run(which, function, args, kwargs)
