"""Patches that change while the model stays loaded: the weights of a host without us, to the bit, in the very parameters that were there."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import comfy.hooks
import comfy.lora
import comfy.model_management as management
import comfy.sd
import part_tools
import tiny
import torch
from comfy.patcher_extension import CallbacksMP
from driver import assert_close, assert_differs, calls, fast_compile, load, node, prompt, report_of, sample
from scenario_tools import lora, replaying

#: ComfyUI compares devices, and to it this is another one than "cpu": weights are offloaded from it, as they are from a GPU.
ELSEWHERE = torch.device("cpu:0")


class Twins:
    """A model with our node and one without, loaded. ``sampled``: ours is laid out for its program, as it is after the first step."""

    def __init__(self, family: str = "sd15", device: torch.device = ELSEWHERE, sampled: bool = True, **options: Any) -> None:
        self.model, self.twin = load(family, **options), load(family, **options)
        self.model.load_device = self.twin.load_device = device
        self.plain = _copied(self.model)
        self.fast = fast_compile.apply(self.model)
        management.load_models_gpu([self.fast])
        management.load_models_gpu([self.twin])
        if sampled:
            sample(self.fast, steps=1)

    def load(self, made: Callable[[Any], Any] = lambda model: model) -> Any:
        """Load what ``made`` makes of both models, and compare all that the host keeps about them. Returns ours."""
        mine, theirs = made(self.fast), made(self.twin)
        management.load_models_gpu([mine])
        management.load_models_gpu([theirs])
        self.compare()
        for name in ("model_loaded_weight_memory", "model_lowvram", "lowvram_patch_counter", "device"):
            assert getattr(self.model.model, name) == getattr(self.twin.model, name), name
        assert mine.loaded_size() == theirs.loaded_size() == mine.model_size()
        assert self.model.model.current_weight_patches_uuid == mine.patches_uuid
        return mine

    def compare(self) -> None:
        """Both have the same weights."""
        _assert_equal(self.model, dict(self.twin.model.state_dict()))

    def unload(self) -> None:
        """Take both off the device: nothing is left, and the weights are those of the checkpoint."""
        management.free_memory(1e30, self.model.load_device)
        for model in (self.model, self.twin):
            _assert_equal(model, self.plain)
            assert not model.backup and not model.object_patches_backup and model.model.current_weight_patches_uuid is None
            assert model.loaded_size() == 0 and not any(hasattr(module, "comfy_patched_weights") for module in model.model.modules())


def _copied(model: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.model.state_dict().items()}


def _assert_equal(model: Any, expected: dict[str, torch.Tensor]) -> None:
    found = model.model.state_dict()
    assert found.keys() == expected.keys()
    for name, value in found.items():
        bits = torch.uint8 if value.dtype.itemsize == 1 else None  # float8 can't be compared
        mine, theirs = (value, expected[name]) if bits is None else (value.view(bits), expected[name].view(bits))
        assert value.dtype == expected[name].dtype and torch.equal(mine, theirs), name


def _where(model: Any) -> dict[str, tuple[Any, int]]:
    """Each parameter, not held (others' parameters aren't written to), and its address."""
    return {name: (weakref.ref(value), value.data_ptr()) for name, value in model.model.named_parameters()}


def _moved(model: Any, before: dict[str, tuple[Any, int]]) -> list[str]:
    return [name for name, value in model.model.named_parameters() if before[name][0]() is not value or before[name][1] != value.data_ptr()]


@contextmanager
def _unmoved(model: Any) -> Iterator[None]:
    before = _where(model)
    yield
    assert not _moved(model, before), _moved(model, before)[:3]


def _made(*patches: tuple[float, dict[str, torch.Tensor]]) -> Callable[[Any], Any]:
    """What nodes Load LoRA make of a model."""

    def made(model: Any) -> Any:
        for strength, weights in patches:
            model = comfy.sd.load_lora_for_models(model, None, dict(weights), strength, 0.0)[0]
        return model

    return made


def _adapter(kind: str, seed: int, layers: str = "") -> dict[str, torch.Tensor]:
    """A file of patches of this kind for the linear and convolution layers whose names hold ``layers``."""
    found: dict[str, torch.Tensor] = {}
    for name, weight in tiny.diffusion_model("sd15").state_dict().items():
        layer, seed = name.removesuffix(".weight"), seed + 7
        if layer == name or weight.dim() < 2 or not any(part in name for part in ("attn", "ff.net", "in_layers.2")) or layers not in name:
            continue
        rows, columns = weight.shape[0], math.prod(weight.shape[1:])
        flat = {"lora_up": (rows, 4), "lora_down": (4, columns)}
        shapes: dict[str, tuple[int, ...]] = {
            "lora": {f"{one}.weight": shape for one, shape in flat.items()},
            "dora": {"dora_scale": (rows, *[1] * (weight.dim() - 1))} | {f"{one}.weight": shape for one, shape in flat.items()},
            "loha": {"hada_w1_a": (rows, 4), "hada_w1_b": (4, columns), "hada_w2_a": (rows, 4), "hada_w2_b": (4, columns)},
            "lokr": {"lokr_w1": (4, 4), "lokr_w2": (rows // 4, columns // 4)},
            "oft": {"oft_blocks": (rows // 8, 8, 8)},
            "diff": {"diff": tuple(weight.shape)},
        }[kind]
        key = "lora_unet_" + layer.replace(".", "_")
        for number, (part, shape) in enumerate(shapes.items()):
            scale = 1 / math.sqrt(columns) if part.startswith(("lora_down", "hada_w1_b", "lokr_w2", "diff")) else 0.3
            found[f"{key}.{part}"] = tiny.noise(shape, seed + number, scale) + float(part == "dora_scale")
    assert found
    return found


FIRST, SECOND, ATTENTION = _adapter("lora", 1), _adapter("lora", 900), _adapter("lora", 500, "attn2")


def scenario_changed_removed_and_put_back() -> None:
    twins = Twins()
    assert any(stride[-1] != 1 for name, value in twins.model.model.named_parameters() if (stride := value.stride())), "not channels_last"
    with _unmoved(twins.model):
        for patches in (
            [(1.0, FIRST)],
            [(0.3, FIRST)],
            [(1.0, SECOND)],
            [],
            [(1.0, FIRST)],
            [(0.5, ATTENTION)],
            [(0.5, FIRST), (0.7, ATTENTION)],
        ):
            twins.load(_made(*patches))
        twins.load()
        assert twins.model.backup, "plain weights are kept: fetching them again takes as long as a swap"
    twins.unload()


def scenario_offloaded_to_the_device_itself() -> None:
    """``--highvram``, or a CPU: a plain weight isn't held twice there."""
    twins = Twins(device=torch.device("cpu"))
    with _unmoved(twins.model):
        for patches in ([(1.0, FIRST)], [(0.5, ATTENTION)], []):
            twins.load(_made(*patches))
            assert len(twins.model.backup) == len(twins.twin.backup)
    twins.unload()


