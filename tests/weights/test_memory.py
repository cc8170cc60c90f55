"""Who sees a tensor's memory, and how it is exchanged under the object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core.weights import memory

HOLDERS: dict[str, Callable[[torch.Tensor], object]] = {
    "a detached one": lambda tensor: tensor.detach(),
    "data": lambda tensor: tensor.data,
    "a view": lambda tensor: tensor.view(-1),
    "a part": lambda tensor: tensor[1:, 1:],
    "a parameter on it": lambda tensor: nn.Parameter(tensor.data, requires_grad=False),
    "an array": lambda tensor: tensor.detach().numpy(),
    "a capsule": lambda tensor: torch.from_dlpack(tensor.detach()),
    "another process": lambda tensor: tensor.share_memory_(),
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("holder", HOLDERS)
def test_who_sees_a_tensors_memory(holder: str, inference: bool) -> None:
    with torch.inference_mode(inference):
        tensor = nn.Parameter(torch.randn(4, 6), requires_grad=False)
    assert not memory.is_shared(tensor)
    held = HOLDERS[holder](tensor)
    assert memory.is_shared(tensor)
    del held
    if holder not in ("an array", "another process"):  # which leave a mark
        assert not memory.is_shared(tensor)


def test_what_an_array_or_a_file_was_made_of_is_its_own() -> None:
    assert memory.is_shared(torch.from_numpy(torch.zeros(3).numpy().copy()))
    assert memory.is_shared(torch.frombuffer(bytearray(16), dtype=torch.float32))


def test_an_object_that_others_hold_has_memory_of_its_own() -> None:
    tensor = torch.randn(3)
    held = [tensor, {"here": tensor}]
    assert not memory.is_shared(tensor) and held


def test_a_torch_that_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_storage_Use_Count")
    flat = torch.randn(8)
    assert not memory.is_shared(flat) and memory.is_shared(flat[:4])
    assert memory.holders({"flat": flat}, "flat")[1] is None


def _table(tensor: torch.Tensor) -> dict[str, Any]:
    return {"weight": tensor}


TRAINED: dict[str, Callable[[dict[str, Any]], object]] = {
    "an optimizer": lambda table: torch.optim.SGD([table["weight"]]),
    "a list": lambda table: [table["weight"]],
    "a gradient": lambda table: setattr(table["weight"], "grad", torch.zeros(4, 6)),
    "a hook": lambda table: table["weight"].register_hook(lambda grad: grad).id,
    "a hook behind the gradient": lambda table: (
        table["weight"].register_post_accumulate_grad_hook(lambda parameter: None).id
    ),
    "a result of it": lambda table: table.update(weight=table["weight"] * 2),
}


@pytest.mark.parametrize("who", TRAINED)
def test_who_wants_gradients(who: str) -> None:
    table = _table(nn.Parameter(torch.randn(4, 6)))
    assert not memory.gradients_wanted(table, "weight")
    holder = TRAINED[who](table)
    assert memory.gradients_wanted(table, "weight")
    del holder
    frozen = _table(nn.Parameter(torch.randn(4, 6), requires_grad=False))
    held = frozen["weight"]
    assert not memory.gradients_wanted(frozen, "weight") and held is frozen["weight"]


def test_nobody_trains_inference_tensors() -> None:
    with torch.inference_mode():
        table = _table(nn.Parameter(torch.randn(4, 6)))
    held = table["weight"]
    assert held.requires_grad and not memory.gradients_wanted(table, "weight")


@pytest.mark.parametrize("inference", [False, True])
def test_turned_and_back_a_tensor_is_what_it_was(inference: bool) -> None:
    with torch.inference_mode(inference):
        tensor = nn.Parameter(torch.randn(4, 2, 3, 3))
    before, address, version = tensor.detach().clone(), tensor.data_ptr(), None if inference else tensor._version
    for strides in ((18, 1, 6, 2), (18, 9, 3, 1)):
        with torch.no_grad():
            assert memory.lay(tensor, strides) and tensor.stride() == strides
        assert torch.equal(tensor, before) and tensor.data_ptr() == address and not memory.is_shared(tensor)
        assert tensor.is_inference() is inference and tensor.requires_grad and (inference or tensor._version == version)
    held = tensor.detach()
    assert (
        not memory.lay(tensor, (18, 1, 6, 2))
        and tensor.is_contiguous()
        and memory.lay(tensor, (18, 9, 3, 1))
        and held is not None
    )


def test_parts_lie_behind_one_another_in_storages_of_their_own() -> None:
    tensors = [torch.randn(2, 3), torch.randn(4, 3).t().contiguous().t()]
    whole = torch.empty(6, 3)
    found = list(memory.parts(whole.untyped_storage(), tensors))
    assert torch.equal(whole, torch.cat(tensors)) and all(part.is_contiguous() for part in found)
    assert [part.untyped_storage().nbytes() for part in found] == [24, 48] and [
        part.data_ptr() - whole.data_ptr() for part in found
    ] == [0, 24]
    del whole
    assert torch.equal(found[1], tensors[1]), "its memory is gone"
    assert not memory.is_shared(found[0], made_here=True) and memory.is_shared(found[0])
