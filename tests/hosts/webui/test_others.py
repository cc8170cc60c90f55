"""What other extensions do inside a webui's UNet: it runs as it is, and the rest is fused."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig
from sfast_core.hosts.webui.accelerator import Accelerator
from tests.hosts.webui.fakes import HYPERNETWORKS, Net, Webui, a1111_model, forge_model, webui

__all__ = ["webui"]
CONFIG = CompileConfig(allow_cpu=True)
FAST = {"traced", "fused"}


class Webuis:
    """A model with the toggle on beside one without, which others change in the same way."""

    def __init__(self, kind: Callable[[nn.Module], Any]) -> None:
        torch.manual_seed(0)
        self.mine, self.theirs = Net().eval(), Net().eval()
        self.theirs.load_state_dict(self.mine.state_dict())
        self.models = kind(self.mine), kind(self.theirs)
        self.accelerator = Accelerator()

    @property
    def nets(self) -> tuple[Net, Net]:
        return self.mine, self.theirs

    def options(self, make: Callable[[], dict[str, Any]]) -> None:
        """Give each patcher's clone these."""
        for model in self.models:
            patcher = model.forge_objects.unet.clone()
            patcher.model_options = {"transformer_options": make()}
            model.forge_objects.unet = patcher

    def picture(self, steps: int = 6) -> dict[str, int]:
        """Made with both: the same. How the calls ran that made the one."""
        before = self.calls()
        self.accelerator.begin(True)
        self.accelerator.attach(self.models[0], CONFIG)
        for _ in range(steps):
            x, context = torch.randn(2, 4, 4, 4), torch.randn(2, 3, 6)
            state = random.getstate()
            mine = _step(self.models[0], x, context)
            random.setstate(state)
            torch.testing.assert_close(mine, _step(self.models[1], x, context), rtol=1e-4, atol=1e-5)
        self.accelerator.end()
        return {path: count for path, calls in self.calls().items() if (count := calls - before.get(path, 0))}

    def calls(self) -> dict[str, int]:
        """Of the UNet, by path."""
        modules = self.accelerator.report().modules
        return dict(modules[0].calls) if modules else {}

    def live(self) -> set[str]:
        """What has run between segments."""
        return {
            call
            for module in self.accelerator.report().modules
            for signature in module.signatures
            for call in signature.live
        }


