"""Calls under autocast: their graphs hold the casts, and compute with autocast off what the module computes with it on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core.capture import Signature, Trace, Untraceable, autocast_off
from sfast_core.capture.autocast import Autocast, Treatment
from sfast_core.capture.functional import cast_like
from sfast_core.capture.stand_ins import Run, StandIn, Value
from tests.models import Attention, Forward, ResBlock, TransformerBlock, UNet, diffusers_unet
from tests.tracing import count, evaluate, same, try_record

#: Device types with the dtype that autocast computes in there.
DEVICES = [pytest.param("cpu", torch.bfloat16, id="cpu"), pytest.param("cuda", torch.float16, id="cuda", marks=pytest.mark.gpu)]


def check(net: nn.Module, *inputs: torch.Tensor, low: torch.dtype = torch.bfloat16) -> torch.fx.Graph:
    """The recorded call returned what the module returns, and its graph computes the same without autocast, from other values too."""
    kind = inputs[0].device.type
    exact = {"rtol": 0, "atol": 0} if kind == "cpu" else {}
    with torch.no_grad(), torch.autocast(kind, low):
        expected = net(*inputs)
        result, found = try_record(net, *inputs)
        assert isinstance(found, Trace), found.reason
        torch.testing.assert_close(result, expected, **exact)
        for values in (inputs, tuple(x.flip(0) if x.dim() else x for x in inputs)):
            got = found.outputs.build(evaluate(found.graph, values))
            torch.testing.assert_close(got, net(*values), **exact)
    return found.graph


def function(call: Callable[..., Any]) -> Forward:
    return Forward(lambda net, *inputs: call(*inputs))


# -- PyTorch's lists -----------------------------------------------------------------------------------------------------------

#: What PyTorch's "Autocast Op Reference" lists, for either device: a call and the shapes of its tensors.
LISTED: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    # computed in the lower precision
    "__matmul__": (lambda a, b: a @ b, [(3, 4), (4, 5)]),
    "addbmm": (torch.addbmm, [(3, 5), (2, 3, 4), (2, 4, 5)]),
    "addmm": (torch.addmm, [(3, 5), (3, 4), (4, 5)]),
    "addmv": (torch.addmv, [(3,), (3, 4), (4,)]),
    "addr": (torch.addr, [(3, 4), (3,), (4,)]),
    "baddbmm": (torch.baddbmm, [(2, 3, 5), (2, 3, 4), (2, 4, 5)]),
    "bmm": (torch.bmm, [(2, 3, 4), (2, 4, 5)]),
    "conv1d": (F.conv1d, [(2, 3, 8), (4, 3, 3), (4,)]),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, padding=1), [(2, 3, 6, 6), (4, 3, 3, 3), (4,)]),
    "conv3d": (F.conv3d, [(1, 2, 4, 4, 4), (3, 2, 3, 3, 3), (3,)]),
    "conv_transpose1d": (F.conv_transpose1d, [(2, 3, 8), (3, 4, 3)]),
    "conv_transpose2d": (F.conv_transpose2d, [(2, 3, 6, 6), (3, 4, 3, 3)]),
    "conv_transpose3d": (F.conv_transpose3d, [(1, 2, 4, 4, 4), (2, 3, 3, 3, 3)]),
    "einsum": (lambda a, b: torch.einsum("bid,bjd->bij", a, b), [(2, 3, 4), (2, 5, 4)]),
    "linear": (F.linear, [(2, 3, 4), (5, 4), (5,)]),
    "linear without a bias": (F.linear, [(3, 4), (5, 4)]),
    "matmul": (torch.matmul, [(2, 3, 4), (4, 5)]),
    "mm": (torch.mm, [(3, 4), (4, 5)]),
    "multi_dot": (lambda *parts: torch.linalg.multi_dot(parts), [(3, 4), (4, 5), (5, 2)]),
    "mv": (torch.mv, [(3, 4), (4,)]),
    "prelu": (F.prelu, [(2, 3, 4), (3,)]),
    "scaled_dot_product_attention": (F.scaled_dot_product_attention, [(2, 2, 5, 8)] * 3),
    "scaled_dot_product_attention with a mask": (F.scaled_dot_product_attention, [(2, 2, 5, 8)] * 3 + [(5, 5)]),
    # computed in float32
    "__pow__": (lambda x: x**2, [(3, 4)]),
    "__rpow__": (lambda x: 2**x, [(3, 4)]),
    "__rtruediv__": (lambda x: 1 / x, [(3, 4)]),
    "acos": (torch.acos, [(3, 4)]),
    "asin": (torch.asin, [(3, 4)]),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), [(1, 2, 4, 4, 4)]),
    "binary_cross_entropy_with_logits": (F.binary_cross_entropy_with_logits, [(3, 4), (3, 4)]),
    "cdist": (torch.cdist, [(3, 4), (5, 4)]),
    "cosh": (torch.cosh, [(3, 4)]),
    "cosine_embedding_loss": (lambda a, b: F.cosine_embedding_loss(a, b, torch.ones(3, device=a.device)), [(3, 4), (3, 4)]),
    "cosine_similarity": (F.cosine_similarity, [(3, 4), (3, 4)]),
    "cumprod": (lambda x: x.cumprod(-1), [(3, 4)]),
    "cumsum": (lambda x: torch.cumsum(x, 0), [(3, 4)]),
    "dist": (torch.dist, [(3, 4), (3, 4)]),
    "erfinv": (torch.erfinv, [(3, 4)]),
    "exp": (torch.exp, [(3, 4)]),
    "expm1": (torch.expm1, [(3, 4)]),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), [(2, 4, 3, 3), (4,), (4,)]),
    "hinge_embedding_loss": (F.hinge_embedding_loss, [(3, 4), (3, 4)]),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest"), [(2, 3, 4, 4)]),
    "interpolate, bilinear": (lambda x: F.interpolate(x, size=(7, 7), mode="bilinear"), [(2, 3, 4, 4)]),
    "kl_div": (F.kl_div, [(3, 4), (3, 4)]),
    "l1_loss": (F.l1_loss, [(3, 4), (3, 4)]),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), [(2, 3, 4), (4,), (4,)]),
    "log": (torch.log, [(3, 4)]),
    "log10": (torch.log10, [(3, 4)]),
    "log1p": (torch.log1p, [(3, 4)]),
    "log2": (torch.log2, [(3, 4)]),
    "log_softmax": (lambda x: F.log_softmax(x, -1), [(3, 4)]),
    "logsumexp": (lambda x: torch.logsumexp(x, -1), [(3, 4)]),
    "margin_ranking_loss": (F.margin_ranking_loss, [(3,), (3,), (3,)]),
    "mse_loss": (F.mse_loss, [(3, 4), (3, 4)]),
    "nll_loss": (lambda x: F.nll_loss(x, torch.zeros(3, dtype=torch.long, device=x.device)), [(3, 4)]),
    "norm": (lambda x: x.norm(dim=-1), [(3, 4)]),
    "normalize": (lambda x: F.normalize(x, dim=-1), [(3, 4)]),
    "poisson_nll_loss": (F.poisson_nll_loss, [(3, 4), (3, 4)]),
    "pow": (torch.pow, [(3, 4), (3, 4)]),
    "prod": (lambda x: x.prod(-1), [(3, 4)]),
    "reciprocal": (torch.reciprocal, [(3, 4)]),
    "renorm": (lambda x: torch.renorm(x, 2, 0, 1.0), [(3, 4)]),
    "rms_norm": (lambda x, w: F.rms_norm(x, (4,), w), [(2, 3, 4), (4,)]),
    "rsqrt": (torch.rsqrt, [(3, 4)]),
    "sinh": (torch.sinh, [(3, 4)]),
    "smooth_l1_loss": (F.smooth_l1_loss, [(3, 4), (3, 4)]),
    "soft_margin_loss": (F.soft_margin_loss, [(3, 4), (3, 4)]),
    "softmax": (lambda x: F.softmax(x, -1), [(3, 4)]),
    "softmax of a dtype": (lambda x: x.softmax(-1, dtype=torch.float64), [(3, 4)]),
    "softmin": (lambda x: F.softmin(x, -1), [(3, 4)]),
    "softplus": (F.softplus, [(3, 4)]),
    "sum": (lambda x: x.sum(-1), [(3, 4)]),
    "sum of a dtype": (lambda x: x.sum(-1, dtype=x.dtype), [(3, 4)]),
    "tan": (torch.tan, [(3, 4)]),
    "triplet_margin_loss": (F.triplet_margin_loss, [(3, 4)] * 3),
    # computed in the widest of their dtypes
    "addcdiv": (torch.addcdiv, [(3, 4)] * 3),
    "addcmul": (torch.addcmul, [(3, 4)] * 3),
    "atan2": (torch.atan2, [(3, 4), (3, 4)]),
    "cat": (lambda *parts: torch.cat(parts, -1), [(3, 4), (3, 5)]),
    "cross": (torch.linalg.cross, [(4, 3), (4, 3)]),
    "dot": (torch.dot, [(4,), (4,)]),
    "grid_sample": (lambda x, grid: F.grid_sample(x, grid, align_corners=False), [(1, 2, 4, 4), (1, 3, 3, 2)]),
    "index_put": (lambda x, y: x.index_put((torch.tensor([0, 2], device=x.device),), y), [(3, 4), (2, 4)]),
    "scatter_add": (lambda x, y: x.scatter_add(0, torch.zeros(3, 4, dtype=torch.long, device=x.device), y), [(3, 4), (3, 4)]),
    "stack": (lambda *parts: torch.stack(parts), [(3, 4), (3, 4)]),
    "tensordot": (lambda a, b: torch.tensordot(a, b, dims=1), [(3, 4), (4, 5)]),
    # in no list
    "add": (torch.add, [(3, 4), (3, 4)]),
    "chunk": (lambda x: torch.chunk(x, 2, -1), [(3, 4)]),
    "cos": (torch.cos, [(3, 4)]),
    "embedding": (lambda w: F.embedding(torch.tensor([0, 2], device=w.device), w), [(3, 4)]),
    "gelu": (F.gelu, [(3, 4)]),
    "masked_fill": (lambda x: x.masked_fill(x > 0.5, 0.0), [(3, 4)]),
    "mul": (lambda a, b: a * b, [(3, 4), (3, 4)]),
    "pad": (lambda x: F.pad(x, (1, 1)), [(3, 4)]),
    "repeat": (lambda x: x.repeat(2, 1), [(3, 4)]),
    "silu": (F.silu, [(3, 4)]),
    "slice": (lambda x: x[:, 1:3], [(3, 4)]),
    "to": (lambda x: x.to(torch.float64).to(torch.float32), [(3, 4)]),
    "topk": (lambda x: torch.topk(x, 2), [(3, 4)]),
    "view": (lambda x: x.view(-1), [(3, 4)]),
    "where": (lambda a, b: torch.where(a > b, a, b), [(3, 4), (3, 4)]),
}


@pytest.mark.parametrize(("kind", "low"), DEVICES)
@pytest.mark.parametrize("name", LISTED)
def test_what_autocast_does_to_a_function_is_in_the_graph(name: str, kind: str, low: torch.dtype) -> None:
    """In float32, in the lower precision, and in both; where PyTorch itself can't (dtypes that don't go together), it needn't."""
    torch.manual_seed(0)
    call, shapes = LISTED[name]
    run = 0
    for pattern in ((torch.float32,), (low,), (torch.float32, low), (low, torch.float32)):
        inputs = [torch.rand(shape, device=kind).mul(0.8).add(0.1).to(pattern[i % len(pattern)]) for i, shape in enumerate(shapes)]
        try:
            with torch.no_grad(), torch.autocast(kind, low):
                call(*inputs)
        except RuntimeError:
            continue
        check(function(call), *inputs, low=low)
        run += 1
    assert run


