"""Linear layers and the residuals that they are added to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core.ops.add_layer_norm import add_layer_norm
from sfast_core.ops.conv2d_act import conv2d_act
from sfast_core.ops.conv2d_shortcut import conv2d_shortcut
from sfast_core.ops.linear import OP
from sfast_core.rewrite.graph import metas
from sfast_core.target import Target
from tests.models import Forward
from tests.tracing import count, linears, rewritten

Function = Callable[..., Any]
TOKENS, IMAGE = (2, 5, 8), (2, 8, 4, 6)
CUBLASLT = next(impl for impl in OP.impls if impl.name == "cublaslt")


def but_shortcuts(op: Any, *_: Any) -> bool:
    """A kernel for all, but for a 1x1 convolution as part of another, which takes it before it is a linear layer."""
    return op is not conv2d_shortcut


def build(function: Function) -> Forward:
    torch.manual_seed(0)
    return Forward(
        function,
        lin=nn.Linear(8, 8),
        bare=nn.Linear(8, 8, bias=False),
        norm=nn.LayerNorm(8),
        conv=nn.Conv2d(8, 8, 3, padding=1),
        point=nn.Conv2d(8, 8, 1),
    )


def of_linear(use: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Function:
    """``use(the linear layer's result, residual)``."""
    return lambda net, x, y: use(net.lin(x), y)


# name: (forward of two token sequences, how many fused, sums left)
SUMS: dict[str, tuple[Function, int, int]] = {
    "the linear first": (of_linear(lambda a, y: a + y), 1, 0),
    "the residual first": (of_linear(lambda a, y: y + a), 1, 0),
    "in place": (of_linear(lambda a, y: a.add_(y)), 1, 0),
    "without a bias": (lambda net, x, y: net.bare(x) + y, 1, 0),
    "with its own input": (lambda net, x, y: net.lin(x) + x, 1, 0),
    "of two linears": (lambda net, x, y: net.lin(x) + net.bare(y), 1, 0),
    "of three": (lambda net, x, y: net.lin(x) + net.bare(y) + y, 1, 1),
    "a stream": (lambda net, x, y: (lambda s: net.bare(s) + s)(net.lin(x) + y), 2, 0),
    "its result used twice": (of_linear(lambda a, y: (lambda s: s * F.silu(s))(a + y)), 1, 0),
    "of one token": (lambda net, x, y: net.lin(x[0, 0]) + y[0, 0], 1, 0),
    "the linear used again": (of_linear(lambda a, y: (a + y) * a), 0, 1),
    "the linear added to itself": (of_linear(lambda a, y: a + a), 0, 1),
    "a residual that broadcasts": (of_linear(lambda a, y: a + y[:1, :1]), 0, 1),
    "a row as residual": (of_linear(lambda a, y: a + y[0, 0]), 0, 1),
    "a linear that broadcasts": (lambda net, x, y: net.lin(x[:1]) + y, 0, 1),
    "a residual in another dtype": (of_linear(lambda a, y: a + y.half()), 0, 1),
    "a linear in another dtype": (of_linear(lambda a, y: a.half() + y), 0, 1),
    "a number": (of_linear(lambda a, y: a + 1.5), 0, 1),
    "a residual with a factor": (of_linear(lambda a, y: torch.add(a, y, alpha=2)), 0, 1),
    "a difference": (of_linear(lambda a, y: a - y), 0, 0),
    "a factor behind the linear": (of_linear(lambda a, y: a * 0.5 + y), 0, 1),
    "an activation behind the linear": (of_linear(lambda a, y: F.gelu(a) + y), 0, 1),
    "of no linear": (lambda net, x, y: x * 2 + y, 0, 1),
    "of linears that read one input": (lambda net, x, y: (net.lin(x) + y) * net.bare(x), 0, 1),
}


@pytest.mark.parametrize("name", SUMS)
def test_a_linear_takes_the_sum(name: str) -> None:
    function, fused, sums = SUMS[name]
    found, graph = rewritten(
        "fuse_linear", build(function), torch.randn(TOKENS), torch.randn(TOKENS), has_impl=but_shortcuts
    )
    acts = len(linears(graph, "act"))
    assert (found - acts, len(linears(graph, "residual")), count(graph, torch.add)) == (fused, fused, sums)


def test_of_two_linears_the_later_takes_the_sum() -> None:
    for function in (
        lambda net, x, y: net.lin(x) + net.bare(y),
        lambda net, x, y: (lambda a: net.bare(y) + a)(net.lin(x)),
    ):
        _, graph = rewritten(
            "fuse_linear", build(function), torch.randn(TOKENS), torch.randn(TOKENS), has_impl=but_shortcuts
        )
        (node,) = linears(graph, "residual")
        assert node.args[2] is None and node.args[5].target is F.linear  # the layer without a bias


def image_of(tokens: torch.Tensor) -> torch.Tensor:
    """[B, H * W, C] as [B, C, H, W] of IMAGE's size."""
    return tokens.reshape(tokens.shape[0], 4, 6, -1).permute(0, 3, 1, 2)


def tokens_of(image: torch.Tensor) -> torch.Tensor:
    """The reverse."""
    return image.permute(0, 2, 3, 1).flatten(1, 2)


# name: (forward of an image x, how many fused)
IMAGES: dict[str, tuple[Function, int]] = {
    "tokens become an image": (lambda net, x: image_of(net.lin(net.norm(tokens_of(x)))).contiguous() + x, 1),
    "the image first": (lambda net, x: x + image_of(net.lin(net.norm(tokens_of(x)))), 1),
    "tokens become an image through a 1x1 convolution": (
        lambda net, x: net.point(image_of(net.norm(tokens_of(x)))) + x,
        1,
    ),
    "a 1x1 convolution": (lambda net, x: net.point(x) + net.conv(x), 1),
    "the image's tokens": (lambda net, x: net.lin(tokens_of(x)) + tokens_of(net.conv(x)), 1),
    "rows become one": (lambda net, x: net.lin(tokens_of(x)).reshape(-1, 8) + tokens_of(net.conv(x)).reshape(-1, 8), 1),
    "the image used again": (lambda net, x: (lambda y: y * (y + x))(image_of(net.lin(tokens_of(net.conv(x))))), 0),
    "the tokens used again": (
        lambda net, x: (lambda y: (image_of(y) + x) * y.sum())(net.lin(tokens_of(net.conv(x)))),
        0,
    ),
    "one pixel for all": (lambda net, x: image_of(net.lin(tokens_of(net.conv(x)))) + x[:, :, :1, :1], 0),
    "upside down": (lambda net, x: image_of(net.lin(tokens_of(net.conv(x)))).flip(2) + x, 0),
    "heads before tokens": (
        lambda net, x: net.lin(tokens_of(x)).unflatten(2, (2, 4)).transpose(1, 2) + x.reshape(2, 2, 24, 4),
        0,
    ),
}


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["NCHW", "NHWC"])
def test_views_between_the_linear_and_the_sum(name: str, layout: torch.memory_format) -> None:
    function, fused = IMAGES[name]
    found, graph = rewritten(
        "fuse_linear", build(function), torch.randn(IMAGE).contiguous(memory_format=layout), has_impl=but_shortcuts
    )
    assert (found, len(linears(graph, "residual")), count(graph, torch.add)) == (fused, fused, 1 - fused)


