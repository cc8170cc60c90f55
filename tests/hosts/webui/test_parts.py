"""VAE and text encoders of a webui made of fakes: fused for the length of a generation,
as they were before and after.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from sfast_core import CompileConfig
from sfast_core.hosts.webui.accelerator import Accelerator
from sfast_core.hosts.webui.parts import TEXT_ENCODER, VAE
from tests.hosts.webui.fakes import Network, Unet, Webui, a1111_model, model, webui

__all__ = ["model", "webui"]
pytestmark = pytest.mark.usefixtures("no_gradients")
pytest.importorskip("transformers")
CONFIG = CompileConfig(allow_cpu=True)
BOTH = frozenset((VAE, TEXT_ENCODER))
ENCODERS = "Text encoder embedders.0 (Module)", "Text encoder embedders.1 (OpenClip)"


def _vae(model: Any) -> Any:
    return model.forge_objects.vae.first_stage_model if hasattr(model, "forge_objects") else model.first_stage_model


def _text(model: Any) -> Any:
    return model.forge_objects.clip.cond_stage_model if hasattr(model, "forge_objects") else model.cond_stage_model


def _decoded(model: Any, side: int = 4) -> torch.Tensor:
    result: torch.Tensor = _vae(model).decode(torch.arange(4.0 * side * side).reshape(1, 4, side, side).sin())
    return result


def _encoded(model: Any, tokens: int = 5) -> torch.Tensor:
    result: torch.Tensor = _text(model).encode(torch.arange(tokens * 12.0).reshape(tokens, 2, 6).cos())
    return result


def _calls(accelerator: Accelerator) -> dict[str, dict[str, int]]:
    return {module.name: dict(module.calls) for module in accelerator.report().modules if module.calls}


def _methods(model: Any) -> list[str]:
    """What is on the instances of the model's parts and isn't a module's."""
    names = ("forward", "text_transformer_forward", "last_z_shape")
    return [
        name
        for part in (_vae(model), _text(model))
        for module in part.modules()
        for name in vars(module)
        if name in names
    ]


def test_a_generation(model: Any) -> None:
    """The same values, the same classes of results; nothing stays on the modules, and with the toggle off the weights
    lie as they lay.
    """
    accelerator = Accelerator()
    expected, before = (_decoded(model), _encoded(model)), _methods(model)
    for _ in range(2):
        accelerator.begin(True)
        accelerator.attach_parts(model, CONFIG, BOTH)
        accelerator.attach_parts(model, CONFIG, BOTH)
        torch.testing.assert_close((_decoded(model), _encoded(model)), expected)
        accelerator.end()
        assert _methods(model) == before
    fused = {"traced": 1, "fused": 1}
    assert _calls(accelerator) == {"VAE decoder (Vae)": fused, ENCODERS[0]: fused, ENCODERS[1]: fused}
    accelerator.begin(False)
    assert all(weight.is_contiguous() for part in (_vae(model), _text(model)) for weight in part.parameters())
    assert torch.equal(_decoded(model), expected[0]) and torch.equal(_encoded(model), expected[1])


def test_one_of_the_two(model: Any) -> None:
    """The other runs as before, and gets its weights back if it was compiled."""
    accelerator = Accelerator()
    _decoded(model), _encoded(model)
    for wanted, names in (
        (BOTH, {"VAE decoder (Vae)", *ENCODERS}),
        (frozenset((VAE,)), {"VAE decoder (Vae)"}),
        (frozenset((TEXT_ENCODER,)), {*ENCODERS}),
    ):
        before = _calls(accelerator)
        accelerator.begin(True)
        accelerator.attach_parts(model, CONFIG, wanted)
        _decoded(model), _encoded(model)
        after = _calls(accelerator)
        assert {name for name in after if after[name] != before.get(name)} == names
        if VAE not in wanted:
            assert all(weight.is_contiguous() for weight in _vae(model).parameters())


def test_pictures_of_other_sizes(model: Any) -> None:
    """What the decoder notes down about them is no reason to trace again."""
    accelerator = Accelerator()
    accelerator.attach_parts(model, CONFIG, BOTH)
    for side in (4, 6, 4, 6, 4):
        _decoded(model, side)
    assert _calls(accelerator) == {"VAE decoder (Vae)": {"traced": 2, "fused": 3}}


