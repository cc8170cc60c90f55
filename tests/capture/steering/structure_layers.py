"""What steers a forward: torch's own functions, layers and their settings."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.capture.steering.structure import (
    CASES,
    Root,
    Steered,
    Thrice,
    case,
    linear,
    own,
    replaced,
    setting,
    thrice,
    times,
)

# -- torch's own functions ---------------------------------------------------------------------------------------------------

BY: dict[str, Callable[[Any], Any]] = {"a function": thrice, "a partial": lambda f: functools.partial(times, f, 3.0), "an object": Thrice}


def attend(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = module.linear(x)[None, None]
    return F.scaled_dot_product_attention(y, y * 2, y)[0, 0]


for word, by in BY.items():
    CASES[f"F.linear is {word}, called by nn.Linear"] = lambda by=by: replaced(F, "linear", by, linear())
    CASES[f"F.silu is {word}, called by the file"] = lambda by=by: replaced(F, "silu", by, own(lambda s, x: F.silu(s.linear(x))))
    CASES[f"F.silu is {word}, called by nn.SiLU"] = lambda by=by: replaced(F, "silu", by, nn.Sequential(linear(), nn.SiLU()))
    CASES[f"F.scaled_dot_product_attention is {word}"] = lambda by=by: replaced(F, "scaled_dot_product_attention", by, own(attend))
    CASES[f"torch.sigmoid is {word}"] = lambda by=by: replaced(torch, "sigmoid", by, own(lambda s, x: torch.sigmoid(s.linear(x))))
    CASES[f"torch.nn.functional.gelu by its whole name is {word}"] = lambda by=by: replaced(F, "gelu", by, own(lambda s, x: torch.nn.functional.gelu(s.linear(x))))
    CASES[f"F.layer_norm is {word}"] = lambda by=by: replaced(F, "layer_norm", by, nn.LayerNorm(8))
    CASES[f"F.group_norm is {word}"] = lambda by=by: replaced(F, "group_norm", by, nn.GroupNorm(2, 8))
CASES["nn.Linear.forward is patched"] = lambda: replaced(nn.Linear, "forward", lambda f: lambda self, x: f(self, x) * 3, linear())
CASES["nn.Linear.forward is patched below a class of others"] = lambda: replaced(
    nn.Linear, "forward", lambda f: lambda self, x: f(self, x) * 3, type("Derived", (nn.Linear,), {})(8, 8)
)
CASES["nn.Sequential.forward is patched"] = lambda: replaced(nn.Sequential, "forward", lambda f: lambda self, x: f(self, x) * 3, nn.Sequential(linear()))
CASES["nn.Module.__call__ is patched"] = lambda: replaced(
    nn.Module, "__call__", lambda f: lambda self, *args: f(self, *args) * (3 if isinstance(self, nn.Linear) else 1), linear()
)
CASES["nn.Module._call_impl is patched"] = lambda: replaced(
    nn.Module, "_call_impl", lambda f: lambda self, *args: f(self, *args) * (3 if isinstance(self, nn.Linear) else 1), linear()
)
CASES["torch.Tensor.relu is patched"] = lambda: replaced(torch.Tensor, "relu", lambda f: lambda self: f(self) * 3, own(lambda s, x: s.linear(x).relu()))

# -- layers and their settings -------------------------------------------------------------------------------------------------

CASES["a LayerNorm's eps"] = lambda: setting(nn.LayerNorm(8), "eps", 1.0)
CASES["a GroupNorm's eps"] = lambda: setting(nn.GroupNorm(2, 8), "eps", 1.0)
CASES["a GroupNorm's groups"] = lambda: setting(nn.GroupNorm(2, 8), "num_groups", 4)
CASES["a softmax's dimension"] = lambda: setting(nn.Softmax(0), "dim", 1)
CASES["a GELU's kind"] = lambda: setting(nn.GELU(), "approximate", "tanh")
CASES["a LeakyReLU's slope"] = lambda: setting(nn.LeakyReLU(0.1), "negative_slope", 0.5)
CASES["a Hardtanh's limit"] = lambda: setting(nn.Hardtanh(), "max_val", 0.5)
CASES["an inplace activation's flag"] = lambda: setting(nn.ReLU(), "inplace", False)
CASES["a Flatten's dimension"] = lambda: setting(nn.Sequential(nn.Unflatten(1, (2, 4)), nn.Flatten(1)), "0", nn.Unflatten(1, (4, 2)))
CASES["a Dropout in training, of nothing"] = lambda: setting(nn.Sequential(linear(), nn.Dropout(0.0)), "training", True)
CASES["a RMSNorm's eps"] = lambda: setting(nn.RMSNorm(8), "eps", 1.0)


def conv(**settings: Any) -> nn.Module:
    return own(lambda s, x: s.conv(x.reshape(1, 2, 2, 4)).flatten(), conv=nn.Conv2d(2, 2, 3, padding=1, **settings))


def conv_setting(name: str, value: Any, **settings: Any) -> Steered:
    module = conv(**settings)
    before = getattr(module.conv, name)
    return Steered(Root(module), lambda: setattr(module.conv, name, value), lambda: setattr(module.conv, name, before))


CASES["a convolution's stride"] = lambda: conv_setting("stride", (2, 2))
CASES["a convolution's padding"] = lambda: conv_setting("padding", (2, 1))
CASES["a convolution's dilation"] = lambda: conv_setting("dilation", (1, 2))
CASES["a convolution's circular padding"] = lambda: conv_setting("padding", (0, 0), padding_mode="circular")
CASES["what a convolution pads by"] = lambda: conv_setting("_reversed_padding_repeated_twice", [2, 0, 1, 1], padding_mode="circular")


CASES["what convolves"] = lambda: conv_setting("_conv_forward", lambda x, weight, bias: F.conv2d(x, weight * 2, bias, padding=1))


@case("a layer upsamples by more")
def _() -> Steered:
    module = own(lambda s, x: s.up(s.linear(x)[None]), up=nn.Upsample(scale_factor=2.0))
    return Steered(Root(module), lambda: setattr(module.up, "scale_factor", 3.0), lambda: setattr(module.up, "scale_factor", 2.0))
