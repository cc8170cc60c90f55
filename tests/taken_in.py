"""A host of functions that are recorded with a model's own code, as ComfyUI is one, without ComfyUI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from sfast_core import CompileConfig
from sfast_core.engine import Engine
from sfast_core.hosts.hook import HookedCall
from sfast_core.hosts.live import LiveCalls
from sfast_core.hosts.options import Steering

Make = Callable[[], Callable[[int], dict[str, Any]]]


class Block(nn.Module):
    """Attention that functions among the options may change or replace."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        for patch in options.get("patches", {}).get("attn", ()):
            q, k, v = patch(q, k, v, options)
        replace = options.get("patches_replace", {}).get("attn", {}).get(options["block"])
        return x + self.out(F.scaled_dot_product_attention(q, k, v) if replace is None else replace(q, k, v, options))


class Net(nn.Module):
    """Two blocks, and pictures joined behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.join = nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor, transformer_options: dict[str, Any]) -> torch.Tensor:
        options, skips = dict(transformer_options), []
        for index, block in enumerate(self.blocks):
            options["block"] = index
            replace = options.get("patches_replace", {}).get("dit", {})

            def own(args: dict[str, Any], block: Any = block) -> dict[str, Any]:
                return {"x": block(args["x"], args["options"])}

            args = {"x": x, "options": options}
            x = (replace[index](args, {"original_block": own}) if index in replace else own(args))["x"]
            skips.append(x)
        h = x.transpose(1, 2).reshape(x.shape[0], 8, 2, -1)[:, :4]
        skip = skips[0].transpose(1, 2).reshape(x.shape[0], 8, 2, -1)[:, :4]
        for patch in options.get("patches", {}).get("output", ()):
            h, skip = patch(h, skip, options)
        return self.join(torch.cat([h, skip], dim=1))


class Host:
    """Calls a model with options, as a sampler does.

    Args:
        net: makes the model.
    """

    def __init__(self, net: Callable[[], nn.Module] = Net) -> None:
        torch.manual_seed(0)
        self.net = net().eval()
        self.engine = Engine("Net", CompileConfig(allow_cpu=True))
        self._live, self._forward = LiveCalls(self.engine), self.net.forward

    def __call__(self, x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        given = {"transformer_options": options}

        def compute(traced: Callable[..., Any], call: Steering) -> Any:
            return self.engine.call(
                self.net, traced, call.args, call.kwargs, lambda: self._forward(x, **given), call.around
            )

        with torch.inference_mode():
            result: torch.Tensor = self._live(HookedCall(self.net, self._forward, None, (x,), given), compute)
            return result

    def check(
        self, make: Make, calls: int = 4, options: Callable[[int], dict[str, Any]] = lambda step: {}, tokens: int = 4
    ) -> dict[str, int]:
        """Calls with what two makes of ``make`` give for each step, one through the engine: as the model itself.

        Returns the calls by path.
        """
        mine, theirs = make(), make()
        before = self.engine.report.calls.copy()
        for step in range(calls):
            x, common = torch.randn(2, tokens, 8), {"cond_or_uncond": [0, 1], "sigmas": torch.full((2,), 20.0 - step)}
            state = torch.get_rng_state()
            result = self(x.clone(), {**common, **options(step), **mine(step)})
            torch.set_rng_state(state)
            with torch.inference_mode():
                expected = self._forward(x, {**common, **options(step), **theirs(step)})
            torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
        return dict(self.engine.report.calls - before)

    @property
    def last(self) -> tuple[int, int]:
        """Of the last signature, how many kinds of functions are recorded with the model,
        and how many calls run live.
        """
        signature = self.engine.report.signatures[-1]
        return len(signature.recorded_in), len(signature.live)