def test_sizes_that_never_come_again(model: Any) -> None:
    """Tiles of every size aren't traced one by one."""
    accelerator = Accelerator()
    accelerator.attach_parts(model, CONFIG, BOTH)
    for side in range(3, 10):
        _decoded(model, side)
    (decoder,) = (module for module in accelerator.report().modules if module.calls)
    assert decoder.calls == {"traced": 4, "eager": 3} and "keep changing" in next(iter(decoder.reasons))


def test_loras(webui: Webui) -> None:
    """Text encoders get the prompt's LoRAs before their program runs."""
    model, accelerator = a1111_model(Unet().eval()), Accelerator()
    layers = _text(model).embedders[0].wrapped.transformer.text_model.encoder
    accelerator.begin(True)
    accelerator.attach_parts(model, CONFIG, frozenset((TEXT_ENCODER,)))
    plain = _encoded(model)
    webui.networks.loaded_networks[:] = [Network("a")]
    loud = _encoded(model)
    assert (loud - plain).abs().max() > 1e-2
    webui.networks.loaded_networks.clear()
    torch.testing.assert_close(_encoded(model), plain)
    webui.networks.loaded_networks[:] = [Network("a")]
    accelerator.begin(False)
    for layer in (layers.fc1, layers.fc2):
        webui.networks.network_apply_weights(layer)
    torch.testing.assert_close(_encoded(model)[..., :6], loud[..., :6])


def test_what_is_left_alone(model: Any) -> None:
    """Other text encoders and VAEs are named; another extension's tiles too."""
    accelerator = Accelerator()
    decoder = _vae(model).decoder
    expected = _decoded(model)
    decoder.forward = lambda z: type(decoder).forward(decoder, z)
    other = _text(model).embedders[0].wrapped.transformer = torch.nn.Linear(6, 6)
    accelerator.attach_parts(model, CONFIG, BOTH)
    assert torch.equal(_decoded(model), expected)
    other(torch.zeros(1, 6))
    reasons = {module.name: list(module.reasons) for module in accelerator.report().modules if module.calls}
    assert "another extension replaces its forward" in reasons["VAE decoder (Vae)"][0]
    assert "no CLIP" in reasons["Text encoder embedders.0 (Linear)"][0]


def test_a_checkpoint_in_the_middle(webui: Webui) -> None:
    """The refiner's, or the one for the hires pass, is hooked in its place; after the generation none is."""
    first, second, accelerator = a1111_model(Unet().eval()), a1111_model(Unet().eval()), Accelerator()
    accelerator.loaded(first)
    assert not _methods(first)
    accelerator.begin(True)
    accelerator.attach_parts(first, CONFIG, BOTH)
    expected = _decoded(second)
    accelerator.loaded(second)
    torch.testing.assert_close(_decoded(second), expected)
    assert "forward" not in _methods(first) and "forward" in _methods(second)
    accelerator.end()
    assert "forward" not in _methods(second)
    accelerator.loaded(first)
    assert not _methods(first)


def test_medvram_has_no_graphs(webui: Webui) -> None:
    """The parts come and go there too, and their weights lie elsewhere each time."""
    model, accelerator = a1111_model(Unet().eval()), Accelerator()
    model.lowvram = True
    accelerator.attach_parts(model, CONFIG, BOTH)
    expected = _decoded(model)
    for parameter in _vae(model).parameters():
        parameter.data = parameter.data.clone()
    torch.testing.assert_close(_decoded(model), expected)
    assert all(module.settings["cuda_graphs"] is False for module in accelerator.report().modules)
    assert _calls(accelerator) == {"VAE decoder (Vae)": {"traced": 1, "fused": 1}}


def test_a_webui_that_is_another(webui: Webui, caplog: pytest.LogCaptureFixture) -> None:
    """A line in the log and no exception."""
    Accelerator().attach_parts(object(), CONFIG, BOTH)
    assert "VAE and text encoders run as before" in caplog.text


def test_another_config(model: Any) -> None:
    """A state of its own."""
    accelerator, expected = Accelerator(), _decoded(model)
    for config in (CONFIG, replace(CONFIG, adopt_weights=False)):
        accelerator.attach_parts(model, config, BOTH)
        torch.testing.assert_close(_decoded(model), expected)
        assert _calls(accelerator) == {"VAE decoder (Vae)": {"traced": 1}}