def _step(model: Any, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        if hasattr(model, "forge_objects"):
            return model.forge_objects.unet.sample(x, context)
        result: torch.Tensor = model.model.diffusion_model(x, torch.ones(len(x)), context=context)
        return result


@pytest.fixture
def a1111(webui: Webui) -> Webuis:
    return Webuis(a1111_model)


@pytest.fixture
def forge(webui: Webui) -> Webuis:
    return Webuis(forge_model)


def _counting() -> dict[str, Any]:
    count = [0]

    def patch(h: torch.Tensor, skip: torch.Tensor, options: dict[str, Any]) -> Any:
        count[0] += 1
        return h * (1 + 0.01 * count[0] + 0.1 * float(options["sigmas"][0])), skip

    return {"patches": {"output_block_patch": [patch]}}


FORGE = {
    "a patch that counts": _counting,
    "replaced attention": lambda: {
        "patches_replace": {"attn1": {("input", 1): lambda q, k, v, options: v * len(options["cond_or_uncond"])}}
    },
    "a block modifier": lambda: {"block_modifiers": [lambda h, when, options: h * (1.1 + options["block"][1])]},
    "a wrapper of the last norm": lambda: {"group_norm_wrapper": lambda norm, h, options: norm(h) * 1.5},
}


LIVE = {"a patch that counts"}


@pytest.mark.parametrize("name", FORGE)
def test_functions_in_forges_options(forge: Webuis, name: str) -> None:
    """Recorded with the model where they keep no state, or live between segments; switched off and on again, nothing is
    traced twice.
    """
    assert forge.picture() == {"traced": 1, "fused": 5}
    for turn in range(2):
        forge.options(FORGE[name])
        first = forge.picture()
        assert first.pop("eager", 0) <= 2 * (name in LIVE and not turn) and first.keys() <= FAST, (
            "so many show that a record can't hold what it does"
        )
        assert forge.picture() == {"fused": 6}
        forge.options(dict)
        assert forge.picture() == {"fused": 6}
    assert bool(forge.live()) == (name in LIVE)


def test_options_that_forges_unet_never_looks_up(forge: Webuis) -> None:
    """A ControlNet's, say: another object at each step is no reason for anything."""
    forge.options(
        lambda: {
            "controlnet_conditioning_modifiers": [lambda *args: args],
            "cond_mark": torch.randn(2),
            "own": object(),
        }
    )
    assert forge.picture() == {"traced": 1, "fused": 5}


def _replaced(net: Net, make: Callable[[nn.Module, Any], Any], blocks: tuple[int, ...] = (1,)) -> Callable[[], None]:
    modules: list[Any] = [net.blocks[index].attention for index in blocks]
    for module in modules:
        module.forward = make(module, module.forward)
    return lambda: [vars(module).pop("forward") for module in modules]  # type: ignore[return-value]


def _hook(net: Net) -> Callable[[], None]:
    return net.blocks[1].register_forward_hook(lambda module, args, result: result * 1.3).remove


def _by_regions(net: Net, blocks: tuple[int, ...] = (1,)) -> Callable[[], None]:
    """As Regional Prompter: an object of the extension's counts the calls."""
    own = SimpleNamespace(count=0)

    def make(module: nn.Module, original: Any) -> Any:
        def forward(x: torch.Tensor) -> torch.Tensor:
            own.count += 1
            result: torch.Tensor = original(x) * (1 + 0.01 * own.count)
            return result

        return forward

    return _replaced(net, make, blocks)


def _kept_maps(net: Net) -> Callable[[], None]:
    """As Self Attention Guidance: a map is kept on the module, and in a global."""

    def make(module: nn.Module, original: Any) -> Any:
        def forward(x: torch.Tensor) -> torch.Tensor:
            module.attn_probs = (x @ x.transpose(1, 2)).softmax(-1)
            KEPT[:] = [module.attn_probs]
            return module.attn_probs @ x

        return forward

    return _replaced(net, make)


KEPT: list[Any] = []


def _tiles(net: Net) -> Callable[[], None]:
    """As Hypertile: which tiles is drawn from a generator of its own."""
    tiles = random.Random(1)

    def make(module: nn.Module, original: Any) -> Any:
        def forward(x: torch.Tensor) -> torch.Tensor:
            count = (1, 2, 4)[tiles.randint(0, 2)]
            batch, tokens, width = x.shape
            result: torch.Tensor = original(x.reshape(batch * count, tokens // count, width)).reshape(x.shape)
            return result

        return forward

    return _replaced(net, make)


def _convolutions(net: Net) -> Callable[[], None]:
    """As those that make pictures tile along one axis."""
    layers = [block.convolution for block in net.blocks]

    def make(layer: Any) -> Any:
        def forward(x: torch.Tensor, weight: torch.Tensor, bias: Any) -> torch.Tensor:
            x = nn.functional.pad(x, (1, 1, 0, 0), mode="circular")
            return nn.functional.conv2d(nn.functional.pad(x, (0, 0, 1, 1)), weight, bias)

        return forward

    for layer in layers:
        layer._conv_forward = make(layer)  # type: ignore[method-assign]
    return lambda: [vars(layer).pop("_conv_forward") for layer in layers]  # type: ignore[return-value]


def _merging(net: Net) -> Callable[[], None]:
    """As tomesd: a class made anew for each block at each picture, which asks what a hook on the UNet has noted, and
    looks at a generator.
    """
    info: dict[str, Any] = {"size": None, "generator": None}
    hook = net.register_forward_pre_hook(lambda module, args: info.update(size=args[0].shape[2:]))

    def merging(block_class: Any) -> Any:
        class Merging(block_class):  # type: ignore[misc]
            _parent = block_class

            def forward(self, h: torch.Tensor, transformer_options: Any = None) -> torch.Tensor:
                if self is net.blocks[0]:  # the others have too few tokens
                    if self._info["generator"] is None:
                        self._info["generator"] = torch.Generator().set_state(torch.get_rng_state())
                    elif self._info["generator"].device != h.device:
                        raise ValueError
                result: torch.Tensor = super().forward(h * (1 + 0.001 * self._info["size"][0]), transformer_options)
                return result

        return Merging

    for block in net.blocks:
        block.__class__ = merging(type(block))
        block._info = info

    def undo() -> None:
        hook.remove()
        for block in net.blocks:
            block.__class__ = block._parent  # type: ignore[assignment]

    return undo


def test_token_merging_of_a_class_made_anew_for_each_picture(a1111: Webuis) -> None:
    """The same class in all but identity is no reason to trace again, once it is known which of the blocks run live."""
    assert a1111.picture() == {"traced": 1, "fused": 5}
    for settled in (False, False, True):
        for steps in (16, 6):
            undo = [_merging(net) for net in a1111.nets]
            assert a1111.picture(steps) == {"fused": steps} or not settled
            for each in undo:
                each()
        a1111.picture(16)
        assert a1111.picture() == {"fused": 6}


@pytest.mark.parametrize("put", [_hook, _by_regions, _kept_maps, _tiles, _convolutions])
def test_replaced_forwards_below_the_unet(a1111: Webuis, put: Callable[[Net], Callable[[], None]]) -> None:
    """The module that they are on runs live, the rest is fused; off again it is all fused as before, and on again."""
    assert a1111.picture() == {"traced": 1, "fused": 5}
    for _ in range(2):
        undo = [put(net) for net in a1111.nets]
        a1111.picture(16)
        assert a1111.picture().keys() <= FAST
        for each in undo:
            each()
        a1111.picture(16)
        assert a1111.picture() == {"fused": 6}


def test_the_same_code_in_many_places(a1111: Webuis) -> None:
    """Found in one, it runs live in all: SDXL has 70 attentions."""
    for net in a1111.nets:
        _by_regions(net, (0, 1, 2))
    assert a1111.picture(8) == {"eager": 2, "traced": 1, "fused": 5}


class Motion(nn.Module):
    """A layer between the blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(8, 8, 1)

    def forward(self, h: torch.Tensor, options: Any) -> torch.Tensor:
        return h + self.layer(h)


def test_layers_that_are_put_in_for_a_picture_and_taken_out(a1111: Webuis) -> None:
    """As AnimateDiff's. PyTorch gives the list another table of its layers then, and each picture was traced anew."""
    mine, theirs = Motion(), Motion()
    theirs.load_state_dict(mine.state_dict())
    for turn in range(4):
        for net, layer in zip(a1111.nets, (mine, theirs), strict=True):
            net.blocks.insert(1, layer)
        found = a1111.picture()
        for net in a1111.nets:
            net.blocks.pop(1)
        for each in (found, a1111.picture()):
            assert each == {"fused": 6} if turn > 1 else set(each) <= FAST, turn


def test_a_hypernetwork(a1111: Webuis) -> None:
    """Its layers are no part of the UNet; another strength, another one, none."""

    class Layer(nn.Module):
        multiplier = 1.0

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = x + self.linear(x) * self.multiplier
            return result

    first, second = (SimpleNamespace(layers={8: (Layer().eval(),)}) for _ in range(2))
    try:
        for networks, strength in (
            ([], 1.0),
            ([first], 1.0),
            ([first], 0.3),
            ([second, first], 1.0),
            ([], 1.0),
            ([first], 1.0),
        ):
            HYPERNETWORKS[:] = networks
            for network in networks:
                network.layers[8][0].multiplier = strength
            assert a1111.picture().keys() <= FAST
            assert a1111.picture() == {"fused": 6}
    finally:
        HYPERNETWORKS.clear()


def test_a_forward_of_others_runs_as_it_is_and_the_blocks_fused(a1111: Webuis) -> None:
    """As ControlNet's, which reads values into Python. On, off, on; with a block that still others change."""

    def put(net: Net) -> Callable[[], None]:
        own = SimpleNamespace(steps=0)

        def forward(x: torch.Tensor, timesteps: torch.Tensor, context: torch.Tensor, **kwargs: Any) -> torch.Tensor:
            own.steps += 1
            mark = float(context.abs().mean().cpu().numpy())
            h = net.convolution(x) + net.context(context).mean(1)[:, :, None, None]
            for block in net.blocks:
                h = block(h) * (1 + 0.01 * mark * own.steps)
            return net.out(h)

        net.forward = forward  # type: ignore[assignment, method-assign]
        return lambda: vars(net).pop("forward")

    assert a1111.picture() == {"traced": 1, "fused": 5}
    for _ in range(2):
        undo = [put(net) for net in a1111.nets]
        assert a1111.picture().keys() <= FAST
        assert a1111.picture() == {"fused": 6}
        more = [_by_regions(net) for net in a1111.nets]
        a1111.picture(16)
        assert a1111.picture().keys() <= FAST
        for each in (*more, *undo):
            each()
        assert a1111.picture() == {"fused": 6}
    assert [module.name for module in a1111.accelerator.report().modules] == ["SD1 Net", "SD1 Net, its blocks"]
    a1111.accelerator.begin(False)
    assert all(weight.is_contiguous() for weight in a1111.mine.parameters())
    assert not any("forward" in vars(module) for module in a1111.mine.modules())
