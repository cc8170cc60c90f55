"""The accelerator with a webui made of fakes: what is fused, what is not and why, and what is left afterwards."""

from __future__ import annotations

import gc
import sys
import weakref
from types import ModuleType
from typing import Any

import pytest
import torch

from sfast_core import CompileConfig
from sfast_core.hosts.webui.accelerator import Accelerator
from sfast_core.hosts.webui.room import DECODER_BYTES
from sfast_core.runtime.graphs import DeviceGraphs
from tests.fakes import FakeBackend
from tests.hosts.webui.fakes import Network, Unet, Webui, a1111_model, forge_model, model, webui

__all__ = ["model", "webui"]
pytestmark = pytest.mark.usefixtures("no_gradients")
CONFIG = CompileConfig(allow_cpu=True)


def _step(model: Any, batch: int = 2) -> torch.Tensor:
    x, context = (
        torch.arange(batch * 64.0).reshape(batch, 4, 4, 4).sin(),
        torch.arange(batch * 18.0).reshape(batch, 3, 6).cos(),
    )
    if hasattr(model, "forge_objects"):
        return model.forge_objects.unet.sample(x, context)
    result: torch.Tensor = model.model.diffusion_model(x, torch.ones(batch), context=context)
    return result


def _calls(accelerator: Accelerator) -> dict[str, int]:
    (module,) = accelerator.report().modules
    return dict(module.calls)


def _reason(accelerator: Accelerator) -> str:
    (module,) = accelerator.report().modules
    return str(next(reversed(module.reasons)))


def _unet(model: Any) -> Unet:
    found = model.forge_objects.unet.model if hasattr(model, "forge_objects") else model.model
    assert isinstance(found.diffusion_model, Unet)
    return found.diffusion_model


def test_a_generation(model: Any) -> None:
    """Same results; the second sampling makes no new trace; nothing stays on the module but its state."""
    accelerator, unet = Accelerator(), _unet(model)
    before, expected = dict(vars(unet)), _step(model)
    for _ in range(2):
        accelerator.begin(True)
        accelerator.attach(model, CONFIG)
        accelerator.attach(model, CONFIG)
        for _ in range(2):
            torch.testing.assert_close(_step(model), expected)
        accelerator.end()
        assert {name: value for name, value in vars(unet).items() if name != "_fast_compile_state"} == before
    assert _calls(accelerator) == {"traced": 1, "fused": 3}
    accelerator.begin(False)
    assert all(weight.is_contiguous() for weight in unet.parameters())


def test_an_exception_leaves_nothing_behind(model: Any) -> None:
    """The next generation takes the forward off before anything runs."""
    accelerator, unet = Accelerator(), _unet(model)
    accelerator.begin(True)
    accelerator.attach(model, CONFIG)
    with pytest.raises(RuntimeError):
        # the host's own error, as the host gives it
        _unet(model)(torch.zeros(1, 4, 4, 4), torch.ones(1), context=torch.zeros(1, 3, 7))
    accelerator.begin(False)
    assert "forward" not in vars(unet)


def test_another_config(model: Any) -> None:
    """A state of its own; the one before is closed."""
    accelerator = Accelerator()
    expected = _step(model)
    for config in (CONFIG, CompileConfig(allow_cpu=True, adopt_weights=False), CONFIG):
        accelerator.begin(True)
        accelerator.attach(model, config)
        torch.testing.assert_close(_step(model), expected)
        accelerator.end()
        assert _calls(accelerator) == {"traced": 1}