@pytest.mark.parametrize(
    ("call", "dtypes", "more", "expected"),
    [
        (F.linear, "ff", (), "low"),
        (F.linear, "hf", (), "low"),
        (F.linear, "hh", (), None),
        (F.scaled_dot_product_attention, "ffh", (), "low"),
        (torch.exp, "h", (), "float32"),
        (torch.exp, "f", (), None),
        (torch.Tensor.__pow__, "h", (2,), "float32"),
        (F.layer_norm, "h", ((4,),), "float32"),
        (F.group_norm, "h", (2,), "float32"),
        (F.softmax, "h", (-1,), "dtype="),
        (torch.Tensor.sum, "h", (), "dtype="),
        (torch.addcmul, "hfh", (), "float32"),
        (torch.addcmul, "hhh", (), None),
        (F.mse_loss, "hf", (), "float32"),
        (F.interpolate, "h", (None, 2.0), "float32"),  # made of others in C++, and of quite others in Python, for tracers
    ],
)
def test_cuda_is_asked_without_a_gpu(call: Callable[..., Any], dtypes: str, more: tuple[Any, ...], expected: str | None) -> None:
    """The stand-ins stand for tensors on a CUDA device, so here they may be the arguments themselves."""
    of = {"f": torch.float32, "h": torch.float16}
    run, device = Run(["cuda"]), torch.device("cuda", 0)
    inputs = [StandIn(run, Value(i, torch.empty(2, 4, 4, dtype=of[name], device="meta"), device)) for i, name in enumerate(dtypes)]
    wanted = {None: inputs[0].dtype, "low": torch.float16, "float32": torch.float32, "dtype=": torch.float32}[expected]
    result = StandIn(run, Value(len(dtypes), torch.empty(2, 4, 4, dtype=wanted, device="meta"), device))
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.float16)
    try:
        found = Autocast().treatment(call, "it", (*inputs, *more), {}, result)
    finally:
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])
    if expected == "dtype=":
        assert found == Treatment(keyword=torch.float32)
    else:
        assert found == Treatment((("cuda", wanted),) if expected else ())


