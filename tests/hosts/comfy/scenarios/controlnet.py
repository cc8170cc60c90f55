"""Apply Fast Compile (ControlNet): ControlNets, union ones, chains, T2I-Adapters, with and without the model's own
node.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import weakref
from typing import Any

import comfy.cldm.mmdit
import comfy.controlnet
import comfy.model_management as management
import comfy.ops
import comfy.t2i_adapter.adapter
import tiny
import torch
from driver import PACK, assert_close, assert_differs, assert_fused, calls, fast_compile, load, prompt, sample
from part_tools import Capturing, assert_parts_fused, assert_refused, control_net, part_calls, reports, vae, weights_for

_SHARED: dict[str, Any] = {}


def _model() -> Any:
    """One SD1.5 for all that only vary the ControlNet."""
    if not _SHARED:
        _SHARED["model"] = load("sd15")
    return _SHARED["model"]


def _node() -> Any:
    async def nodes() -> list[Any]:
        listed: list[Any] = await (await PACK.comfy_entrypoint()).get_node_list()
        return listed

    return next(
        kind for kind in asyncio.run(nodes()) if kind.GET_SCHEMA().node_id == "ApplyFastCompileControlNet"
    ).execute


def _hinted(net: Any, strength: float = 1.0, start: float = 0.0, end: float = 1.0, seed: int = 77, **more: Any) -> Any:
    """What the node Apply ControlNet makes of a ControlNet."""
    return net.copy().set_cond_hint(tiny.noise((1, 3, 64, 64), seed), strength, (start, end), **more)


def _sampled(model: Any, control: Any, **options: Any) -> torch.Tensor:
    both = {
        name: prompt(model, seed, control=control, control_apply_to_uncond=False)
        for name, seed in (("positive", 1), ("negative", 2))
    }
    return sample(model, **both, **options)


def scenario_a_control_net() -> None:
    model, net = _model(), control_net()
    plain, expected = sample(model), _sampled(model, _hinted(net))
    assert_differs(expected, plain)
    fast = fast_compile.apply_controlnet(net)
    first = _sampled(model, _hinted(fast))
    before = part_calls(net.control_model)
    assert torch.equal(_sampled(model, _hinted(fast)), first), "not the same bits"
    assert_close(first, expected)
    for strength in (0.5, 0.0, 2.0):
        assert_close(_sampled(model, _hinted(fast, strength)), _sampled(model, _hinted(control_net(), strength)))
    assert_parts_fused(net.control_model, before)
    assert set(reports(net.control_model)) == {"ControlNet"}


def scenario_beside_the_models_own_node() -> None:
    model, net = load("sd15"), control_net()
    expected = _sampled(model, _hinted(net))
    fast_model, fast = fast_compile.apply(model), fast_compile.apply_controlnet(net)
    _sampled(fast_model, _hinted(fast))
    before, parts = calls(model), part_calls(net.control_model)
    assert_close(_sampled(fast_model, _hinted(fast)), expected)
    assert_fused(model, before)
    assert_parts_fused(net.control_model, parts)


def scenario_some_steps() -> None:
    model, net = _model(), control_net()
    expected = _sampled(model, _hinted(net, 1.0, 0.3, 0.7), steps=4)
    assert_differs(expected, _sampled(model, _hinted(net), steps=4))
    fast = fast_compile.apply_controlnet(net)
    _sampled(model, _hinted(fast, 1.0, 0.3, 0.7), steps=4)
    before = part_calls(net.control_model)
    assert_close(_sampled(model, _hinted(fast, 1.0, 0.3, 0.7), steps=4), expected)
    since = part_calls(net.control_model) - before
    assert 0 < since["fused"] < 4 and not since["eager"], dict(since)


def scenario_sizes_and_batches() -> None:
    """In turn, too: ComfyUI's blocks leave their last shape in a default, and each new one ran as it was."""
    model, net = _model(), control_net()
    fast, twin = fast_compile.apply_controlnet(net), control_net()
    every: Any = ({"size": (72, 104)}, {"batch": 2}, {"cfg": 1.0}, {"tokens": (231, 77)})
    for options in every:
        _sampled(model, _hinted(fast), **options)
    for options in every:
        before = part_calls(net.control_model)
        assert_close(_sampled(model, _hinted(fast), **options), _sampled(model, _hinted(twin), **options))
        assert_parts_fused(net.control_model, before)
    assert "eager" not in part_calls(net.control_model), part_calls(net.control_model)


