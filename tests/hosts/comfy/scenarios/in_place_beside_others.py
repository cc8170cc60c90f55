"""Patches that change in place beside hooks, merges, other nodes and offloading, and whatever makes the host load the
model in its own way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import comfy.hooks
import comfy.lora
import comfy.model_management as management
import torch
from comfy.patcher_extension import CallbacksMP
from driver import fast_compile, load, node, prompt, sample
from scenario_tools import lora
from twins import ATTENTION, ELSEWHERE, FIRST, SECOND, Twins, assert_equal, unmoved, with_loras


def scenario_hooks() -> None:
    """A scheduled LoRA has the host load the model under another name; a LoRA that changes meanwhile is none of its
    business.
    """

    def hooked(model: Any) -> list[Any]:
        return prompt(
            model, 1, hooks=comfy.hooks.create_hook_lora(lora=dict(FIRST), strength_model=1.0, strength_clip=0.0)
        )

    twins = Twins()
    with unmoved(twins.model):
        mine, theirs = twins.fast, twins.twin
        for patches in ([(0.5, SECOND)], [(0.2, ATTENTION)], []):
            mine, theirs = with_loras(*patches)(twins.fast), with_loras(*patches)(twins.twin)
            sample(mine, positive=hooked(mine)), sample(theirs, positive=hooked(theirs))
            twins.compare()
    twins.unload()


def scenario_merges() -> None:
    """Every weight is patched, and what a merge was made of are the very parameters of another model: these stay as
    they are.
    """
    merge = node("nodes_model_merging", "ModelMergeSimple")
    twins, other, others_twin = Twins("sd3"), load("sd3"), load("sd3")
    for model in (other, others_twin):
        for value in model.model.parameters():
            value.copy_(value.roll(1, 0))
    with unmoved(twins.model):
        for ratio in (0.3, 0.6):
            twins.load(lambda model: merge(model, others_twin if model is twins.twin else other, ratio))  # noqa: B023
        twins.load(lambda model: lora(merge(model, others_twin if model is twins.twin else other, 0.1), "sd3"))
    twins.load()
    parts = merge(other, twins.fast, 0.5), merge(others_twin, twins.twin, 0.5)
    for strength in (1.0, 0.5):
        twins.load(lambda model: lora(model, "sd3", strength))  # noqa: B023
    management.load_models_gpu([parts[0]])
    management.load_models_gpu([parts[1]])
    assert_equal(other, dict(others_twin.model.state_dict()))
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
    with unmoved(twins.model):
        mine = sampling(with_loras((1.0, FIRST))(twins.fast), "v_prediction", False)
        mine.add_callback(CallbacksMP.ON_LOAD, lambda *arguments: seen.append(arguments[1:]))
        management.load_models_gpu([mine])
        management.load_models_gpu([mine])
        assert seen == [(ELSEWHERE, 1e32 + mine.loaded_size(), False, True)], (
            "once a load, and told what the host tells"
        )
        assert twins.model.model.model_sampling is mine.object_patches["model_sampling"]
        twins.load(with_loras((0.3, FIRST)))
        assert twins.model.model.model_sampling is before
    twins.unload()


def scenario_a_failure_on_the_way() -> None:
    """Memory runs out once in the middle: the host loads it all.

    It is cut short altogether: nobody takes the weights for right ones.
    """
    twins, calculate = Twins(), comfy.lora.calculate_weight
    old = twins.load(with_loras((1.0, FIRST)))
    for error in (torch.cuda.OutOfMemoryError("made up"), KeyboardInterrupt()):
        left = 5

        def failing(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise error  # noqa: B023
            return calculate(*arguments, **named)

        swapped = with_loras((1.0, SECOND))(twins.fast)
        with patch.object(comfy.lora, "calculate_weight", failing):
            try:
                management.load_models_gpu([swapped])
            except KeyboardInterrupt:
                management.load_models_gpu([old])
                management.load_models_gpu([with_loras((1.0, FIRST))(twins.twin)])
                twins.compare()
            else:
                assert isinstance(error, RuntimeError) and left < 0
                management.load_models_gpu([with_loras((1.0, SECOND))(twins.twin)])
                twins.compare()
        old = twins.load(with_loras((1.0, FIRST)))
    with unmoved(twins.model):
        twins.load(with_loras((0.1, SECOND)))
    twins.unload()


def scenario_a_part_is_offloaded() -> None:
    """Then the host does it in its own way: each layer patches its weight at each call."""
    twins = Twins()
    for made, room in (
        (with_loras((1.0, FIRST)), 0.5),
        (with_loras((0.5, FIRST)), 0.5),
        (with_loras((0.5, SECOND)), 2.0),
    ):
        for model in (twins.fast, twins.twin):
            patcher = made(model)
            size = patcher.model_size()
            patcher.partially_load(ELSEWHERE, int(size * room) - patcher.loaded_size())
            assert patcher.model.model_lowvram == (room < 1)
        twins.compare()
        computed = [
            [bool(getattr(module, "weight_function", [])) for module in model.model.modules()]
            for model in (twins.model, twins.twin)
        ]
        assert computed[0] == computed[1] and any(computed[0]) == (room < 1)
        assert twins.model.loaded_size() == twins.twin.loaded_size()
    with unmoved(twins.model):
        twins.load(with_loras((0.3, FIRST)))
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
    with unmoved(twins.model):
        twins.load(with_loras((0.3, FIRST)))
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
    """Each layer is told to cast its weight: the host does so when it loads.

    As long as that stays, patches can change in place.
    """

    def cast(strength: float) -> Callable[[Any], Any]:
        def made(model: Any) -> Any:
            clone = lora(model, "sd3", strength)
            clone.set_model_compute_dtype(torch.float32)
            return clone

        return made

    twins = Twins("sd3")
    for made in (lambda model: lora(model, "sd3"), cast(0.5), cast(0.2), lambda model: lora(model, "sd3")):
        twins.load(made)
        casting = [
            [getattr(module, "comfy_cast_weights", None) for module in model.model.modules()]
            for model in (twins.model, twins.twin)
        ]
        assert casting[0] == casting[1]
    with unmoved(twins.model):
        twins.load(lambda model: lora(model, "sd3", 0.7))
    twins.load(cast(0.2))
    with unmoved(twins.model):
        twins.load(cast(0.3))
    twins.unload()