# -- modules -------------------------------------------------------------------------------------------------------------------


def mixed(net: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Most of what autocast does, once: casts down and up, promotion, in-place sums, writes into a piece."""
    h = net.norm(net.lin(x))
    h += x
    h = torch.cat([h, net.lin(y)], dim=1)
    h.mul_(0.5)
    h[:, :1] += net.lin(h[:, 1:2])
    h[:, -1] = net.lin(h)[:, 0]
    scores = torch.softmax(torch.einsum("bid,bjd->bij", h, net.lin(h)) * h.shape[-1] ** -0.5, dim=-1)
    h = torch.addcmul(h, scores @ h, h.exp())
    return h.pow(2).mean(-1, keepdim=True) + h


def nested(net: Any, x: torch.Tensor) -> torch.Tensor:
    """Regions with autocast off, and with another dtype, inside the one that the caller opened."""
    h = net.lin(x)
    with torch.autocast(x.device.type, enabled=False):
        h = net.lin(h.to(net.lin.weight.dtype)).float()
        h = torch.softmax(h @ h.mT, dim=-1) @ h
        with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):  # the cache holds weights in the caller's dtype
            h = h + net.lin(h)
    return net.lin(h)


def written_out(net: Any, x: torch.Tensor) -> torch.Tensor:
    """Attention as diffusers writes it out: the scores' product begins from memory that nobody wrote."""
    empty = torch.empty(x.shape[0], x.shape[1], x.shape[1], dtype=x.dtype, device=x.device)
    scores = torch.baddbmm(empty, net.lin(x), x.mT, beta=0, alpha=0.3)
    return torch.bmm(scores.softmax(dim=-1).to(x.dtype), x)


def layers() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {"lin": nn.Linear(8, 8), "norm": nn.LayerNorm(8)}


MODULES: dict[str, tuple[Callable[[], nn.Module], list[tuple[int, ...]]]] = {
    "mixed": (lambda: Forward(mixed, **layers()), [(2, 3, 8), (2, 2, 8)]),
    "nested": (lambda: Forward(nested, **layers()), [(2, 3, 8)]),
    "written out": (lambda: Forward(written_out, **layers()), [(2, 3, 8)]),
    "Attention": (lambda: Attention(16), [(2, 5, 16)]),
    "TransformerBlock": (lambda: TransformerBlock(16, 12), [(2, 6, 16), (2, 5, 12)]),
    "ResBlock": (lambda: ResBlock(8, 16, 12), [(2, 8, 6, 6), (2, 12)]),
    "BatchNorm": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True)).eval(), [(2, 3, 6, 6)]),
}