def scenario_each_kind_of_patch() -> None:
    twins = Twins()
    with _unmoved(twins.model):
        for kind in ("lora", "dora", "loha", "lokr", "oft", "diff"):
            before = _copied(twins.model)
            twins.load(_made((0.8, _adapter(kind, 3))))
            changed = sum(not torch.equal(value, before[name]) for name, value in twins.model.model.state_dict().items())
            assert changed > 30, f"{kind}: {changed} weights changed"
        twins.load(_made((0.8, _adapter("oft", 4)), (0.4, _adapter("dora", 9, "attn1"))))
    twins.unload()


def scenario_only_what_differs_is_computed() -> None:
    """A LoRA whose node stays as it is, and behind it one that changes."""
    model = load("sd15")
    model.load_device = ELSEWHERE
    first = _made((1.0, FIRST))(fast_compile.apply(model))
    management.load_models_gpu([_made((1.0, ATTENTION))(first)])
    management.load_models_gpu([_made((0.9, ATTENTION))(first)])
    computed: list[str] = []
    calculate = comfy.lora.calculate_weight
    with patch.object(comfy.lora, "calculate_weight", lambda patches, weight, key, *more, **named: (
        computed.append(key), calculate(patches, weight, key, *more, **named)
    )[1]):  # fmt: skip
        management.load_models_gpu([_made((0.8, ATTENTION))(first)])
    assert len(computed) == len(ATTENTION) / 2 and all("attn2" in key for key in computed)