def scenario_a_chain() -> None:
    """Both fast, or one of them; the same ControlNet twice; a chain that comes into the node as one."""
    model, nets, twins = _model(), (control_net(), control_net()), (control_net(), control_net())

    def chained(first: Any, second: Any) -> Any:
        return _hinted(second, 0.8, 0.0, 0.6, seed=78).set_previous_controlnet(_hinted(first, 0.6))

    expected = _sampled(model, chained(*twins), steps=3)
    fast = tuple(fast_compile.apply_controlnet(net) for net in nets)
    for pair in (fast, (fast[0], nets[1]), (nets[0], fast[1]), (fast[0], fast[0]), (fast[0], nets[0])):
        _sampled(model, chained(*pair), steps=3)
        assert_close(_sampled(model, chained(*pair), steps=3), expected)
    whole = fast_compile.apply_controlnet(chained(*nets))
    before = [part_calls(net.control_model) for net in nets]
    whole.set_cond_hint(tiny.noise((1, 3, 64, 64), 78), 0.8, (0.0, 0.6))
    whole.previous_controlnet.set_cond_hint(tiny.noise((1, 3, 64, 64), 77), 0.6, (0.0, 1.0))
    assert_close(_sampled(model, whole, steps=3), expected)
    for net, then in zip(nets, before, strict=True):
        assert_parts_fused(net.control_model, then)


def scenario_a_control_net_for_sd3() -> None:
    """Of another family: its hint is a latent, and it gets the pooled prompt too."""
    model = load("sd3")
    sizes = {
        name: value
        for name, value in model.model.model_config.unet_config.items()
        if name not in ("dtype", "image_model")
    }
    build = {
        "num_blocks": 2,
        "control_latent_channels": 16,
        "operations": comfy.ops.disable_weight_init,
        "dtype": torch.float32,
    }
    inner = comfy.cldm.mmdit.ControlNet(**sizes, **build, device="cpu")
    inner.load_state_dict(weights_for(inner))
    net = comfy.controlnet.ControlNet(inner, compression_ratio=1, load_device=torch.device("cpu"))
    hint = tiny.noise((1, 16, 8, 8), 77)
    expected = _sampled(model, net.copy().set_cond_hint(hint, 0.7))
    assert_differs(expected, sample(model))
    fast = fast_compile.apply_controlnet(net)
    _sampled(model, fast.copy().set_cond_hint(hint, 0.7))
    before = part_calls(inner)
    assert_close(_sampled(model, fast.copy().set_cond_hint(hint, 0.7)), expected)
    assert_parts_fused(inner, before)


def scenario_a_union_control_net() -> None:
    """Its kind of picture is an argument that steers the trace."""
    model, net, twin = _model(), control_net(union=6), control_net(union=6)
    fast, seen = fast_compile.apply_controlnet(net), []

    def of_kind(one: Any, kind: list[int]) -> Any:
        one = one.copy()
        one.set_extra_arg("control_type", kind)
        return one

    for kind in ([0], [3], [], [0]):
        expected = _sampled(model, _hinted(of_kind(twin, kind)))
        _sampled(model, _hinted(of_kind(fast, kind)))
        before = part_calls(net.control_model)
        assert_close(_sampled(model, _hinted(of_kind(fast, kind))), expected)
        assert_parts_fused(net.control_model, before)
        seen.append(expected)
    assert_differs(seen[0], seen[1])


def scenario_a_hint_that_a_vae_encodes() -> None:
    """In the middle of sampling: it reloads the models in use. With a fast VAE, and everything fast."""
    model, net = load("sd15"), control_net()
    encoded, plain, twin = vae(), vae(), control_net()
    # The hint is a latent then: four channels, of which the model takes three.
    for one in (net, twin):
        one.latent_format, one.compression_ratio = model.model.latent_format, 1
        one.control_model.input_hint_block[0] = _Three(one.control_model.input_hint_block[0])
    expected = _sampled(model, _hinted(twin, vae=plain), size=(64, 64))
    fast_model, fast, fast_vae = (
        fast_compile.apply(model),
        fast_compile.apply_controlnet(net),
        fast_compile.apply_vae(encoded),
    )
    for _ in range(2):
        got = _sampled(fast_model, _hinted(fast, vae=fast_vae), size=(64, 64))
    assert_close(got, expected)
    assert part_calls(encoded.first_stage_model)["fused"]