@pytest.mark.parametrize(("kind", "low"), DEVICES)
@pytest.mark.parametrize("given", ["float32", "low"])
@pytest.mark.parametrize("weights", ["float32", "low"])
@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str, weights: str, given: str, kind: str, low: torch.dtype) -> None:
    torch.manual_seed(0)
    make, shapes = MODULES[name]
    of = {"float32": torch.float32, "low": low}
    net = make().to(kind, of[weights]).eval()
    inputs = [torch.randn(shape, device=kind, dtype=of[given]) for shape in shapes]
    if kind == "cpu" and given != weights == "low" and name in ("TransformerBlock", "ResBlock"):
        pytest.skip("PyTorch's norms on a CPU, which autocast leaves alone, take no float32 with bfloat16 weights")
    check(net, *inputs, low=low)


@pytest.mark.parametrize(("kind", "low"), DEVICES)
@pytest.mark.parametrize("weights", ["float32", "low"])
def test_unets(weights: str, kind: str, low: torch.dtype) -> None:
    torch.manual_seed(0)
    dtype = torch.float32 if weights == "float32" else low
    check(UNet().to(kind, dtype), *(x.to(kind) for x in UNet.inputs(dtype=dtype)), low=low)
    pytest.importorskip("diffusers")
    net = diffusers_unet().to(kind, dtype)
    inputs = torch.randn(2, 4, 8, 8), torch.tensor([3.0, 700.0]), torch.randn(2, 5, 12)
    check(Forward(lambda net, *args: net.unet(*args, return_dict=False), unet=net), *(x.to(kind) for x in inputs), low=low)


