"""What code reads of classes, and what is asked of functions and classes: noted as it is before the code runs."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from .asking import OF_CLASSES, Question, answer_to, name_of
from .chains import Chain
from .given import is_given
from .kinds import Kind
from .notes import COMPUTED, MISSING, Asked
from .of_c import member_of, told
from .origin import Origin
from .questions import subclasses_of_all
from .seen_objects import SeenObjects

#: What each class has for whoever looks at its code, and what copying it leaves there.
_SAID = frozenset(
    "__annotations__ __annotations_cache__ __annotate__ __annotate_func__ __conditional_annotations__ __dict__ __doc__"
    " __firstlineno__ __module__ __parameters__ __qualname__ __slotnames__ __static_attributes__ __weakref__"
    " __dataclass_fields__ __dataclass_params__".split()
)


class SeenClasses(SeenObjects):
    """What is read of classes, by their values as by themselves. Nothing is called for it.

    Args:
        root: the module that is called.

    Attributes:
        gone_through: classes of which all is read.
    """

    def __init__(self, root: torch.nn.Module) -> None:
        super().__init__(root)
        self._classes_seen: set[type] = set()
        self.gone_through: set[type] = set()

    def _ask(self, question: Question, origin: Origin | None) -> None:
        self._ask_it(question, (id(question), ""), origin)

    def _ask_it(self, question: Question, key: tuple[int, str], origin: Origin | None) -> None:
        if key not in self.asked:
            self.asked[key] = Asked(answer_to, (question,), answer_to(question), origin)
            self.readers.note(key)

    def _tell(self, value: Any, name: str, origin: Origin | None) -> Any:
        """What a function or a class is called, or the like."""
        reference = weakref.ref(value)
        return self.asked.setdefault(
            (id(value), name), Asked(name_of, (name, reference), name_of(name, reference), Origin(origin, name))
        ).then

    def _of_its_class(self, value: Any, chain: Chain, origin: Origin | None) -> None:
        """What the class of a value has that is compared by what it is: methods of a named tuple's, say, or a
        defaultdict's function.
        """
        cls = type(value)
        given = is_given(cls.__module__)
        for below in () if self._kinds.get(cls) is Kind.VALUE and given else chain.attributes:
            if not given:
                self._class_attribute(cls, below.name, Origin(None, cls.__qualname__))
            if (member := member_of(cls, below.name)) is not None and (then := told(member, value)) is not COMPUTED:
                self.asked.setdefault(
                    (id(value), below.name), Asked(told, (member, value), then, Origin(origin, below.name))
                )
                self._below(then, below.chain, origin, below.name)

    def _attribute_of_class(self, cls: type, name: str, below: Chain, origin: Origin | None) -> None:
        if type(cls) is type and not below.used and (cls, name) not in self._class_values:
            self.put.setdefault((cls, name), self._in_spaces(cls, name))
            self._note_reader((id(cls), name))
            return
        value = self._class_attribute(cls, name, origin)
        if name in OF_CLASSES and value is MISSING:
            if name == "__subclasses__":
                self._classes_seen.update(self._below_class(cls))
                return self._ask(subclasses_of_all([cls]), origin)
            value = self._tell(cls, name, origin)
        if value is MISSING and type(cls) is not type:
            value = self._class_attribute(type(cls), name, origin)
        self._below(value, below, origin, name)

    def _below_class(self, cls: type) -> list[type]:
        """The classes that have this one among their bases."""
        found: list[Any] = [cls]
        for each in found:
            self._space(each)
            found += [cls for cls in type.__subclasses__(each) if cls not in found]
        return found[1:]


def is_looked_up(name: str) -> bool:
    """Whether Python may look this name up in a class by itself."""
    return name.startswith("__") and name.endswith("__") and name not in _SAID
