"""What ComfyUI does to weights that are away, with stand-ins for its patcher and its class of LoRAs."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch

from sfast_core.hosts.comfy.held_patches import HeldPatches
from sfast_core.hosts.comfy.offload import ComfyOffload
from sfast_core.weights import Held, WeightTable

DEVICE = torch.device("cpu")


class LowVramPatch:
    """As the host's: adds what its list says, of tensors that it may be handed in memory of another's."""

    def __init__(self, key: str, patches: dict[str, list[Any]], convert_func: Any = None, set_func: Any = None) -> None:
        self.key, self.patches, self.convert_func, self.set_func = key, patches, convert_func, set_func

    def memory_required(self) -> int:
        return sum(tensor.nbytes for _, tensor in self.patches[self.key])

    def prepare(self, destination: torch.Tensor, stream: Any, copy: bool, commit: bool) -> list[Any]:
        assert copy and not commit and stream is None
        prepared, start = [], 0
        for strength, tensor in self.patches[self.key]:
            place = destination[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            prepared.append((strength, place.copy_(tensor)))
            start += tensor.nbytes
        return prepared

    def __call__(self, weight: torch.Tensor) -> torch.Tensor:
        for strength, tensor in self.patches[self.key]:
            weight += strength * tensor
        return weight


class Old:
    """Of a version that has no such way."""

    def __call__(self, weight: torch.Tensor) -> torch.Tensor:
        return weight


def test_matrices_are_held_as_long_as_the_function_adds_them() -> None:
    held, adds = HeldPatches(), {"a": [(2.0, torch.ones(4))]}
    patch = LowVramPatch("a", adds)
    (first,) = held.held((patch,), DEVICE)
    assert isinstance(first, Held) and held.held((patch,), DEVICE) == (first,)
    adds["a"][0][1].fill_(100)  # the host's own memory isn't read any more
    assert torch.equal(first(torch.zeros(4)), torch.full((4,), 2.0))
    adds["a"].append((1.0, torch.full((4,), 5.0)))
    (second,) = held.held((patch,), DEVICE)
    assert second is not first and torch.equal(second(torch.zeros(4)), torch.full((4,), 205.0))
    assert torch.equal(first(torch.zeros(4)), torch.full((4,), 2.0)), "who has it still may use it"
    (other,) = held.held((LowVramPatch("a", adds),), DEVICE)
    assert other is not second and len(held._held) == 1, "what is the model's no more isn't held"


def test_what_has_no_room_or_no_way_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    held, patch, old = HeldPatches(), LowVramPatch("a", {"a": [(2.0, torch.ones(4))]}), Old()
    assert held.held((patch, old), DEVICE) == (patch, old)
    monkeypatch.setattr("sfast_core.hosts.comfy.held_patches._UNKNOWN_BYTES", 20)
    assert isinstance(held.held((patch,), DEVICE)[0], Held)
    another = LowVramPatch("a", {"a": [(2.0, torch.ones(4))]})
    assert held.held((another,), DEVICE) == (another,)


class _Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Linear(4, 4, bias=False).requires_grad_(False)


def test_what_the_host_does_is_seen_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "comfy.model_patcher", types.SimpleNamespace(LowVramPatch=LowVramPatch))  # type: ignore[arg-type]
    owner = _Layers()
    offload, ref = ComfyOffload(owner), WeightTable(owner).ref(owner.a, "weight")
    assert ref is not None
    adds: dict[str, list[Any]] = {"a": [(2.0, torch.ones(4, 4))]}
    owner.a.weight_function = [LowVramPatch("a", adds)]  # type: ignore[assignment]
    same = offload.watch([ref])
    assert same() and offload.functions(ref) == tuple(owner.a.weight_function)  # type: ignore[arg-type]
    adds["a"] = [(3.0, adds["a"][0][1])]
    assert not same(), "another strength of the same function"
    same = offload.watch([ref])
    owner.a.weight_function = []  # type: ignore[assignment]
    assert not same()


def test_pinned_memory_that_the_host_gives_back(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, others = torch.ones(4), torch.ones(4)
    table = {ours.data_ptr(): 16}
    monkeypatch.setitem(sys.modules, "comfy.model_management", types.SimpleNamespace(PINNED_MEMORY=table))  # type: ignore[arg-type]
    pinned = ComfyOffload(_Layers()).watch_pins([ours[2:], others])
    assert pinned()
    table[5] = 1
    assert pinned()
    del table[ours.data_ptr()]
    assert not pinned()


def test_a_sampling_is_a_period_unless_parts_of_the_prompt_have_patches() -> None:
    owner: Any = _Layers()
    offload, patcher = ComfyOffload(owner), types.SimpleNamespace(hook_patches={}, current_hooks=None)
    assert offload.period() is None
    offload.begin()
    first = offload.period()
    owner.current_patcher = patcher
    assert first is not None and offload.period() is first
    patcher.hook_patches = {"hook": 1}
    assert offload.period() is None
    patcher.hook_patches, patcher.current_hooks = {}, object()
    assert offload.period() is None
    patcher.current_hooks = None
    offload.end()
    assert offload.period() is None
    offload.begin()
    assert offload.period() not in (None, first)