def test_weights_that_are_in_the_lower_precision_are_not_cast() -> None:
    torch.manual_seed(0)
    graph = check(Forward(lambda net, x: net.lin(net.lin(x)), **layers()).bfloat16(), torch.randn(2, 8))
    assert count(graph, cast_like) == 1  # x
    graph = check(Forward(lambda net, x: net.lin(net.lin(x)), **layers()), torch.randn(2, 8))
    assert count(graph, cast_like) == 5  # x, and twice the weight and the bias: sharing them is a pass's business


def test_parameters_that_train_are_not_taken_from_autocasts_cache() -> None:
    """Autocast keeps the casts of such parameters until the region ends; a graph reads the parameter itself."""
    net = Forward(lambda net, x: net.lin(x), **layers()).requires_grad_()
    x = torch.randn(2, 8)
    with torch.autocast("cpu", torch.bfloat16), torch.enable_grad():
        net(x)
        _, found = try_record(net, x)
    assert isinstance(found, Trace)
    with torch.no_grad():
        net.lin.weight.mul_(2)
        with torch.autocast("cpu", torch.bfloat16):
            expected = net(x)
    same(evaluate(found.graph, [x])[0], expected)


def test_a_function_whose_inside_is_cast_is_taken_apart() -> None:
    """The inverse is float32 and its square is not: no cast of the argument gives both."""
    graph = check(function(lambda x: torch.linalg.matrix_power(x, -2) + 1), torch.randn(4, 4) + 4 * torch.eye(4))
    assert count(graph, torch.linalg.matrix_power) == 0


