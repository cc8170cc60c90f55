"""Patches changed in place, with a stand-in for ComfyUI's patcher.

What the real one makes of it: ``comfy/scenarios/in_place*.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core.hosts.comfy.in_place import Kept, swap

CPU = torch.device("cpu")


class Patcher:
    """Adds its patches, which are numbers, to the weights. Its model has other patches, or none."""

    injections = is_injected = weight_wrapper_patches = weight_inplace_update = force_cast_weights = None
    offload_device = torch.device("cpu:0")  # another one, as devices are compared

    def __init__(self, *patches: float, model: nn.Module | None = None, backup: dict[str, Any] | None = None) -> None:
        self.model: Any = model or _model()
        self.backup = {} if backup is None else backup
        self.patches = {f"{number}.weight": list(patches) for number in range(2)} if patches else {}
        self.patches_uuid = object()
        self.object_patches: dict[str, Any] = {}
        self.object_patches_backup: dict[str, Any] = {}
        self.computed: list[str] = []
        self.failure: Exception | None = None

    def after(self, *patches: float) -> Patcher:
        """A clone with these patches."""
        return Patcher(*patches, model=self.model, backup=self.backup)

    def _load_list(self) -> list[Any]:
        modules = self.model.named_children()
        return [(0, name, module, {key: value for key, value in module.named_parameters()}) for name, module in modules]

    def patch_weight_to_device(self, key: str, device_to: torch.device) -> None:
        self.computed.append(key)
        if self.failure and len(self.computed) == 2:
            raise self.failure
        layer = self.model.get_submodule(key[0])
        layer.weight = nn.Parameter(layer.weight + sum(self.patches[key]), requires_grad=False)

    def unpatch_hooks(self) -> None: ...

    def weights(self) -> list[float]:
        return [layer.weight[0, 0].item() for layer in self.model]


def _model() -> nn.Module:
    model: Any = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)).requires_grad_(False)
    for number, layer in enumerate(model):
        layer.weight.fill_(number)
    model.current_weight_patches_uuid, model.model_loaded_weight_memory, model.model_lowvram, model.device = (
        object(),
        100,
        False,
        CPU,
    )
    return model


def _swapped(patcher: Patcher) -> list[float]:
    addresses = [(id(value), value.data_ptr()) for value in patcher.model.parameters()]
    assert swap(patcher, CPU) and patcher.model.current_weight_patches_uuid is patcher.patches_uuid
    assert addresses == [(id(value), value.data_ptr()) for value in patcher.model.parameters()]
    return patcher.weights()


def test_each_swap_starts_from_the_plain_weight() -> None:
    patcher = Patcher(2.0)
    assert _swapped(patcher) == [2, 3]
    assert _swapped(patcher.after(0.5, 0.25)) == [0.75, 1.75]
    assert _swapped(patcher.after()) == [0, 1] and set(patcher.backup) == {"0.weight", "1.weight"}
    assert _swapped(patcher.after(7.0)) == [7, 8]
    assert all(
        type(kept) is Kept and kept.weight[0, 0] == number for number, kept in enumerate(patcher.backup.values())
    )


def test_a_backup_of_the_host_is_taken_over() -> None:
    patcher = Patcher()
    with torch.no_grad():
        patcher.backup["0.weight"] = type(
            "Dimension", (), {"weight": torch.full((3, 2), 5.0), "inplace_update": False}
        )()
    assert _swapped(patcher.after(1.0)) == [6, 2]
    assert _swapped(patcher.after()) == [5, 1]


def test_the_same_patches_are_left_in_place() -> None:
    patcher = Patcher(2.0)
    _swapped(patcher)
    again = patcher.after()
    again.patches = {"0.weight": list(patcher.patches["0.weight"]), "1.weight": [float("3.0")]}
    assert _swapped(again) == [2, 4] and again.computed == ["1.weight"]


def test_a_plain_weight_is_not_kept_twice_on_one_device() -> None:
    patcher = Patcher(2.0)
    _swapped(patcher)
    plain = patcher.after()
    plain.offload_device = CPU
    assert _swapped(plain) == [0, 1] and not patcher.backup


def _elsewhere(patcher: Patcher) -> Any:
    return [layer.weight for layer in patcher.model]


def _aliased(patcher: Patcher) -> Any:
    return patcher.model[1].weight.detach()


def _overlapping(patcher: Patcher) -> None:
    patcher.model[1].weight = nn.Parameter(patcher.model[0].weight.detach().view(2, 3), requires_grad=False)


def _with(**named: Any) -> Callable[[Patcher], None]:
    def change(patcher: Patcher) -> None:
        for name, value in named.items():
            setattr(patcher.model if hasattr(patcher.model, name) else patcher, name, value)

    return change


def _computing(patcher: Patcher) -> None:
    patcher.model[1].weight_function = [print]


def _casting(patcher: Patcher) -> None:
    patcher.model[0].comfy_cast_weights = patcher.model[0].prev_comfy_cast_weights = True


def _of_others(patcher: Patcher) -> None:
    patcher.backup["2.weight"] = Kept(torch.zeros(1))


def _reshaped(patcher: Patcher) -> None:
    patcher.backup["0.weight"] = Kept(torch.zeros(9, 9))


@pytest.mark.parametrize(
    "change",
    [
        _elsewhere,
        _aliased,
        _overlapping,
        _computing,
        _casting,
        _of_others,
        _reshaped,
        _with(model_lowvram=True),
        _with(model_loaded_weight_memory=0),
        _with(device=torch.device("meta")),
        _with(current_weight_patches_uuid=None),
        _with(injections={"a": 1}),
        _with(pinned={"0.weight"}),
        _with(force_cast_weights=True, weight_inplace_update=True),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_else_nothing_is_touched(change: Callable[[Patcher], Any]) -> None:
    patcher = Patcher(2.0)
    held = change(patcher)
    backup, loaded, weights = dict(patcher.backup), patcher.model.current_weight_patches_uuid, patcher.weights()
    assert not swap(patcher, CPU) and not patcher.computed
    assert (
        patcher.weights() == weights
        and patcher.backup == backup
        and patcher.model.current_weight_patches_uuid is loaded
    )
    del held


def test_parameters_packed_into_one_storage_are_written() -> None:
    patcher = Patcher(2.0)
    packed = torch.zeros(12)
    for number, layer in enumerate(patcher.model):
        layer.weight = nn.Parameter(
            packed[6 * number : 6 * number + 6].view(layer.weight.shape).fill_(number), requires_grad=False
        )
    del packed
    assert _swapped(patcher) == [2, 3]


def test_a_pytorch_that_does_not_tell_who_holds_a_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_storage_Use_Count")
    assert not swap(Patcher(2.0), CPU)


def test_weights_that_are_half_written_are_nobodys() -> None:
    patcher = Patcher(2.0)
    loaded = patcher.model.current_weight_patches_uuid
    patcher.failure = RuntimeError("made up")
    assert not swap(patcher, CPU)
    assert patcher.model.current_weight_patches_uuid not in (None, loaded, patcher.patches_uuid)
    assert [patcher.backup[f"{number}.weight"].weight[0, 0] for number in range(2)] == [0, 1], (
        "the host can put all of it back"
    )
    patcher.failure = None
    del patcher.computed[:]
    assert _swapped(patcher) == [2, 3]


def test_a_layer_that_another_node_replaces_is_the_hosts() -> None:
    patcher = Patcher(2.0)
    patcher.object_patches["1"] = nn.Linear(3, 2)
    assert not swap(patcher, CPU)
    assert patcher.weights() == [0, 1]


def test_a_function_that_another_node_replaces_is_no_matter() -> None:
    patcher = Patcher(2.0)
    patcher.object_patches["0.forward"] = patcher.model[0].forward
    assert _swapped(patcher) == [2, 3]
