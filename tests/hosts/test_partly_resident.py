"""A model under dynamic VRAM that doesn't fit, with stand-ins for the host's range, its pinned buffers and the function
that fills pages.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch

from sfast_core import CompileConfig
from sfast_core.hosts.comfy import dynamic, partly_resident
from sfast_core.hosts.comfy.dynamic import DynamicStore
from sfast_core.hosts.comfy.page import PageOrOwn
from sfast_core.hosts.comfy.parts import Part, PartState
from sfast_core.weights import Arrival, Arriving, Weight, WeightsElsewhere, WeightTable
from tests.hosts.pretended_range import MB, Range

DEVICE = torch.device("cpu")
CONFIG = CompileConfig(allow_cpu=True)


class Patch:
    """As ComfyUI's own class of a LoRA on a weight that is computed at each use."""

    def __call__(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.add_(1)


class Patcher:
    def is_dynamic(self) -> bool:
        return True


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))
        self.range = Range()
        self.dynamic_vbars = {DEVICE: self.range}
        self.cast: list[int] = []  # the layers that the host has brought
        self.current_weight_patches_uuid = "plain"
        for index, layer in enumerate(self.layers):
            layer.requires_grad_(False)
            layer._v, layer._v_signature = (self.range, self.range.base_addr + index * 40 * MB, 40 * MB), None  # type: ignore[assignment]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Model:
    model, pages = Model(), {}
    monkeypatch.setattr(partly_resident, "_AT_ONCE", 1)

    def cast(module: Any, _: Any, dtype: Any, device: Any, bias_dtype: Any, offloadable: bool) -> Any:
        signature = model.range.fault(*module._v[1:])
        model.cast.append([*model.layers].index(module))
        if signature is not None and bytes(signature) != module._v_signature:
            if id(module) not in pages:
                pages[id(module)] = torch.empty(4, 4), torch.empty(4)
            module._v_weight, module._v_bias = pages[id(module)]
            module._v_weight.copy_(module.weight), module._v_bias.copy_(module.bias)
        module._v_signature = signature and bytes(signature)
        return module.weight, module.bias, signature

    def uncast(module: Any, weight: Any, bias: Any, signature: Any) -> None:
        if signature is not None:
            model.range.unpin(*module._v[1:])

    ops = types.SimpleNamespace(cast_bias_weight=cast, uncast_bias_weight=uncast)
    monkeypatch.setitem(sys.modules, "comfy", types.SimpleNamespace(ops=ops))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "comfy.ops", ops)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "comfy.model_patcher", types.SimpleNamespace(LowVramPatch=Patch))  # type: ignore[arg-type]
    return model


def weights(model: Model) -> list[Weight]:
    table = WeightTable(model)
    return [
        Weight((ref,))
        for layer in model.layers
        for name in ("weight", "bias")
        if (ref := table.ref(layer, name)) is not None
    ]


def resolved(store: DynamicStore, model: Model) -> list[Any]:
    wanted = weights(model)
    return store.resolve(wanted, DEVICE, [Arrival()] * len(wanted))


def test_what_is_resident_is_read_there_and_the_rest_brought(model: Model) -> None:
    store = DynamicStore(model)
    model.range.pages[2] = False  # the second module's end and the third's beginning
    with store.pinned(DEVICE):
        found = resolved(store, model)
        assert model.range.held == {0, 1}
    assert [isinstance(each, Arriving) for each in found] == [False, False, True, True, True, True]
    assert found[0] is model.layers[0]._v_weight and torch.equal(found[0], model.layers[0].weight)
    assert [each.sources[0] for each in found[2:4]] == [model.layers[1].weight, model.layers[1].bias]
    assert not model.range.held


