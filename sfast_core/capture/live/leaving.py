"""What live code leaves in the lists and dicts that a recorded call hands it, for what runs after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..errors import CaptureError
from .building import Building
from .call import Where
from .contents import Content, Left
from .lending import Lending
from .modules import contents, new_items, other_contents
from .options import LeftByLive


class Leaving(Lending):
    """Bookkeeping of these containers: it is handed others in their places."""

    refuse: Callable[..., None]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._boxes: dict[int, tuple[Any, int, dict[Any, Any]]] = {}
        self._left: list[tuple[str, list[Any], tuple[Any, ...]]] = []  # lists that modules put into dicts, as they were

    def _take_over(
        self, where: Where, building: Building, boxes: dict[int, list[tuple[Any, Any]]]
    ) -> dict[int, dict[Any, tuple[type, Any]]]:
        """A module of the model's has changed lists or dicts that it was handed: for this call the model's own are
        changed alike.

        Returns the plain values that it has put into dicts. A program has them as they are, and sees that the module
        does so again; nothing else.
        """
        left = {}
        for number, then in boxes.items():
            box, own = building.around.boxes[number], building.containers[number]
            if not other_contents(contents(box), then):
                continue
            models = {id(item): dict(contents(own)).get(place, item) for place, item in then}
            if (new := new_items(box, then)) is not None:
                left[number] = new
                self._left += [(where.name, box[key], items) for key, (kind, items) in new.items() if kind is list]
            else:
                self.refuse(f"{where.name} changes a {type(own).__name__} that it is handed")
            now = [(place, models.get(id(item), item)) for place, item in contents(box)]
            own.clear()
            if isinstance(own, dict):
                own.update(now)
            else:
                own.extend(item for _, item in now)
        return left

    def _hand_over(self, where: Where, building: Building, left: Iterable[tuple[Content, Left]]) -> None:
        """A function of others has changed lists or dicts that it was handed: so has the model's own. What was put into
        a dict may be handed on and not looked at, but for whether it is there and is something.
        """
        numbers: dict[int, int] | None = None
        for content, found in left:
            if not found:
                continue
            if numbers is None:
                numbers = {id(building.around.boxes.get(number)): number for number in building.containers}
            number = numbers.get(id(content.container))
            if number is None:
                continue
            own = building.containers[number]
            if isinstance(own, dict):
                for key, item in found.items.items():
                    plain = item is None or building.real
                    dict.__setitem__(own, key, item if plain else LeftByLive(number, key, where.name, building.around))
                for key in found.gone:
                    dict.pop(own, key, None)
            else:
                models = {id(item): mine for item, mine in zip(content.then, own, strict=True)}
                own[:] = [models.get(id(item), item) for item in content.container]
                self.refuse(f"{where.name} changes a list that it is handed")

    def _check_left(self) -> None:
        """The call is over.

        Raises:
            CaptureError: a program would leave something else.
        """
        for name, items, then in self._left:
            if tuple(items) != then:
                raise CaptureError(f"a list that {name} leaves is changed by others")