def test_a_kernel_is_asked_for_each_call() -> None:
    """On a machine without one, and for what none can compute, the graph is what it was."""

    def function(net: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return net.lin(x) + y

    for has_impl, fused in ((but_shortcuts, 1), (lambda op, x, *_: x.dtype == torch.float16, 0)):
        found, graph = rewritten(
            "fuse_linear", build(function), torch.randn(TOKENS), torch.randn(TOKENS), has_impl=has_impl
        )
        assert (found, len(linears(graph, "residual")), count(graph, torch.add)) == (fused, fused, 1 - fused)


def test_a_sum_that_a_layer_norm_reads_is_left_to_it() -> None:
    def function(net: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        total = net.lin(x) + y
        return net.norm(total) * total

    found, graph = rewritten(
        "fuse_add_layer_norm", build(function), torch.randn(TOKENS), torch.randn(TOKENS), has_impl=but_shortcuts
    )
    (node,) = [node for node in graph.nodes if node.target is add_layer_norm]
    assert found == 1 and len(linears(graph, "residual")) == 0 and node.args[1] is not None


def test_a_1x1_convolution_takes_the_sum_from_a_3x3_one() -> None:
    function = IMAGES["a 1x1 convolution"][0]
    for has_impl, left in ((but_shortcuts, False), (lambda *_: False, True)):
        _, graph = rewritten("fuse_conv_act", build(function), torch.randn(IMAGE), has_impl=has_impl)
        (node,) = [node for node in graph.nodes if node.target is conv2d_act]
        assert (node.args[7] is not None) == left and count(graph, torch.add) == 0


@pytest.mark.parametrize(
    "name", ["tokens become an image", "tokens become an image through a 1x1 convolution", "a 1x1 convolution"]
)
def test_images_recorded_in_nchw_are_told_as_they_will_lie(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With channels innermost the views of them are matrices that cuBLASLt takes; that must be so where impls are
    chosen too.
    """
    monkeypatch.setattr("sfast_core.ops.linear.cublaslt_impl.why_no_library", lambda: None)
    target, reasons = Target(torch.device("cuda", 0), "fake", (9, 0)), []

    def has_impl(op: Any, *args: Any) -> bool:
        if op is conv2d_shortcut:
            return False
        reasons.append(CUBLASLT.why_not(target, *args))
        return True

    _, graph = rewritten(
        "simplify_shapes_again", build(IMAGES[name][0]).half(), torch.randn(IMAGE).half(), has_impl=has_impl
    )
    (node,) = linears(graph, "residual")
    assert reasons == [None] and CUBLASLT.why_not(target, *metas(node.args)) is None