def test_loras(webui: Webui) -> None:
    """Applied before the fused program runs, however they were changed in between."""
    model, accelerator = a1111_model(Unet().eval()), Accelerator()
    plain = _step(model)

    def fast(*networks: Network) -> torch.Tensor:
        webui.networks.loaded_networks[:] = networks
        accelerator.begin(True)
        accelerator.attach(model, CONFIG)
        result = _step(model)
        accelerator.end()
        return result

    def slow(*networks: Network) -> torch.Tensor:
        webui.networks.loaded_networks[:] = networks
        accelerator.begin(False)
        for layer in (_unet(model).convolution, _unet(model).norm, _unet(model).context, _unet(model).out):
            webui.networks.network_apply_weights(layer)
        return _step(model)

    strong, weak = Network("a", unet_multiplier=1.0), Network("a", unet_multiplier=0.25)
    torch.testing.assert_close(fast(), plain)
    assert (fast(strong) - plain).abs().max() > 1e-2
    torch.testing.assert_close(fast(strong), slow(strong))
    torch.testing.assert_close(fast(), plain)  # the toggle was off in between, and a LoRA went into the weights
    torch.testing.assert_close(fast(weak), slow(weak))
    torch.testing.assert_close(fast(strong), slow(strong))
    torch.testing.assert_close(fast(), plain)
    assert "eager" not in _calls(accelerator) and _calls(accelerator)["traced"] == 1


def test_loras_change_within_a_sampling(webui: Webui) -> None:
    """The layers are asked again only when the prompt's LoRAs changed."""
    model, accelerator = a1111_model(Unet().eval()), Accelerator()
    accelerator.attach(model, CONFIG)
    plain = _step(model)
    webui.networks.loaded_networks[:] = [Network("a")]
    assert (_step(model) - plain).abs().max() > 1e-2
    count = len(webui.applied)
    _step(model)
    assert count == len(webui.applied) == 4
    webui.networks.loaded_networks.clear()
    torch.testing.assert_close(_step(model), plain)


def test_a_strength_that_is_another_at_each_step(webui: Webui) -> None:
    """As loractl: the extension makes it a property of the LoRA's class."""

    class ByStep(Network):
        step = 0

        @property
        def unet_multiplier(self) -> float:  # type: ignore[override]
            return 0.25 * ByStep.step

        @unet_multiplier.setter
        def unet_multiplier(self, value: float) -> None: ...

    model, twin = a1111_model(Unet().eval()), a1111_model(Unet().eval())
    _unet(twin).load_state_dict(_unet(model).state_dict())
    accelerator = Accelerator()
    accelerator.attach(model, CONFIG)
    plain = _step(model)
    webui.networks.loaded_networks[:] = [ByStep("a")]
    for ByStep.step in (0, 1, 1, 2):
        result = _step(model)
        for layer in (_unet(twin).convolution, _unet(twin).norm, _unet(twin).context, _unet(twin).out):
            webui.networks.network_apply_weights(layer)
        torch.testing.assert_close(result, _step(twin))
    assert (result - plain).abs().max() > 1e-2 and _calls(accelerator) == {"traced": 1, "fused": 4}


def test_the_old_method_for_loras(webui: Webui) -> None:
    """It computes them in each layer's forward."""
    model, accelerator = a1111_model(Unet().eval()), Accelerator()
    webui.shared.opts.lora_functional = True
    accelerator.attach(model, CONFIG)
    _step(model)
    assert _calls(accelerator) == {"traced": 1} and not webui.applied
    webui.networks.loaded_networks.append(Network("a"))
    _step(model)
    assert "old method" in _reason(accelerator) and not webui.applied


def test_tiling(model: Any) -> None:
    """Each convolution's padding changes; the old trace isn't used."""
    accelerator, unet = Accelerator(), _unet(model)
    plain = _step(model)
    for padding in ("zeros", "circular", "zeros"):
        for layer in (unet.convolution, unet.out):
            layer.padding_mode = padding
        expected = _step(model)
        accelerator.begin(True)
        accelerator.attach(model, CONFIG)
        torch.testing.assert_close(_step(model), expected)
        torch.testing.assert_close(_step(model), expected)
        accelerator.end()
        assert ((expected - plain).abs().max() > 1e-3) == (padding == "circular")
        accelerator.begin(False)
        if hasattr(model, "forge_objects"):
            model.forge_objects.unet.model_options.pop("model_function_wrapper")  # Forge forgets the clone