class _Three(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(torch.nn.functional.interpolate(x[:, :3], scale_factor=8))
        return result


def _controls(net: Any, hint: torch.Tensor) -> dict[str, Any]:
    """What a T2I-Adapter adds to each block, asked as the sampler asks."""
    net = net.copy().set_cond_hint(hint, 0.7)
    net.pre_run(_model().model, lambda percent: 1.0 - percent)
    found: dict[str, Any] = net.get_control(tiny.noise((2, 4, 8, 8), 5), torch.tensor([0.5, 0.5]), {}, 2, {})
    net.cleanup()
    return found


def scenario_a_t2i_adapter() -> None:
    """Fused, and never captured: its weights come and go with each sampling."""
    kinds = comfy.t2i_adapter.adapter
    for model in (kinds.Adapter(cin=192, channels=[32, 64, 64, 64], nums_rb=2, ksize=1, sk=True, use_conv=False, xl=False),
                  kinds.Adapter_light(cin=192, channels=[32, 64, 64, 64], nums_rb=2)):  # fmt: skip
        model.load_state_dict(weights_for(model))
        plain = comfy.controlnet.T2IAdapter(model, 3, 8, "nearest-exact")
        fast, hint = fast_compile.apply_controlnet(plain), tiny.noise((1, 3, 64, 64), 77)
        assert isinstance(fast, comfy.controlnet.T2IAdapter) and plain.t2i_model is model
        expected = _controls(plain, hint)
        with Capturing() as graphs:
            for _ in range(3):
                got = _controls(fast, hint)
                for key, theirs in expected.items():
                    for mine, other in zip(got[key], theirs, strict=True):
                        assert (mine is None) == (other is None)
                        if mine is not None:
                            assert_close(mine, other)
        (report,) = reports(model).values()
        assert report.name == f"T2I-Adapter ({type(model).__name__})" and report.calls == {"traced": 1, "fused": 2}, (
            report.calls
        )
        assert graphs.captures == 0 and "at each sampling" in report.signatures[0].not_captured_because
        again = _controls(plain, hint)
        assert all(
            torch.equal(a, b) for key in again for a, b in zip(again[key], expected[key], strict=True) if a is not None
        )


def _control_lora(model: Any) -> Any:
    have = model.model.diffusion_model.state_dict()
    return comfy.controlnet.ControlLora({name: value for name, value in tiny.control_net().items() if name not in have})


def scenario_a_control_lora_runs_as_it_was() -> None:
    model = _model()
    plain = _control_lora(model)
    expected = _sampled(model, _hinted(plain))
    assert_differs(expected, sample(model))
    fast = fast_compile.apply_controlnet(plain)
    assert isinstance(fast, comfy.controlnet.ControlLora) and type(plain) is comfy.controlnet.ControlLora
    assert torch.equal(_sampled(model, _hinted(fast)), expected)
    (module,) = [m for m in fast_compile.report().modules if m.name == "ControlNet (ControlLora)"]
    assert module.calls == {"eager": 2} and all("anew for each sampling" in reason for reason in module.reasons)
    chained = _hinted(fast).set_previous_controlnet(_hinted(fast_compile.apply_controlnet(control_net())))
    assert_close(
        _sampled(model, chained), _sampled(model, _hinted(plain).set_previous_controlnet(_hinted(control_net())))
    )


def scenario_a_control_net_of_another_pack() -> None:
    class Other(comfy.controlnet.ControlBase):  # type: ignore[misc]
        def get_control(self, x_noisy: torch.Tensor, *args: Any) -> dict[str, list[torch.Tensor | None]]:
            shape = (x_noisy.shape[0], 320, x_noisy.shape[2] // 2, x_noisy.shape[3] // 2)
            return {"output": [None, tiny.noise(shape, 5, 0.5)], "middle": [], "input": []}

        def copy(self) -> Any:
            made = Other()
            self.copy_to(made)
            return made

    model = _model()
    expected = _sampled(model, _hinted(Other()))
    assert_differs(expected, sample(model))
    fast = fast_compile.apply_controlnet(Other())
    assert torch.equal(_sampled(model, _hinted(fast)), expected)
    (module,) = [m for m in fast_compile.report().modules if m.name == "ControlNet (Other)"]
    assert module.calls == {"eager": 2} and any("not understood" in reason for reason in module.reasons)


def scenario_the_incoming_control_net_stays_as_it_was() -> None:
    model, net = _model(), control_net()
    expected = _sampled(model, _hinted(net))
    inner, patcher, keys = net.control_model, net.control_model_wrapped, list(net.control_model.state_dict())
    callbacks = copy.deepcopy(patcher.callbacks)
    fast = fast_compile.apply_controlnet(net)
    for _ in range(2):
        _sampled(model, _hinted(fast))
        assert torch.equal(_sampled(model, _hinted(net)), expected)
    assert net.control_model is inner and net.control_model_wrapped is patcher and patcher.callbacks == callbacks
    assert list(inner.state_dict()) == keys and "forward" not in inner.__dict__ and not inner._forward_pre_hooks
    assert fast.control_model_wrapped.model is inner and fast.copy().control_model is fast.control_model
    assert isinstance(fast.control_model, type(inner)) and fast.control_model.dtype == inner.dtype


def scenario_the_node() -> None:
    apply, model, net = _node(), _model(), control_net()
    assert apply(net, enabled=False).result[0] is net
    expected = _sampled(model, _hinted(net))
    fast = apply(net).result[0]
    assert_close(_sampled(model, _hinted(fast)), expected)
    again = apply(fast, cuda_graphs=False).result[0]
    assert_close(_sampled(model, _hinted(again)), expected)
    assert reports(net.control_model)["ControlNet"].settings["cuda_graphs"] is False
    assert_refused(lambda: apply(None), "control_net:")
    assert_refused(lambda: apply(object()), "control_net:")
    assert_refused(lambda: apply(net, settings="fast"), "settings:")


def scenario_an_error_surfaces() -> None:
    model, net = _model(), control_net()
    fast, seen = fast_compile.apply_controlnet(net), []
    _sampled(model, _hinted(fast))
    for one in (net, fast, fast):
        control = one.copy().set_cond_hint(tiny.noise((1, 5, 64, 64), 7))
        try:
            _sampled(model, control)
        except Exception as error:
            seen.append((type(error), str(error)))
    assert len(seen) == 3 and len(set(seen)) == 1, seen
    _sampled(model, _hinted(fast))
    before = part_calls(net.control_model)
    _sampled(model, _hinted(fast))
    assert_parts_fused(net.control_model, before)


def scenario_nothing_is_left_when_it_goes() -> None:
    """Without the garbage collector."""
    model = load("sd15")
    sample(model)
    gc.collect()
    gc.disable()
    try:
        for last in ("fast", "plain", "lora"):
            net = control_net() if last != "lora" else _control_lora(model)
            fast = fast_compile.apply_controlnet(net)
            _sampled(model, _hinted(fast)), _sampled(model, _hinted(fast))
            if last == "plain":
                _sampled(model, _hinted(net))
            alive = weakref.ref(net.control_model) if last != "lora" else weakref.ref(net), weakref.ref(fast)
            del net, fast
            management.unload_all_models()
            assert [ref() for ref in alive] == [None, None], f"it is still there ({last} last)"
            assert fast_compile.states() == [], [state.engine.report.name for state in fast_compile.states()]
    finally:
        gc.enable()


def scenario_graphs() -> None:
    """Replayed from the second step on, dropped when the host unloads, and captured again."""
    with Capturing() as graphs:
        model, net = load("sd15"), control_net()
        expected = _sampled(model, _hinted(net), steps=3)
        fast = fast_compile.apply_controlnet(net)
        quick = _sampled(model, _hinted(fast), steps=3)
        assert_close(quick, expected)
        report = reports(net.control_model)["ControlNet"]
        assert report.calls == {"traced": 1, "replayed": 2} and report.graph_bytes == graphs.bytes > 0
        management.unload_all_models()
        assert graphs.bytes == 0
        assert torch.equal(_sampled(model, _hinted(fast), steps=3), quick)
        assert graphs.captures == 2 and report.calls["replayed"] == 5
        fast_model = fast_compile.apply(model)
        _sampled(fast_model, _hinted(fast), steps=3)
        assert_close(_sampled(fast_model, _hinted(fast), steps=3), expected)
        _sampled(model, _hinted(net), steps=3)
        assert report.graph_bytes == 0
        assert torch.equal(_sampled(model, _hinted(fast), steps=3), quick)


def scenario_unloaded_and_loaded_again() -> None:
    """``unload_all_models`` and back between two samplings, with the plain one in between."""
    model, net = _model(), control_net()
    fast, expected = fast_compile.apply_controlnet(net), _sampled(_model(), _hinted(control_net()))
    quick = _sampled(model, _hinted(fast))
    for _ in range(2):
        management.unload_all_models()
        assert torch.equal(_sampled(model, _hinted(fast)), quick)
        assert torch.equal(_sampled(model, _hinted(net)), expected)