def _host_pins(pins: dict[int, torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """The host keeps these buffers, by the ids of the modules whose weights are in them."""
    monkeypatch.setitem(
        sys.modules,
        "comfy.pinned_memory",
        types.SimpleNamespace(get_pin=lambda module, subset: pins.get(id(module)) if subset == "weights" else None),
    )  # type: ignore[arg-type]
    views = lambda tensors, pin: [pin[:64].view(torch.float32).view(4, 4), pin[512:528].view(torch.float32)]  # noqa: E731
    monkeypatch.setitem(sys.modules, "comfy.memory_management", types.SimpleNamespace(interpret_gathered_like=views))  # type: ignore[arg-type]


def _made_ready(store: DynamicStore, model: Model) -> None:
    model.range.prioritize()
    store.ask_again()


def _away(store: DynamicStore, model: Model) -> list[bool]:
    with store.pinned(DEVICE):
        return [isinstance(each, Arriving) for each in resolved(store, model)[::2]]


def test_what_was_unloaded_is_asked_for_once_it_is_made_ready(model: Model) -> None:
    """The host's own layers ask at each step; a program that never does would stream all of it for good."""
    store = DynamicStore(model)
    model.range.pages[2:] = [False, False]
    assert _away(store, model) == [False, True, True]
    model.range.free = 1
    assert _away(store, model) == [False, True, True], "there is room meanwhile, and the graph stays as it is"
    _made_ready(store, model)
    assert _away(store, model) == [False, False, True]
    assert not model.range.held


def test_text_encoders_and_vaes_ask_when_the_host_brings_them(model: Model) -> None:
    """They have no samplings: what the diffusion model had taken from them never came back."""
    state = PartState(Part(model, "a text encoder", model, patcher=Patcher()), CONFIG)
    store = state.engine.store
    assert isinstance(store, DynamicStore)
    model.range.pages[2:] = [False, False]
    assert _away(store, model) == [False, True, True]
    model.range.free = 1
    assert _away(store, model) == [False, True, True]
    model.range.prioritize(), state.on_load()
    assert _away(store, model) == [False, False, True]


def test_what_is_held_stays_for_the_next_call(model: Model) -> None:
    """Where the host looked for room it lowered its mark below what was held: all of that went behind each call, and
    everything was brought at each.
    """
    store = DynamicStore(model)
    model.range.pages[2:], model.range.free = [False, False], 1
    for _ in range(3):
        with store.pinned(DEVICE):
            assert [isinstance(each, Arriving) for each in resolved(store, model)[::2]] == [False, False, True]
            model.range.watermark = 0  # something was allocated, and there was nothing to take for it
        assert model.range.pages == [True, True, True, False] and not model.range.held
    model.range.pages[3], model.range.free = True, 0
    _made_ready(store, model)
    for _ in range(3):
        with store.pinned(DEVICE):
            assert not any(isinstance(each, Arriving) for each in resolved(store, model))
            model.range.watermark = 0
        assert all(model.range.pages) and not model.range.held


def test_room_is_left_where_all_memory_is_taken(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """As much as is missing beside what is free, also where all of the model would fit."""
    free = [partly_resident.ROOM_BYTES - 30 * MB]
    monkeypatch.setattr(dynamic, "_free_bytes", lambda device: free[0])
    store = DynamicStore(model)
    model.range.pages, model.range.free = [True, False, False, False], 3
    for _ in range(2):
        with store.pinned(DEVICE):
            assert [isinstance(each, Arriving) for each in resolved(store, model)[::2]] == [False, False, True]
            assert model.range.held == {0, 1, 2}
    monkeypatch.setattr(partly_resident, "_ABOUT", 1 / 3)
    free[0] = partly_resident.ROOM_BYTES - 60 * MB
    _made_ready(store, model)
    assert _away(store, model) == [False, False, True], "about as much as before, and a graph may be replayed"
    free[0] = 0
    _made_ready(store, model)
    assert _away(store, model) == [True, True, True]
    free[0] = partly_resident.ROOM_BYTES
    _made_ready(store, model)
    assert _away(store, model) == [False, False, False]


def test_pages_that_the_host_has_not_filled_are_not_read(model: Model) -> None:
    """It finds that memory is short as it is asked to, and brings the weights beside its pages."""
    store = DynamicStore(model)
    whole = model.range.fault
    model.range.fault = lambda address, size: whole(address, size) if size > 40 * MB else None  # type: ignore[method-assign]
    assert _away(store, model) == [True, True, True] and not model.range.held
    model.range.fault = whole  # type: ignore[method-assign]
    assert _away(store, model) == [False, False, False]


def test_a_buffer_that_the_host_gives_to_another_module_is_not_read(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its buffers may be fewer than its modules: to make one it may take another's."""
    pins: dict[int, torch.Tensor] = {id(model.layers[0]): torch.zeros(1024, dtype=torch.uint8)}
    pinned = {pin.untyped_storage().data_ptr() for pin in pins.values()}
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: tensor.untyped_storage().data_ptr() in pinned)
    _host_pins(pins, monkeypatch)
    ops, cast = sys.modules["comfy.ops"], sys.modules["comfy.ops"].cast_bias_weight
    for layer in model.layers:
        layer._pin_state = {}  # type: ignore[assignment]

    def taking(module: Any, *args: Any, **kwargs: Any) -> Any:
        (pin,) = pins.values()
        pins.clear()
        pins[id(module)] = pin
        return cast(module, *args, **kwargs)

    monkeypatch.setattr(ops, "cast_bias_weight", taking)
    store = DynamicStore(model)
    model.range.pages = [False] * 4
    with store.pinned(DEVICE):
        found = resolved(store, model)
    assert found[0].sources[0] is model.layers[0].weight, "its buffer was the next one's"
    assert found[4].sources[0].untyped_storage().data_ptr() in pinned


def test_the_host_is_asked_for_pinned_memory(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes it when it brings a module, and lets it go when it unloads the model. From other memory nothing is copied
    beside what is computed, and no graph copies at all.
    """
    store = DynamicStore(model)
    model.range.pages = [True, True, False, False]
    pinned = {id(model.layers[1].weight), id(model.layers[1].bias)}
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: id(tensor) in pinned)
    store.ask_again()
    assert _away(store, model) == [False, True, True] and model.cast == [0, 2]
    assert _away(store, model) == [False, True, True] and model.cast == [0, 2], (
        "it has none: it isn't asked at each call"
    )
    pinned.clear()
    assert _away(store, model) == [False, True, True] and model.cast == [0, 2, 1]
    store.ask_again()
    assert _away(store, model) == [False, True, True] and model.cast == [0, 2, 1, 1, 2]


def test_the_hosts_pinned_buffer_is_what_is_copied_from(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    pins = {id(layer): torch.zeros(1024, dtype=torch.uint8) for layer in model.layers[1:]}
    _host_pins(pins, monkeypatch)
    for layer in model.layers[:2]:
        layer._pin_state = {}  # type: ignore[assignment]
    store = DynamicStore(model)
    model.range.pages = [False] * 4
    with store.pinned(DEVICE):
        found = resolved(store, model)
    assert found[0].sources[0] is model.layers[0].weight, "the host has no buffer for it"
    assert found[2].sources[0].data_ptr() == pins[id(model.layers[1])].data_ptr()
    assert found[3].sources[0].data_ptr() == pins[id(model.layers[1])].data_ptr() + 512
    assert found[4].sources[0] is model.layers[2].weight, "the host keeps none for this module"


def test_whether_a_graph_may_be_replayed(model: Model) -> None:
    store = DynamicStore(model)
    model.range.pages[3] = False

    def bound() -> Any:
        with store.pinned(DEVICE):
            return store.bind(weights(model), resolved(store, model)), store.watch(weights(model))

    def holds(found: Any) -> bool:
        with store.pinned(DEVICE):
            return found[0].readable() and found[0].valid() and found[1]()

    found = bound()
    assert holds(found) and holds(found)
    assert not found[0].readable(), "nothing is held outside of a call"
    model.range.pages[2] = False
    assert not holds(found), "another part is away"
    model.range.pages[2], model.range.watermark = True, 3
    assert holds(found)
    model.range.serials[0] += 1
    assert holds(found), "other memory at the same address, filled again"
    model.current_weight_patches_uuid = "a LoRA"
    assert not holds(found)
    found = bound()
    model.layers[2].weight = torch.nn.Parameter(torch.zeros(4, 4), requires_grad=False)
    assert not holds(found), "what is brought lies elsewhere"


def test_a_lora_is_computed_of_what_is_brought(model: Model) -> None:
    store = DynamicStore(model)
    model.range.pages = [False] * 4
    model.layers[0].weight_lowvram_function = Patch()  # type: ignore[assignment]
    with store.pinned(DEVICE):
        found = resolved(store, model)
    assert found[0].computed and not found[1].computed and not found[2].computed
    slot = torch.empty(found[0].nbytes, dtype=torch.uint8)
    found[0].views(slot)[0].copy_(found[0].sources[0])
    assert torch.equal(found[0].made(slot), model.layers[0].weight + 1)
    model.layers[0].weight_function = [lambda weight: weight]  # type: ignore[assignment]
    with store.pinned(DEVICE), pytest.raises(WeightsElsewhere, match="compute their weights"):
        resolved(store, model)
    assert not model.range.held


def test_where_memory_runs_out_the_range_gives_some_back(model: Model) -> None:
    store = DynamicStore(model)
    model.range.pages[3] = False
    with pytest.raises(torch.cuda.OutOfMemoryError), store.pinned(DEVICE):
        raise torch.cuda.OutOfMemoryError("as a graph's memory")
    assert not any(model.range.pages) and not model.range.held


def test_all_of_it_there_again(model: Model) -> None:
    store = DynamicStore(model)
    model.range.pages[3] = False
    with store.pinned(DEVICE):
        assert any(isinstance(each, Arriving) for each in resolved(store, model))
    model.range.pages[3] = True
    _made_ready(store, model)
    with store.pinned(DEVICE):
        assert not any(isinstance(each, Arriving) for each in resolved(store, model))
    assert not model.range.held


@pytest.mark.parametrize("patched", [False, True])
def test_what_the_host_casts_on_the_way_is_cast_where_it_arrives(model: Model, patched: bool) -> None:
    """A file in another dtype than the model's: the range has the model's, main memory the file's."""
    store = DynamicStore(model)
    model.range.pages = [False] * 4
    model.layers[0].weight_comfy_model_dtype = torch.float16  # type: ignore[assignment]
    if patched:
        model.layers[0].weight_lowvram_function = Patch()  # type: ignore[assignment]
    with store.pinned(DEVICE):
        found, bias = resolved(store, model)[:2]
    weight = model.layers[0].weight
    assert found.dtype == torch.float16 and not found.in_place and bias.in_place
    assert found.nbytes >= weight.nbytes, "it comes as it lies"
    slot = torch.empty(found.nbytes, dtype=torch.uint8)
    found.views(slot)[0].copy_(found.sources[0])
    made = found.made(slot)
    assert made.dtype == torch.float16 and torch.equal(made, weight.half() + patched)


def test_what_a_recorded_call_binds(model: Model) -> None:
    """In the range, or, where there was no room, the module's own, as it would be there."""
    table = WeightTable(model)
    ref = table.ref(model.layers[0], "weight")
    assert ref is not None
    assert PageOrOwn().laid((ref,)) is model.layers[0].weight
    model.layers[0].weight_comfy_model_dtype = torch.float16  # type: ignore[assignment]
    bound = PageOrOwn().laid((ref,))
    assert (bound.shape, bound.stride(), bound.dtype) == ((4, 4), (4, 1), torch.float16)
    model.layers[0]._v_weight, model.layers[0]._v_signature = torch.zeros(4, 4), b"1"  # type: ignore[assignment]
    assert PageOrOwn().laid((ref,)) is model.layers[0]._v_weight