def scenario_before_and_behind_the_node() -> None:
    twins = Twins()
    with _unmoved(twins.model):
        for strength in (1.0, 0.4):
            twins.load(lambda model: _made((0.5, SECOND))(fast_compile.apply(_made((strength, FIRST))(model))))  # noqa: B023
        twins.load(lambda model: model if model is twins.twin else fast_compile.apply(twins.model))
    twins.unload()


def scenario_loaded_with_a_lora_at_first() -> None:
    """Its parameters are the host's new ones then, and the backup is what was on the CPU."""
    model, twin = load("sd15"), load("sd15")
    model.load_device = twin.load_device = ELSEWHERE
    plain = _copied(model)
    fast = fast_compile.apply(model)
    management.load_models_gpu([_made((1.0, FIRST))(fast)])
    with _unmoved(model):
        for patches in ([(0.4, FIRST)], [(1.0, SECOND)], [], [(1.0, FIRST)]):
            management.load_models_gpu([_made(*patches)(fast) if patches else fast])
            management.load_models_gpu([_made(*patches)(twin) if patches else twin])
            _assert_equal(model, dict(twin.model.state_dict()))
    management.free_memory(1e30, ELSEWHERE)
    _assert_equal(model, plain)


def scenario_weights_of_eight_bits() -> None:
    """They are rounded by chance, from a seed that is the host's."""
    twins = Twins(sampled=False, options={"dtype": torch.float8_e4m3fn})
    assert twins.model.model.diffusion_model.out[2].weight.dtype == torch.float8_e4m3fn
    with _unmoved(twins.model):
        for patches in ([(1.0, FIRST)], [(0.3, SECOND)], []):
            twins.load(_made(*patches))
    twins.unload()


def scenario_the_pictures() -> None:
    """Nothing is traced, and the same patches give the bits from before."""
    model, twin = load("sd15"), load("sd15")
    fast = fast_compile.apply(model)
    plain = sample(fast)
    with_lora = sample(lora(fast, "sd15"))
    before = calls(model)
    with _unmoved(model):
        assert torch.equal(sample(fast), plain) and torch.equal(sample(lora(fast, "sd15")), with_lora)
        assert_differs(plain, with_lora)
    assert not (calls(model) - before)["traced"]
    patched = sample(lora(twin, "sd15"))
    assert torch.equal(sample(lora(model, "sd15")), patched), "without our node, behind a swap"
    assert torch.equal(sample(model), sample(twin))


def scenario_no_graph_is_captured_again() -> None:
    """The fake graphs read the addresses that they were captured with, as CUDA's do."""
    model, fast, graphs = replaying("sd15")
    plain, before = sample(fast), calls(model)
    (captures,) = {signature.captures for signature in report_of(model).signatures}
    seen = [sample(lora(fast, "sd15", strength)) for strength in (1.0, 0.4, 1.0)]
    assert torch.equal(seen[0], seen[2]) and torch.equal(sample(fast), plain)
    assert_differs(seen[0], plain), assert_differs(seen[0], seen[1])
    since = calls(model) - before
    assert dict(since) == {"replayed": 8}, dict(since)
    assert [signature.captures for signature in report_of(model).signatures] == [captures] and graphs.captures == captures == 1


def scenario_hooks() -> None:
    """A scheduled LoRA has the host load the model under another name; a LoRA that changes meanwhile is none of its business."""

    def hooked(model: Any) -> list[Any]:
        return prompt(model, 1, hooks=comfy.hooks.create_hook_lora(lora=dict(FIRST), strength_model=1.0, strength_clip=0.0))

    twins = Twins()
    with _unmoved(twins.model):
        mine, theirs = twins.fast, twins.twin
        for patches in ([(0.5, SECOND)], [(0.2, ATTENTION)], []):
            mine, theirs = _made(*patches)(twins.fast), _made(*patches)(twins.twin)
            sample(mine, positive=hooked(mine)), sample(theirs, positive=hooked(theirs))
            twins.compare()
    twins.unload()


