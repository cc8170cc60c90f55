"""The CUDA extension's GroupNorm on a GPU: each form of it, at the shapes of real models and at awkward ones, against
float64.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from sfast_core.native import build, load
from sfast_core.ops.group_norm_act import OP, cuda_cluster_impl, cuda_impl, group_norm_act
from sfast_core.target import probe

pytestmark = pytest.mark.gpu

# As in tests/ops/test_ops.py: twice the reference's own error in the dtype, and a little.
NOISE = {torch.float16: 1e-4, torch.bfloat16: 8e-4, torch.float32: 1e-6}


@dataclass(frozen=True)
class Form:
    """A shape [N, C, H, W] in ``groups`` groups, and what comes with x."""

    shape: tuple[int, int, int, int]
    groups: int = 32
    affine: bool = True
    add: int = 0  #: rows of channel_add: none, one for all samples, or N
    mean: float = 0.5
    #: beyond the dtype's: x * scale + shift cancels where a group is constant, and scale is 1 / sqrt(eps) there
    noise: float = 0.0


FORMS = [
    Form((2, 320, 128, 128)),
    Form((2, 640, 64, 64), add=2),
    Form((2, 1280, 32, 32), add=1),
    Form((2, 1280, 8, 8)),
    Form((2, 2560, 16, 16)),
    Form((2, 1920, 32, 32)),
    Form((1, 128, 512, 512), mean=30.0),
    Form((1, 512, 64, 64), affine=False),
    Form((3, 30, 17, 13), groups=5, add=3),
    Form((1, 7, 40, 41), groups=7),
    Form((2, 32, 1, 1), noise=2e-5),
    Form((300, 64, 4, 4)),
    Form((1, 6400, 9, 9), groups=64),
    Form((1, 512, 5, 5), groups=1, mean=1000.0),
]

# Groups that share packs of 8 channels, fewer rows than blocks, and rows that the blocks can't share evenly.
CLUSTER_FORMS = [
    Form((2, 640, 128, 128), add=2),
    Form((2, 960, 64, 64)),
    Form((2, 288, 31, 33), add=1),
    Form((2, 320, 1, 3)),
    Form((1, 1280, 64, 64), mean=300.0),
    Form((40, 320, 9, 9), add=40),
]


@pytest.fixture(scope="module", autouse=True)
def _extension() -> None:
    """The extension for this GPU, built in place where it is missing."""
    outcome = build.ensure(print)
    if outcome.library is None:
        pytest.skip(f"the CUDA extension can't be built: {outcome.reason}")
    load.forget()
    assert load.why_not(torch.device("cuda", torch.cuda.current_device())) is None


def inputs(form: Form, dtype: torch.dtype) -> tuple[Any, ...]:
    """Seeded arguments of group_norm_act, x channels_last."""
    generator = torch.Generator("cuda").manual_seed(7)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device="cuda")

    x = (
        (normal(*form.shape) + form.mean * (1 + normal(1, form.shape[1], 1, 1)))
        .to(dtype)
        .contiguous(memory_format=torch.channels_last)
    )
    weight, bias = (normal(form.shape[1]), normal(form.shape[1]).to(dtype)) if form.affine else (None, None)
    add = normal(form.add, form.shape[1]).to(dtype) if form.add else None
    return x, form.groups, weight, bias, 1e-5, "silu", add


@pytest.mark.parametrize("flags", [0, load.ONE_KERNEL, load.TWO_KERNELS], ids=["chosen", "one_kernel", "two_kernels"])
@pytest.mark.parametrize("dtype", NOISE, ids=str)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: "x".join(map(str, form.shape)))
def test_it_is_as_exact_as_pytorch_and_the_same_twice(form: Form, dtype: torch.dtype, flags: int) -> None:
    arguments = inputs(form, dtype)
    out = cuda_impl.launch(*arguments, flags=flags)
    truth = group_norm_act(*(a.double() if isinstance(a, torch.Tensor) else a for a in arguments))
    eager = group_norm_act(*arguments)
    assert out.dtype == dtype and out.shape == eager.shape and out.is_contiguous(memory_format=torch.channels_last)
    norm = truth.norm()
    error, allowed = (float((result.double() - truth).norm() / norm) for result in (out, eager))
    assert error <= 2 * allowed + NOISE[dtype] + form.noise
    assert torch.equal(out, cuda_impl.launch(*arguments, flags=flags))


@pytest.mark.parametrize("tail", [0, 8, 320], ids="tail{}".format)
@pytest.mark.parametrize("dtype", NOISE, ids=str)
@pytest.mark.parametrize("form", [*FORMS, *CLUSTER_FORMS], ids=lambda form: "x".join(map(str, form.shape)))
def test_a_cluster_is_as_exact_as_pytorch_and_the_same_twice(form: Form, dtype: torch.dtype, tail: int) -> None:
    x, *rest = inputs(form, dtype)
    if tail >= x.shape[1]:
        pytest.skip(f"{x.shape[1]} channels have no tail of {tail}")
    parts = [part.contiguous(memory_format=torch.channels_last) for part in x.split([x.shape[1] - tail, tail], dim=1)]
    arguments = (parts[0], *rest, parts[1] if tail else None)
    if reason := OP.impls[2].why_not(probe(x.device), *arguments):
        pytest.skip(reason)
    out = cuda_cluster_impl.launch(*arguments)
    truth = group_norm_act(*(a.double() if isinstance(a, torch.Tensor) else a for a in arguments))
    eager = group_norm_act(x, *rest)
    assert out.dtype == dtype and out.shape == eager.shape and out.is_contiguous(memory_format=torch.channels_last)
    norm = truth.norm()
    error, allowed = (float((result.double() - truth).norm() / norm) for result in (out, eager))
    assert error <= 2 * allowed + NOISE[dtype] + form.noise
    assert torch.equal(out, cuda_cluster_impl.launch(*arguments))


def test_a_cluster_is_captured_and_replayed_on_new_inputs() -> None:
    x, *rest = inputs(Form((2, 320, 32, 32), add=2), torch.float16)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        cuda_cluster_impl.launch(x, *rest)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            out = cuda_cluster_impl.launch(x, *rest)
    x.copy_(torch.randn_like(x) * 3 - 1)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, cuda_cluster_impl.launch(x, *rest))


@pytest.mark.parametrize("launch", [cuda_impl.launch, cuda_cluster_impl.launch], ids=["cuda", "cluster"])
def test_an_addend_may_be_a_slice(launch: Callable[..., torch.Tensor]) -> None:
    x, groups, weight, bias, eps, act, _ = inputs(Form((2, 64, 9, 5), groups=8), torch.float16)
    add = torch.randn(2, 192, device="cuda").half()[:, 64:128]
    out = launch(x, groups, weight, bias, eps, act, add)
    torch.testing.assert_close(out, group_norm_act(x, groups, weight, bias, eps, act, add), rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("flags", [load.ONE_KERNEL, load.TWO_KERNELS], ids=["one_kernel", "two_kernels"])
def test_it_is_captured_and_replayed_on_new_inputs(flags: int) -> None:
    x, *rest = inputs(Form((2, 320, 32, 32), add=2), torch.float16)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        cuda_impl.launch(x, *rest, flags=flags)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            out = cuda_impl.launch(x, *rest, flags=flags)
    x.copy_(torch.randn_like(x) * 3 - 1)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, cuda_impl.launch(x, *rest, flags=flags))


@pytest.mark.parametrize("flags", [load.ONE_KERNEL, load.TWO_KERNELS], ids=["one_kernel", "two_kernels"])
def test_a_view_off_the_16_byte_grid_is_read_right(flags: int) -> None:
    base = torch.randn(1 + 2 * 16 * 10 * 64, device="cuda").half()
    x = base[1:].view(2, 16, 10, 64).permute(0, 3, 1, 2)
    assert x.is_contiguous(memory_format=torch.channels_last) and x.data_ptr() % 16
    out = cuda_impl.launch(x, 32, None, None, 1e-5, "none", flags=flags)
    torch.testing.assert_close(out, group_norm_act(x, 32, None, None, 1e-5), rtol=2e-3, atol=2e-3)


def test_nchw_comes_back_as_nchw_and_nothing_as_nothing() -> None:
    x = torch.randn(2, 64, 9, 5, device="cuda")
    out = cuda_impl.launch(x, 32, None, None, 1e-5)
    assert out.is_contiguous()
    torch.testing.assert_close(out, group_norm_act(x, 32, None, None, 1e-5), rtol=1e-5, atol=1e-5)
    for shape in ((0, 64, 4, 4), (2, 64, 0, 4)):
        assert cuda_impl.launch(torch.empty(shape, device="cuda"), 32, None, None, 1e-5).shape == shape


def test_large_offsets() -> None:
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("needs 12 GB of free memory")
    samples = 2**31 // (64 * 256 * 256) + 1
    x = torch.empty((samples, 64, 256, 256), dtype=torch.float16, device="cuda", memory_format=torch.channels_last)
    last = torch.randn((1, 64, 256, 256), device="cuda").half()
    x.zero_()
    x[-1:] = last
    assert x[-1:].data_ptr() - x.data_ptr() > 2**32 - 2**24
    out = cuda_impl.launch(x, 32, None, None, 1e-5, "silu")
    torch.testing.assert_close(out[-1:], cuda_impl.launch(last, 32, None, None, 1e-5, "silu"), rtol=2e-3, atol=2e-3)
    assert not out[:-1].any()


@pytest.mark.parametrize(("n", "c", "groups"), list(itertools.product([1, 2], [10, 64], [3])))
def test_cuda_is_not_asked_for_what_does_not_divide(n: int, c: int, groups: int) -> None:
    with pytest.raises(load.ExtensionError, match="cudaErrorInvalidValue"):
        cuda_impl.launch(torch.randn(n, c, 4, 4, device="cuda"), groups, None, None, 1e-5)
