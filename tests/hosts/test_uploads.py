"""Which of a step's tensors are pinned, and how many steps may be under way."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sfast_core.hosts.comfy.uploads import STAGED_BYTES, STEPS_AHEAD, Uploads

LARGE = STAGED_BYTES // 4 + 1  #: elements in float32
NOISE = torch.empty(1, device="meta")  #: stands for a latent on a GPU


class Recorder:
    """Pins and marks as a GPU would, and notes it."""

    def __init__(self) -> None:
        self.pinned: list[torch.Tensor] = []
        self.events: list[str] = []
        self.uploads = Uploads(self.pin, self.mark)

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        copy = tensor.clone()
        self.pinned.append(copy)
        return copy

    def mark(self, device: torch.device) -> Any:
        recorder, number = self, sum(event.startswith("mark") for event in self.events)

        class Event:
            def synchronize(self) -> None:
                recorder.events.append(f"wait {number}")

        self.events.append(f"mark {number}")
        return Event()

    def call(self, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        def call(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
            self.events.append("call")
            return args, kwargs

        return self.uploads.through(args, kwargs, call)


def test_large_tensors_of_main_memory_are_pinned() -> None:
    recorder, prompt, small, reference = Recorder(), torch.rand(LARGE), torch.rand(LARGE - 1), torch.rand(LARGE)
    options = {"patches": [torch.rand(LARGE)]}
    args, kwargs = recorder.call(
        NOISE, small, c_crossattn=prompt, again=prompt, references=[reference, small], transformer_options=options
    )
    assert args[0] is NOISE and args[1] is small and kwargs["transformer_options"] is options
    assert kwargs["c_crossattn"] is recorder.pinned[0] and kwargs["again"] is recorder.pinned[0]
    assert kwargs["references"][0] is recorder.pinned[1] and kwargs["references"][1] is small
    assert torch.equal(recorder.pinned[0], prompt) and torch.equal(recorder.pinned[1], reference)
    assert len(recorder.pinned) == 2


@pytest.mark.parametrize("noise", [torch.zeros(1), None, "no tensor"])
def test_nothing_is_pinned_for_a_cpu(noise: Any) -> None:
    recorder, prompt = Recorder(), torch.rand(LARGE)
    _, kwargs = recorder.call(noise, c_crossattn=prompt)
    assert kwargs["c_crossattn"] is prompt
    assert recorder.events == ["call"]


def test_where_there_is_no_pinned_memory_left_the_call_goes_on() -> None:
    def fail(tensor: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("CUDA error: out of memory")

    recorder, prompt = Recorder(), torch.rand(LARGE)
    recorder.uploads = Uploads(fail, recorder.mark)
    _, kwargs = recorder.call(NOISE, c_crossattn=prompt)
    assert kwargs["c_crossattn"] is prompt
    assert recorder.events == ["call"]


def test_no_more_steps_are_under_way_than_said() -> None:
    recorder = Recorder()
    for _ in range(STEPS_AHEAD + 2):
        recorder.call(NOISE, c_crossattn=torch.rand(LARGE))
    first = [part for number in range(STEPS_AHEAD) for part in ("call", f"mark {number}")]
    assert recorder.events == [*first, "wait 0", "call", "mark 2", "wait 1", "call", "mark 3"]


def test_a_call_that_is_interrupted_marks_nothing() -> None:
    recorder = Recorder()

    def call(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recorder.uploads.through((NOISE,), {"c_crossattn": torch.rand(LARGE)}, call)
    assert recorder.events == []
