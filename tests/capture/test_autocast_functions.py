"""What autocast does to each function that PyTorch's documentation lists, in a recorded graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from sfast_core.capture.autocast import Autocast, Treatment
from sfast_core.capture.fake_tensors import FakeTensor, Run, Value
from tests.capture.autocast import DEVICES, check, function

# -- PyTorch's lists ------------------------------------------------------------------------------------------------

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
    "cosine_embedding_loss": (
        lambda a, b: F.cosine_embedding_loss(a, b, torch.ones(3, device=a.device)),
        [(3, 4), (3, 4)],
    ),
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
    "scatter_add": (
        lambda x, y: x.scatter_add(0, torch.zeros(3, 4, dtype=torch.long, device=x.device), y),
        [(3, 4), (3, 4)],
    ),
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
    """In float32, in the lower precision, and in both; where PyTorch itself can't (dtypes that don't go together), it
    needn't.
    """
    torch.manual_seed(0)
    call, shapes = LISTED[name]
    run = 0
    for pattern in ((torch.float32,), (low,), (torch.float32, low), (low, torch.float32)):
        inputs = [
            torch.rand(shape, device=kind).mul(0.8).add(0.1).to(pattern[i % len(pattern)])
            for i, shape in enumerate(shapes)
        ]
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
        # made of others in C++, and of quite others in Python, for tracers
        (F.interpolate, "h", (None, 2.0), "float32"),
    ],
)
def test_cuda_is_asked_without_a_gpu(
    call: Callable[..., Any], dtypes: str, more: tuple[Any, ...], expected: str | None
) -> None:
    """The stand-ins stand for tensors on a CUDA device, so here they may be the arguments themselves."""
    of = {"f": torch.float32, "h": torch.float16}
    run, device = Run(["cuda"]), torch.device("cuda", 0)
    inputs = [
        FakeTensor(run, Value(i, torch.empty(2, 4, 4, dtype=of[name], device="meta"), device))
        for i, name in enumerate(dtypes)
    ]
    wanted = {None: inputs[0].dtype, "low": torch.float16, "float32": torch.float32, "dtype=": torch.float32}[expected]
    result = FakeTensor(run, Value(len(dtypes), torch.empty(2, 4, 4, dtype=wanted, device="meta"), device))
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
