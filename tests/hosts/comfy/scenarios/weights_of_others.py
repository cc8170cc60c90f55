"""Nodes that look into the model's weights: they find them laid out as ComfyUI's own, whatever our graphs read."""

from __future__ import annotations

from typing import Any

import comfy.model_management
import comfy.samplers
import torch
from driver import assert_close, assert_fused, calls, fast_compile, load, report_of, sample


def _views(model: Any) -> dict[str, torch.Tensor]:
    """What RES4LYF's ReSDPatcher takes of the first convolution, of every one."""
    convolutions = {
        path: module
        for path, module in model.model.diffusion_model.named_modules()
        if isinstance(module, torch.nn.Conv2d)
    }
    assert convolutions
    return {
        path: module.weight.view(module.weight.shape[0], -1).to(torch.float64) for path, module in convolutions.items()
    }


def _sampled() -> tuple[Any, Any, torch.Tensor]:
    """A model and a node's clone of it that has sampled, and what it gives without the node."""
    model = load("sd15")
    plain = sample(model)
    fast = fast_compile.apply(model)
    sample(fast)
    assert_fused(model)
    assert report_of(model).adopted_bytes
    return model, fast, plain


def scenario_a_node_takes_views_of_convolutions_between_two_samplings() -> None:
    model, fast, plain = _sampled()
    first = _views(load("sd15"))
    for name, view in _views(model).items():
        assert torch.equal(view, first[name]), name
    before = calls(model)
    addresses = [parameter.data_ptr() for parameter in model.model.diffusion_model.parameters()]
    assert_close(sample(fast), plain)
    _views(fast)
    assert not (calls(model) - before)["traced"], "looking made a trace"
    assert addresses == [parameter.data_ptr() for parameter in model.model.diffusion_model.parameters()]
    assert_fused(model, before)


def scenario_a_node_takes_views_after_our_node_has_left() -> None:
    model, _, plain = _sampled()
    _views(model)
    assert torch.equal(sample(model), plain)
    _views(model)


def scenario_a_node_takes_views_after_a_sampling_that_was_interrupted() -> None:
    model, fast, plain = _sampled()
    interrupt = fast.clone()

    def cancel(args: Any) -> Any:
        raise comfy.model_management.InterruptProcessingException

    interrupt.set_model_sampler_post_cfg_function(cancel)
    try:
        sample(interrupt)
    except comfy.model_management.InterruptProcessingException:
        pass
    else:
        raise AssertionError("it wasn't interrupted")
    _views(model)
    assert_close(sample(fast), plain)


def scenario_code_inside_the_model_takes_views() -> None:
    """A patch, whose calls run as they were: the first ones after fused ones, and the ones between such."""
    model, fast, plain = _sampled()
    patched = fast.clone()

    def looks(*given: Any) -> Any:
        _views(model)
        return given[:3]

    patched.set_model_attn2_patch(looks)
    for _ in range(2):
        assert_close(sample(patched), plain)
        assert_close(sample(fast), plain)


def scenario_a_hosts_own_accounting_costs_no_memory() -> None:
    """ComfyUI asks for the state dict to learn names and sizes."""
    model, fast, plain = _sampled()
    parameters = dict(model.model.named_parameters())
    state = model.model_state_dict()
    assert all(
        state[name].data_ptr() == parameter.data_ptr() and state[name].is_contiguous()
        for name, parameter in parameters.items()
    )
    assert comfy.model_management.module_size(model.model) == sum(value.nbytes for value in state.values())
    del state, parameters
    before = calls(model)
    assert_close(sample(fast), plain)
    assert_fused(model, before)