def scenario_merges() -> None:
    """Every weight is patched, and what a merge was made of are the very parameters of another model: these stay as they are."""
    merge = node("nodes_model_merging", "ModelMergeSimple")
    twins, other, others_twin = Twins("sd3"), load("sd3"), load("sd3")
    for model in (other, others_twin):
        for value in model.model.parameters():
            value.copy_(value.roll(1, 0))
    with _unmoved(twins.model):
        for ratio in (0.3, 0.6):
            twins.load(lambda model: merge(model, others_twin if model is twins.twin else other, ratio))  # noqa: B023
        twins.load(lambda model: lora(merge(model, others_twin if model is twins.twin else other, 0.1), "sd3"))
    twins.load()
    parts = merge(other, twins.fast, 0.5), merge(others_twin, twins.twin, 0.5)
    for strength in (1.0, 0.5):
        twins.load(lambda model: lora(model, "sd3", strength))  # noqa: B023
    management.load_models_gpu([parts[0]])
    management.load_models_gpu([parts[1]])
    _assert_equal(other, dict(others_twin.model.state_dict()))
    twins.load()


def scenario_a_merge_with_itself() -> None:
    """The merge's input is the weight that is to be patched."""
    merge = node("nodes_model_merging", "ModelMergeSimple")
    twins = Twins("sd3")
    mine, theirs = merge(lora(twins.fast, "sd3"), twins.fast, 0.5), merge(lora(twins.twin, "sd3"), twins.twin, 0.5)
    merges = {id(twins.fast): mine, id(twins.twin): theirs}
    for _ in range(2):
        twins.load(lambda model: merges[id(model)])
        twins.load(lambda model: lora(model, "sd3", 0.7))
    twins.load()
    twins.unload()


def scenario_other_nodes_object_patches_and_callbacks() -> None:
    """They come and go with their clone, as ever."""
    twins, seen = Twins(), []
    sampling = node("nodes_model_advanced", "ModelSamplingDiscrete")
    before = twins.model.model.model_sampling
    with _unmoved(twins.model):
        mine = sampling(_made((1.0, FIRST))(twins.fast), "v_prediction", False)
        mine.add_callback(CallbacksMP.ON_LOAD, lambda *arguments: seen.append(arguments[1:]))
        management.load_models_gpu([mine])
        management.load_models_gpu([mine])
        assert seen == [(ELSEWHERE, 1e32 + mine.loaded_size(), False, True)], "once a load, and told what the host tells"
        assert twins.model.model.model_sampling is mine.object_patches["model_sampling"]
        twins.load(_made((0.3, FIRST)))
        assert twins.model.model.model_sampling is before
    twins.unload()


