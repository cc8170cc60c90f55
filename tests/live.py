"""A host of functions that run live in a module's forward, as ComfyUI is one, without ComfyUI."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig
from sfast_core.capture import Surroundings
from sfast_core.capture.live import Traced, again, outline
from sfast_core.engine import Engine
from sfast_core.hosts.options import Steering
from tests.capturing import pretend_graphs

FUNCTIONS = ("before", "between", "replace", "after")


class Block(nn.Module):
    """A layer with a residual."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        scale = 1.0
        for function in options.get("inside", []):
            x = function(x, options)
        return x + self.down(nn.functional.silu(self.up(self.norm(x)))) * scale


class Net(nn.Module):
    """Blocks, between which functions among the options run: a list of them each, and one that may take a block's
    place.
    """

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.out = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        options = dict(options)
        skips = []
        for function in options.get("before", []):
            x = function(x, options)
        for index, block in enumerate(self.blocks):
            options["block"] = index
            replace = options.get("replace", {})
            if index in replace:

                def wrap(args: dict[str, Any], block: Any = block) -> dict[str, Any]:
                    return {"x": block(args["x"], args["options"])}

                x = replace[index]({"x": x, "options": options}, {"original_block": wrap})["x"]
            else:
                x = block(x, options)
            skips.append(x)
            for function in options.get("between", []):
                x, skips[-1] = function(x, skips[-1], options)
        for skip in skips:
            x = x + 0.5 * skip
        for function in options.get("after", []):
            x = function(x, options)
        return self.out(x)


class Host:
    """Calls a module through an engine, with options that hold functions.

    Args:
        net: the module.
        config: of the engine.
    """

    def __init__(self, net: nn.Module | None = None, **config: Any) -> None:
        torch.manual_seed(0)
        self.net = (net or Net()).eval()
        self.engine = Engine("Net", CompileConfig(allow_cpu=True, **config))
        self.engine.interruptions = (Interrupted,)

    def __call__(self, x: torch.Tensor, **options: Any) -> torch.Tensor:
        around = Surroundings(options, self.net)
        key = {name: outline(value) for name, value in options.items() if _has_functions(value)}

        traced = Traced(around)
        made = {
            name: traced.table(value, (name,)) if _has_functions(value) else traced.unread((name,))
            for name, value in options.items()
        }
        around.unread = frozenset(name for name, value in options.items() if not _has_functions(value))
        around.finish = lambda: self.net(
            x, options={name: again(value, (name,), around) for name, value in options.items()}
        )
        # no code of a test's runs for it
        steering = Steering((x,), {"options": key}, "options", functools.partial(dict, made), around)
        forward = steering.completed(functools.partial(type(self.net).forward, self.net))
        with torch.inference_mode():
            return self.engine.call(self.net, forward, (x,), {"options": key}, lambda: self.net(x, options), around)

    def eager(self, x: torch.Tensor, **options: Any) -> torch.Tensor:
        """What the module itself gives."""
        with torch.inference_mode():
            return self.net(x, options)

    def check(self, make: Callable[[], dict[str, Any]], calls: int = 4) -> None:
        """Calls with options made anew, the same for both, give what the module itself gives, with other inputs at
        each.
        """
        mine, theirs = make(), make()
        for step in range(calls):
            x = torch.randn(2, 5, 8)
            state = torch.get_rng_state()
            result = self(x, step=step, sigma=torch.full((), float(step)), **mine)
            torch.set_rng_state(state)
            expected = self.eager(x, step=step, sigma=torch.full((), float(step)), **theirs)
            torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)

    @property
    def calls(self) -> dict[str, int]:
        """By path."""
        return dict(self.engine.report.calls)


class Interrupted(Exception):
    """The user has cancelled."""


def _has_functions(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_has_functions, value))
    if isinstance(value, dict):
        return any(map(_has_functions, value.values()))
    return callable(value)


def fused_and_captured() -> Any:
    """A fixture: a host on a CPU that captures nothing, and on one that seems to."""

    @pytest.fixture(params=[False, True], ids=["fused", "captured"])
    def host(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
        if request.param:
            pretend_graphs(monkeypatch)
        yield Host()

    return host


def path(host: Host) -> str:
    """How calls run that have a trace."""
    return "fused" if host.engine.graphs is None else "replayed"