def test_class_forwards(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Extensions replace the forwards of classes too."""
    accelerator = Accelerator()
    accelerator.attach(model, CONFIG)
    plain = _step(model)
    monkeypatch.setattr(Unet, "forward", lambda self, x, timesteps, context, **kwargs: self.out(self.convolution(x)))
    accelerator.attach(model, CONFIG)
    assert (_step(model) - plain).abs().max() > 1e-3
    assert _calls(accelerator)["traced"] == 2 and "eager" not in _calls(accelerator)


@pytest.mark.parametrize(
    ("get_in_the_way", "words"),
    [
        (lambda webui, unet: setattr(webui.sd_unet, "current_unet", object()), "another UNet is selected"),
        (lambda webui, unet: setattr(webui.shared.cmd_opts, "lowvram", True), "--lowvram"),
        (lambda webui, unet: setattr(unet, "forward", lambda x, *args, **kwargs: x * 0.5), "replaces its forward"),
    ],
)
def test_named_fallbacks(model: Any, webui: Webui, get_in_the_way: Any, words: str) -> None:
    """The picture of before, and why."""
    accelerator = Accelerator()
    get_in_the_way(webui, _unet(model))
    expected = _step(model)
    accelerator.attach(model, CONFIG)
    assert torch.equal(_step(model), expected)
    assert _calls(accelerator) == {"eager": 1} and words in _reason(accelerator)


def test_forge_online_loras(webui: Webui) -> None:
    """Forge may merge LoRAs at each call."""
    model, accelerator = forge_model(Unet().eval()), Accelerator()
    model.forge_objects.unet.online = True
    accelerator.attach(model, CONFIG)
    _step(model)
    assert "'online' LoRAs" in _reason(accelerator)


def test_forge_wrappers_of_others(webui: Webui) -> None:
    """There is one slot: theirs is called by ours, and ours isn't put around ours."""
    model, accelerator = forge_model(Unet().eval()), Accelerator()
    plain = _step(model)

    def halved(apply_model: Any, parameters: dict[str, Any]) -> Any:
        return apply_model(parameters["input"], parameters["timestep"], **parameters["c"]) * 0.5

    original = model.forge_objects.unet
    original.set_model_unet_function_wrapper(halved)
    for _ in range(3):
        accelerator.attach(model, CONFIG)
        torch.testing.assert_close(_step(model), plain * 0.5)
    assert original.model_options["model_function_wrapper"] is halved and model.forge_objects.unet is not original
    assert model.forge_objects.unet.model_options["model_function_wrapper"].inner is halved
    assert _calls(accelerator) == {"traced": 1, "fused": 2}


def test_other_weights(model: Any) -> None:
    """A checkpoint is loaded into the same module: everything is forgotten, also in the middle of a sampling."""
    accelerator, unet = Accelerator(), _unet(model)
    accelerator.attach(model, CONFIG)
    _step(model)
    unet.load_state_dict(Unet().state_dict())
    accelerator.drop()
    second = _step(model)
    accelerator.end()
    assert _calls(accelerator)["traced"] == 2
    accelerator.begin(False)
    if hasattr(model, "forge_objects"):
        model.forge_objects.unet.model_options.pop("model_function_wrapper")
    torch.testing.assert_close(_step(model), second)


def test_a_model_that_is_gone_is_freed(webui: Webui) -> None:
    """The state doesn't hold it."""
    accelerator, unet = Accelerator(), Unet().eval()
    model, gone = a1111_model(unet), weakref.ref(unet)
    accelerator.attach(model, CONFIG)
    _step(model)
    accelerator.end()
    del model, unet
    gc.collect()
    assert gone() is None and accelerator.report().modules == []


def test_a_model_that_its_layers_know_is_freed(webui: Webui) -> None:
    """Another extension's function in a layer may know the whole model, and the state compares that function at each
    call.
    """
    accelerator, unet = Accelerator(), Unet().eval()
    layer = next(module for module in unet.modules() if isinstance(module, torch.nn.Linear))
    before, model, gone = layer.forward, a1111_model(unet), weakref.ref(unet)
    layer.forward = lambda x, before=before, model=model: before(x)
    accelerator.attach(model, CONFIG)
    _step(model)
    accelerator.end()
    assert accelerator.report().modules[0].calls["traced"] == 1
    del model, unet, layer, before
    gc.collect()
    assert gone() is None and accelerator.report().modules == []


def test_a_webui_that_is_another(webui: Webui, caplog: pytest.LogCaptureFixture) -> None:
    """What isn't as expected makes a line in the log and no exception."""
    Accelerator().attach(object(), CONFIG)
    assert "this picture is made as before" in caplog.text


def test_medvram_has_no_graphs(webui: Webui) -> None:
    """The UNet makes room on the GPU after each sampling; graphs would keep it."""
    model, accelerator = a1111_model(Unet().eval()), Accelerator()
    model.lowvram = True
    accelerator.attach(model, CONFIG)
    (module,) = accelerator.report().modules
    assert module.settings["cuda_graphs"] is False and CONFIG.cuda_graphs


@pytest.mark.parametrize(
    ("latents", "dtype", "evicted"),
    [((1, 4, 8, 8), None, 0), ((3, 4, 16, 8), None, 1), ((1, 4, 8, 8), torch.float32, 1)],
)
def test_graphs_make_room_for_decoding(
    webui: Webui, monkeypatch: pytest.MonkeyPatch, latents: tuple[int, ...], dtype: torch.dtype | None, evicted: int
) -> None:
    """The webui decodes picture by picture. What is evicted is captured again, without a new trace."""
    graphs = DeviceGraphs(FakeBackend(free=100 * DECODER_BYTES, cost=1000))
    monkeypatch.setattr("sfast_core.engine.device_graphs", lambda device: graphs)
    model, accelerator = a1111_model(Unet().eval()), Accelerator()
    accelerator.attach(model, CONFIG)
    expected = [_step(model) for _ in range(3)][0]
    assert graphs.captures == 1 and graphs.bytes
    accelerator.before_decoding(torch.empty(latents), dtype)
    assert graphs.evictions == evicted and bool(graphs.bytes) is not bool(evicted)
    torch.testing.assert_close(_step(model), expected)
    assert graphs.captures == 1 + evicted and _calls(accelerator)["traced"] == 1
    already = torch.empty(9, 3, 640, 640)
    already.already_decoded = True  # type: ignore[attr-defined]
    for pictures in (already, [torch.empty(3, 640, 640)], None):
        accelerator.before_decoding(pictures)
    assert graphs.evictions == evicted


def test_a_refiner(webui: Webui) -> None:
    """A checkpoint that is loaded in the middle of a sampling is hooked, the one before is not any more; one in between
    is left alone.
    """
    first, second, accelerator = a1111_model(Unet().eval()), a1111_model(Unet().eval()), Accelerator()
    accelerator.loaded(first)
    assert "forward" not in vars(_unet(first))
    accelerator.attach(first, CONFIG)
    _step(first)
    expected = _step(second)
    accelerator.loaded(second)
    torch.testing.assert_close(_step(second), expected)
    assert "forward" not in vars(_unet(first)) and "forward" in vars(_unet(second))
    accelerator.end()
    assert "forward" not in vars(_unet(second))


def test_a_report_in_the_making(webui: Webui) -> None:
    """Reading is tried again where a picture adds a count meanwhile."""
    answers: list[Exception | None] = [RuntimeError("dictionary changed size during iteration"), None]

    def form(report: Any) -> str:
        if (error := answers.pop(0)) is not None:
            raise error
        return "read"

    assert Accelerator().read(form) == "read"


def test_a_report_names_the_webuis_version(webui: Webui, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "webui" not in Accelerator().report().versions
    launcher: Any = ModuleType("modules.launch_utils")
    monkeypatch.setitem(sys.modules, "modules.launch_utils", launcher)
    launcher.git_tag = lambda: "v1.10.1"
    assert Accelerator().report().versions["webui"] == "v1.10.1"
    launcher.git_tag = lambda: 1 / 0
    assert "webui" not in Accelerator().report().versions
