"""The model's own functions that live code is handed: what they do while a call is recorded is a graph of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ...reporting.reason import reason_of
from ...reporting.reasons.records import RANDOM
from ..call_tensors import Given, Slot
from ..errors import CaptureError
from ..rebuilding import rebuilt
from .call import Recalled
from .form import Form
from .looked import Looked
from .structure import Structure
from .surroundings import Surroundings
from .template import OptionAt

if TYPE_CHECKING:
    from .recording import LiveRecording


class Recorded:
    """A function of the model's own, as foreign code gets it while a call is recorded: what it does is a graph of its
    own.
    """

    def __init__(self, recorder: LiveRecording, function: Callable[..., Any], around: Surroundings) -> None:
        self._recorder, self._function, self._around = recorder, function, around
        self.ways: list[Recalled] = []
        self.outer: list[list[torch.fx.Node]] = []  # of each way, what it reads of the graph around it

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        recorder, around = self._recorder, self._around
        structure = Structure((args, kwargs), around)
        model_args, model_kwargs = rebuilt((args, kwargs), self._for_model)
        if recorder.failure is not None or any(way.key == structure.key for way in self.ways):
            return self._for_foreign(self._function(*model_args, **model_kwargs))
        if structure.unknown is not None:
            recorder.refuse(f"the model's {self._function.__name__} is handed {structure.unknown}")
            return self._for_foreign(self._function(*model_args, **model_kwargs))
        if recorder.random is not None:
            recorder.random.renew()
        given = [tensor.detach().clone() for tensor in structure.tensors]
        forms = tuple(map(Form.of, structure.tensors))
        recorder._enter_frame(structure.tensors)
        numbers = recorder.given(structure.tensors)
        try:
            with recorder.resumed():
                result = self._function(*model_args, **model_kwargs)
            if recorder.random is not None and recorder.random.moved():
                recorder.refuse(RANDOM())
            real = self._for_foreign(result)
            recalled = None
            if recorder.failure is None:
                try:
                    recalled = self._close(structure, given, forms, real)
                    recalled.numbers = numbers
                except CaptureError as error:
                    recorder.refuse(reason_of(error))
        finally:
            frame, outer = recorder._leave_frame()
        if recalled is not None:
            recorder._frames.append((recalled, frame))
            self.ways.append(recalled)
            self.outer.append(outer)
        return real

    def _close(self, structure: Structure, given: list[torch.Tensor], forms: tuple[Form, ...], real: Any) -> Recalled:
        recorder = self._recorder
        inputs = {id(tensor): index for index, tensor in enumerate(structure.tensors)}
        result = Structure(real, self._around)
        if result.unknown is not None:
            raise CaptureError(f"the model's {self._function.__name__} returns {result.unknown}")
        outputs: list[torch.Tensor] = []
        slots: dict[int, Slot] = {}

        def replace_(value: Any, key: Any) -> Any:
            if self._around.is_unread(key, value):
                return OptionAt((key,))
            if not isinstance(value, torch.Tensor):
                path = None if isinstance(value, (bool, int, float, str, type(None))) else self._around.path(value)
                return value if path is None else OptionAt(path)
            if id(value) in inputs:
                return Given(inputs[id(value)])
            if (path := self._around.path(value)) is not None:
                return OptionAt(path)
            if id(value) not in slots:
                slots[id(value)] = Slot(len(outputs))
                outputs.append(value)
            return slots[id(value)]

        built = rebuilt(real, replace_)
        written = []
        for index, tensor in enumerate(structure.tensors):
            if tensor in recorder._writes:
                raise CaptureError("a view of what a callback is handed is changed in place")
            node = recorder._nodes.get(tensor)
            if node is None or node.op != "placeholder":
                written.append(index)
        tensors = [*outputs, *(structure.tensors[index] for index in written)]
        nodes = tuple(recorder._node(tensor, "a callback's result") for tensor in tensors)
        recorder.graph.output(nodes)
        return Recalled(
            structure.key,
            None,
            given,
            forms,
            built,
            tuple(map(Form.of, tensors)),
            tuple(written),
            expected=[tensor.detach().clone() for tensor in tensors],
        )

    def _for_model(self, value: Any, key: Any) -> Any:
        if type(value) is dict:
            for container, number, _ in self._recorder._boxes.values():
                box = self._around.boxes.get(number)
                if box is not None and box is value and container.keys() == box.keys():
                    if all(self._same(box[name], item) for name, item in container.items()):
                        return container
        return self._recorder._stand_in(value, self._around, key)

    def _same(self, real: Any, models: Any) -> bool:
        """Whether foreign code has left in a container what the model had there."""
        if real is models:
            return True
        if self._around.traced is not None and (path := self._around.traced.path(models)) is not None:
            return self._around.at(path) is real
        return False

    def _for_foreign(self, result: Any) -> Any:
        def replace_(value: Any, key: Any) -> Any:
            traced = self._around.traced
            path = (
                None if traced is None or isinstance(value, (bool, int, float, str, type(None))) else traced.path(value)
            )
            return value if path is None else self._around.at(path)

        return rebuilt(result, replace_, kinds=(Looked,))
