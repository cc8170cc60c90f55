"""Makes the template of a live call's arguments while a call is recorded, and collects the tensors among them."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch

from ...reporting.reasons.records import NOT_MADE_AGAIN
from ..errors import CaptureError
from .form import Form
from .looked import Looked
from .options import LeftByLive
from .structure import is_constant
from .surroundings import Surroundings
from .template import CallbackAt, Constant, DictBox, LeftAt, ListBox, ModuleAt, OptionAt, Template, TensorAt, TupleOf

if TYPE_CHECKING:
    from .recording import LiveRecording

_MISSING = object()


class Building:
    """Makes the template of one live call's arguments.

    Args:
        recorder: at work.
        name: of the live code.
        around: the recorded call's own things.
        real: nothing is recorded any more: tensors are handed on as they are.
    """

    def __init__(self, recorder: LiveRecording, name: str, around: Surroundings, real: bool = False) -> None:
        self.name = name
        self.around = around
        self.real = real or recorder.failure is not None
        self.tensors: list[torch.Tensor] = []
        self.nodes: list[torch.fx.Node] = []
        self.aliases: list[list[torch.fx.Node]] = []
        self.forms: list[Form] = []
        self.very: dict[int, int | None] = {}  # what is handed on as it is: which of the call's inputs, or None
        self.callbacks: list[Callable[..., Any]] = []
        self.containers: dict[int, Any] = {}  # the model's own lists and dicts among the arguments, by number
        self._recorder = recorder
        self._index: dict[int, int] = {}

    def of(self, value: Any) -> Template:
        """The template of one value.

        Raises:
            CaptureError: it can't be made again at another call.
        """
        if self.around.traced is not None and (path := self.around.traced.path(value)) is not None:
            return OptionAt(path)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        kind = type(value)
        if kind is LeftByLive:
            return self._left(value)
        if kind is tuple:
            return TupleOf(tuple([self.of(item) for item in value]))
        if kind is list:
            return ListBox(self._box(value)[0], tuple([self.of(item) for item in value]))
        if kind is dict or kind is Looked:
            return self._dict(value)
        if is_constant(value):
            return Constant(value)
        if (path := self.around.path(value)) is not None:
            return OptionAt(path)
        if isinstance(value, torch.nn.Module):
            if (name := self._module(value)) is not None:
                return ModuleAt(name)
        elif (isinstance(value, MethodType) and isinstance(value.__self__, torch.nn.Module) and not self.real) or (
            isinstance(value, FunctionType)
        ):
            if value not in self.callbacks:
                self.callbacks.append(value)
            return CallbackAt(self.callbacks.index(value))
        if self.real:
            return Constant(value)
        raise CaptureError(NOT_MADE_AGAIN(name=self.name, kind=kind.__name__))

    def _left(self, left: LeftByLive) -> Template:
        path = None if _is_plain_key(left.key) else self.around.path(left.key)
        if not (_is_plain_key(left.key) or path is not None or self.real) or not any(
            number == left.number and dict.get(container, left.key) is left
            for container, number, _ in self._recorder._boxes.values()
        ):  # what was put there has been replaced since, or another call has no such key
            raise CaptureError(NOT_MADE_AGAIN(name=self.name, kind=f"what {left.name} has put into a dict"))
        return LeftAt(left.number, left.key, path)

    def _module(self, module: torch.nn.Module) -> str | None:
        root = self.around.module
        return None if root is None else next((name for name, each in root.named_modules() if each is module), None)

    def _tensor(self, tensor: torch.Tensor) -> Template:
        index = self._index.get(id(tensor))
        if index is None:
            recorder = self._recorder
            if not self.real:
                if (
                    type(tensor) not in (torch.Tensor, torch.nn.Parameter)
                    or tensor.layout is not torch.strided
                    or tensor.is_conj()
                    or tensor.is_neg()
                ):
                    raise CaptureError(f"{self.name} is handed a {type(tensor).__name__} of layout {tensor.layout}")
                node = recorder._node(tensor, self.name)
                self.nodes.append(node)
                same = (recorder._nodes.get(other) for other in recorder._may_be_seen_through(tensor))
                self.aliases.append([node, *(other for other in same if other is not None)])
                with torch._C.DisableTorchFunction():
                    self.forms.append(Form.of(tensor))
                if vars(tensor) and not recorder.was_there(tensor, node):
                    raise CaptureError(f"{self.name} is handed a tensor that was given an attribute")
                if recorder.was_there(tensor, node) and (
                    (place := recorder.input_place(tensor)) is None or not tensor.is_inference()
                ):
                    self.very[len(self.tensors)] = place
            index = self._index[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        return TensorAt(index)

    def is_new(self, value: Any, *kinds: type) -> bool:
        """Whether a value is a container of these kinds that is no option's, and that no live code was handed yet."""
        if type(value) not in kinds or id(value) in self._recorder._boxes:
            return False
        return self.around.traced is None or self.around.traced.path(value) is None

    def is_mutable(self, value: Any) -> bool:
        """Whether a value is a list or dict that is no option's, or a tuple with such a one in it."""
        if type(value) is tuple:
            return any(map(self.is_mutable, value))
        return id(value) in self._recorder._boxes or self.is_new(value, list, dict, Looked)

    def _box(self, container: Any) -> tuple[int, dict[Any, Any] | None]:
        boxes = self._recorder._boxes
        known = boxes.get(id(container))
        if known is not None and known[0] is container:
            self.containers[known[1]] = container
            return known[1], known[2]
        number = len(boxes)
        self.containers[number] = container
        boxes[id(container)] = container, number, {}
        return number, None

    def _dict(self, value: dict[Any, Any]) -> Template:
        number, before = self._box(value)
        items = [
            (key, self.of(item))
            for key, item in dict.items(value)
            if not _is_there(item, number)
            and (
                before is None
                or self.real
                or before.get(key, _MISSING) is not item
                or isinstance(item, (torch.Tensor, dict, list, tuple))
            )
        ]
        for key, template in items:
            if not self.real and any(
                isinstance(each, torch.Tensor) for each in (key if type(key) is tuple else (key,))
            ):
                raise CaptureError(NOT_MADE_AGAIN(name=self.name, kind="dict with a tensor as a key"))
            if isinstance(template, LeftAt) and not (_is_plain_key(key) or self.real):
                raise CaptureError(NOT_MADE_AGAIN(name=self.name, kind=f"dict with a {type(key).__name__} as a key"))
        now = dict(dict.items(value))
        removed = tuple(key for key in before or () if key not in now)
        self._recorder._boxes[id(value)] = value, number, now
        return DictBox(number, items, removed)


def _is_there(item: Any, number: int) -> bool:
    """Whether live code itself has put it into the box of this number."""
    return type(item) is LeftByLive and item.number == number


def _is_plain_key(key: Any) -> bool:
    return is_constant(key) or type(key) is tuple