def test_an_operator_made_of_others_is_taken_apart() -> None:
    library = torch.library.Library("fast_compile_autocast_test", "DEF")
    library.define("mix(Tensor x) -> (Tensor, Tensor)")

    def mix(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        variance, mean = torch.var_mean(x, -1, keepdim=True)
        return (x - mean) @ x + variance, x.softmax(-1)

    library.impl("mix", mix, "CompositeImplicitAutograd")
    graph = check(function(lambda x: torch.ops.fast_compile_autocast_test.mix(x)), torch.randn(4, 4))
    assert count(graph, torch.ops.aten.var_mean.correction) == 1


@pytest.mark.parametrize(("kind", "low"), DEVICES)
def test_functions_of_many_operators(kind: str, low: torch.dtype) -> None:
    torch.manual_seed(0)

    def attend(net: Any, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return net.attend(x, x, x, attn_mask=mask, need_weights=True)

    for dtype in (torch.float32, low):
        net = Forward(attend, attend=nn.MultiheadAttention(8, 2)).to(kind, dtype)
        check(net, torch.randn(5, 2, 8, device=kind, dtype=dtype), torch.randn(5, 5, device=kind), low=low)


# -- what isn't touched, and what is refused -----------------------------------------------------------------------------------


def test_float64_and_integers_are_left_alone() -> None:
    graph = check(function(lambda x, i: (torch.mm(x, x), i * 2, x.long() + i)), torch.randn(3, 3).double(), torch.arange(3))
    assert count(graph, cast_like) == 0


def test_autocast_of_another_device_is_none() -> None:
    net, x = function(torch.mm), torch.randn(3, 3)
    torch.set_autocast_enabled("cuda", True)
    try:
        result, found = try_record(net, x, x.clone())
        assert isinstance(found, Trace) and result.dtype == torch.float32 and count(found.graph, cast_like) == 0
        assert found.computed_in == frozenset()
    finally:
        torch.set_autocast_enabled("cuda", False)


def refused(call: Callable[..., Any], *inputs: torch.Tensor) -> str:
    """Why a call under autocast leaves no trace; without autocast it does."""
    net = function(call)
    assert isinstance(try_record(net, *inputs)[1], Trace)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = net(*inputs)
        result, found = try_record(net, *inputs)
    same(result, expected)
    assert isinstance(found, Untraceable)
    return found.reason


def test_casts_inside_an_operator_are_refused() -> None:
    x = torch.randn(3, 4)
    assert "autocast does more to bilinear than can be observed" in refused(F.bilinear, x, x.clone(), torch.randn(2, 4, 4))


def test_casts_inside_a_function_that_writes_to_its_tensors_are_refused() -> None:
    assert refused(torch.cov, torch.randn(3, 4)) == "autocast casts inside cov"


@pytest.mark.parametrize(
    "call", [F.linear, torch.bmm, lambda a, b: torch.linalg.multi_dot([a[0], b[0]]), lambda a, b: F.softmax(a @ b, -1)]
)
def test_asking_changes_nothing_around_it(call: Callable[..., Any]) -> None:
    x, y = torch.randn(2, 4, 4), torch.randn(4, 4) if call is F.linear else torch.randn(2, 4, 4)
    for mode in (nullcontext(), torch.inference_mode()):
        with mode, torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            before = _state()
            try_record(function(call), x, y)
            assert _state() == before


def _state() -> tuple[Any, ...]:
    """What of the thread's state a run on stand-ins might change."""
    dispatch = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    return *map(str, dispatch), *modes, torch.get_rng_state().tolist()


def test_autocast_off_is_off_and_comes_back() -> None:
    x = torch.randn(3, 3)
    with autocast_off():
        assert (x @ x).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(KeyError), autocast_off():
            assert (x @ x).dtype == torch.float32
            raise KeyError
        assert (x @ x).dtype == torch.bfloat16


def test_autocast_is_part_of_the_signature() -> None:
    x = torch.randn(2)
    plain = Signature((x,), {})
    with torch.autocast("cpu", torch.bfloat16):
        bfloat = Signature((x,), {})
        with torch.autocast("cpu", enabled=False):
            assert Signature((x,), {}).key == plain.key
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            assert Signature((x,), {}).key == bfloat.key
    with torch.autocast("cpu", torch.float16):
        half = Signature((x,), {})
    assert len({plain.key, bfloat.key, half.key}) == 3
    assert (plain.autocast, bfloat.autocast) == ((), (("cpu", torch.bfloat16),))
