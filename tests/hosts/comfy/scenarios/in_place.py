"""Patches that change while the model stays loaded: the weights of a host without us, to the bit, in the very
parameters that were there.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import comfy.lora
import comfy.model_management as management
import comfy.sd
import part_tools
import tiny
import torch
from driver import assert_close, assert_differs, calls, fast_compile, load, report_of, sample
from scenario_tools import lora, replaying
from twins import ATTENTION, ELSEWHERE, FIRST, SECOND, Twins, adapter, assert_equal, copied, unmoved, with_loras


def scenario_changed_removed_and_put_back() -> None:
    twins = Twins()
    assert report_of(twins.model).adopted_bytes, "nothing is packed or turned"
    with unmoved(twins.model):
        for patches in (
            [(1.0, FIRST)],
            [(0.3, FIRST)],
            [(1.0, SECOND)],
            [],
            [(1.0, FIRST)],
            [(0.5, ATTENTION)],
            [(0.5, FIRST), (0.7, ATTENTION)],
        ):
            twins.load(with_loras(*patches))
        twins.load()
        assert twins.model.backup, "plain weights are kept: fetching them again takes as long as a swap"
    twins.unload()


def scenario_offloaded_to_the_device_itself() -> None:
    """``--highvram``, or a CPU: a plain weight isn't held twice there."""
    twins = Twins(device=torch.device("cpu"))
    with unmoved(twins.model):
        for patches in ([(1.0, FIRST)], [(0.5, ATTENTION)], []):
            twins.load(with_loras(*patches))
            assert len(twins.model.backup) == len(twins.twin.backup)
    twins.unload()


def scenario_each_kind_of_patch() -> None:
    twins = Twins()
    with unmoved(twins.model):
        for kind in ("lora", "dora", "loha", "lokr", "oft", "diff"):
            before = copied(twins.model)
            twins.load(with_loras((0.8, adapter(kind, 3))))
            changed = sum(
                not torch.equal(value, before[name]) for name, value in twins.model.model.state_dict().items()
            )
            assert changed > 30, f"{kind}: {changed} weights changed"
        twins.load(with_loras((0.8, adapter("oft", 4)), (0.4, adapter("dora", 9, "attn1"))))
    twins.unload()


def scenario_only_what_differs_is_computed() -> None:
    """A LoRA whose node stays as it is, and behind it one that changes."""
    model = load("sd15")
    model.load_device = ELSEWHERE
    first = with_loras((1.0, FIRST))(fast_compile.apply(model))
    management.load_models_gpu([with_loras((1.0, ATTENTION))(first)])
    management.load_models_gpu([with_loras((0.9, ATTENTION))(first)])
    computed: list[str] = []
    calculate = comfy.lora.calculate_weight
    with patch.object(comfy.lora, "calculate_weight", lambda patches, weight, key, *more, **named: (
        computed.append(key), calculate(patches, weight, key, *more, **named)
    )[1]):  # fmt: skip
        management.load_models_gpu([with_loras((0.8, ATTENTION))(first)])
    assert len(computed) == len(ATTENTION) / 2 and all("attn2" in key for key in computed)


def scenario_before_and_behind_the_node() -> None:
    twins = Twins()
    with unmoved(twins.model):
        for strength in (1.0, 0.4):
            first, second = with_loras((strength, FIRST)), with_loras((0.5, SECOND))
            twins.load(lambda model, first=first, second=second: second(fast_compile.apply(first(model))))
        twins.load(lambda model: model if model is twins.twin else fast_compile.apply(twins.model))
    twins.unload()


def scenario_loaded_with_a_lora_at_first() -> None:
    """Its parameters are the host's new ones then, and the backup is what was on the CPU."""
    model, twin = load("sd15"), load("sd15")
    model.load_device = twin.load_device = ELSEWHERE
    plain = copied(model)
    fast = fast_compile.apply(model)
    management.load_models_gpu([with_loras((1.0, FIRST))(fast)])
    with unmoved(model):
        for patches in ([(0.4, FIRST)], [(1.0, SECOND)], [], [(1.0, FIRST)]):
            management.load_models_gpu([with_loras(*patches)(fast) if patches else fast])
            management.load_models_gpu([with_loras(*patches)(twin) if patches else twin])
            assert_equal(model, dict(twin.model.state_dict()))
    management.free_memory(1e30, ELSEWHERE)
    assert_equal(model, plain)


def scenario_weights_of_eight_bits() -> None:
    """They are rounded by chance, from a seed that is the host's."""
    twins = Twins(sampled=False, options={"dtype": torch.float8_e4m3fn})
    assert twins.model.model.diffusion_model.out[2].weight.dtype == torch.float8_e4m3fn
    with unmoved(twins.model):
        for patches in ([(1.0, FIRST)], [(0.3, SECOND)], []):
            twins.load(with_loras(*patches))
    twins.unload()


def scenario_the_pictures() -> None:
    """Nothing is traced, and the same patches give the bits from before."""
    model, twin = load("sd15"), load("sd15")
    fast = fast_compile.apply(model)
    plain = sample(fast)
    with_lora = sample(lora(fast, "sd15"))
    before = calls(model)
    with unmoved(model):
        assert torch.equal(sample(fast), plain) and torch.equal(sample(lora(fast, "sd15")), with_lora)
        assert_differs(plain, with_lora)
    assert not (calls(model) - before)["traced"]
    patched = sample(lora(twin, "sd15"))
    assert torch.equal(sample(lora(model, "sd15")), patched), "without our node, behind a swap"
    assert torch.equal(sample(model), sample(twin))


class _Around(torch.nn.Module):
    """Stands for a layer, whose weights it reads and hides from the host, as LayerDiffuse's attention does."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.hidden = [layer]

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.hidden[0](*inputs, **named) * 1.5


def scenario_a_layer_that_another_node_replaces() -> None:
    """The host leaves its weights as they are; with our node, too, whatever comes before and behind."""
    model, twin = load("sd15"), load("sd15")
    fast, name, pictures = fast_compile.apply(model), "diffusion_model.input_blocks.1.1.transformer_blocks.0.attn2", []
    around = {each: _Around(each.get_model_object(name)) for each in (fast, twin)}
    for strength, replaced in (
        (0.5, False),
        (1.0, True),
        (0.3, True),
        (0.0, False),
        (0.0, True),
        (1.0, False),
        (0.0, False),
    ):
        for patcher in (fast, twin):
            each = lora(patcher, "sd15", strength) if strength else patcher.clone()
            if replaced:
                each.add_object_patch(name, around[patcher])
            pictures.append(sample(each))
        assert_close(*pictures[-2:])
    assert not calls(model)["eager"], calls(model)
    assert_differs(pictures[2], pictures[-4]), assert_differs(pictures[8], pictures[-2])


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
    assert [signature.captures for signature in report_of(model).signatures] == [
        captures
    ] and graphs.captures == captures == 1


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
    with unmoved(clip.patcher):
        for strength in (1.0, 0.4):
            mine, theirs = made(fast, strength), made(twin, strength)
            assert_differs(part_tools.encode(mine, "a cat")[0], plain)
            part_tools.encode(theirs, "a cat")
            assert_equal(clip.patcher, dict(twin.patcher.model.state_dict()))
        assert torch.equal(part_tools.encode(fast, "a cat")[0], plain)
    assert_close(plain, expected)