def scenario_a_failure_on_the_way() -> None:
    """Memory runs out once in the middle: the host loads it all. It is cut short altogether: nobody takes the weights for right ones."""
    twins, calculate = Twins(), comfy.lora.calculate_weight
    old = twins.load(_made((1.0, FIRST)))
    for error in (torch.cuda.OutOfMemoryError("made up"), KeyboardInterrupt()):
        left = 5

        def failing(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise error  # noqa: B023
            return calculate(*arguments, **named)

        swapped = _made((1.0, SECOND))(twins.fast)
        with patch.object(comfy.lora, "calculate_weight", failing):
            try:
                management.load_models_gpu([swapped])
            except KeyboardInterrupt:
                management.load_models_gpu([old])
                management.load_models_gpu([_made((1.0, FIRST))(twins.twin)])
                twins.compare()
            else:
                assert isinstance(error, RuntimeError) and left < 0
                management.load_models_gpu([_made((1.0, SECOND))(twins.twin)])
                twins.compare()
        old = twins.load(_made((1.0, FIRST)))
    with _unmoved(twins.model):
        twins.load(_made((0.1, SECOND)))
    twins.unload()


def scenario_a_part_is_offloaded() -> None:
    """Then the host does it in its own way: each layer patches its weight at each call."""
    twins = Twins()
    for made, room in ((_made((1.0, FIRST)), 0.5), (_made((0.5, FIRST)), 0.5), (_made((0.5, SECOND)), 2.0)):
        for model in (twins.fast, twins.twin):
            patcher = made(model)
            size = patcher.model_size()
            patcher.partially_load(ELSEWHERE, int(size * room) - patcher.loaded_size())
            assert patcher.model.model_lowvram == (room < 1)
        twins.compare()
        computed = [
            [bool(getattr(module, "weight_function", [])) for module in model.model.modules()] for model in (twins.model, twins.twin)
        ]
        assert computed[0] == computed[1] and any(computed[0]) == (room < 1)
        assert twins.model.loaded_size() == twins.twin.loaded_size()
    with _unmoved(twins.model):
        twins.load(_made((0.3, FIRST)))
    twins.model.detach(), twins.twin.detach()
    twins.unload()


def scenario_a_patch_that_changes_the_shape() -> None:
    """The host puts a weight of another shape there; afterwards the model is what it was."""
    twins = Twins()
    name = "diffusion_model.input_blocks.1.1.proj_in.weight"
    wider = torch.ones(320, 640, 1, 1)

    def made(model: Any) -> Any:
        clone = model.clone()
        clone.add_patches({name: ("diff", (wider, {"pad_weight": True}))}, 1.0)
        return clone

    twins.load(made)
    assert twins.model.model.state_dict()[name].shape == wider.shape
    twins.load()
    with _unmoved(twins.model):
        twins.load(_made((0.3, FIRST)))
    twins.unload()


def scenario_another_class_stays_as_it_is() -> None:
    """A patcher that loads weights in its own way."""
    model = load("sd3")

    class Own(type(model)):  # type: ignore[misc]
        def load(self, *arguments: Any, **named: Any) -> Any:
            return super().load(*arguments, **named)

    model.__class__ = Own
    assert type(fast_compile.apply(model)) is Own


def scenario_another_compute_dtype() -> None:
    """Each layer is told to cast its weight: the host does so when it loads. As long as that stays, patches can change in place."""

    def cast(strength: float) -> Callable[[Any], Any]:
        def made(model: Any) -> Any:
            clone = lora(model, "sd3", strength)
            clone.set_model_compute_dtype(torch.float32)
            return clone

        return made

    twins = Twins("sd3")
    for made in (lambda model: lora(model, "sd3"), cast(0.5), cast(0.2), lambda model: lora(model, "sd3")):
        twins.load(made)
        casting = [[getattr(module, "comfy_cast_weights", None) for module in model.model.modules()] for model in (twins.model, twins.twin)]
        assert casting[0] == casting[1]
    with _unmoved(twins.model):
        twins.load(lambda model: lora(model, "sd3", 0.7))
    twins.load(cast(0.2))
    with _unmoved(twins.model):
        twins.load(cast(0.3))
    twins.unload()


def scenario_text_encoders() -> None:
    clip, twin = part_tools.clip(), part_tools.clip()
    expected = part_tools.encode(twin, "a cat")[0]
    key, (rows, columns) = "lora_te_text_model_encoder_layers_{}_self_attn_{}_proj", (64, 64)
    weights = {}
    for number in range(3):
        for part in "qkv":
            name = key.format(number, part)
            weights[f"{name}.lora_up.weight"] = tiny.noise((rows, 4), number, 0.5)
            weights[f"{name}.lora_down.weight"] = tiny.noise((4, columns), number + 9, 0.5)

    def made(clip_object: Any, strength: float) -> Any:
        return comfy.sd.load_lora_for_models(None, clip_object, dict(weights), 0.0, strength)[1]

    fast = fast_compile.apply_clip(clip)
    part_tools.encode(fast, "a cat")
    plain = part_tools.encode(fast, "a cat")[0]
    with _unmoved(clip.patcher):
        for strength in (1.0, 0.4):
            mine, theirs = made(fast, strength), made(twin, strength)
            assert_differs(part_tools.encode(mine, "a cat")[0], plain)
            part_tools.encode(theirs, "a cat")
            _assert_equal(clip.patcher, dict(twin.patcher.model.state_dict()))
        assert torch.equal(part_tools.encode(fast, "a cat")[0], plain)
    assert_close(plain, expected)
