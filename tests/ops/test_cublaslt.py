"""How ``linear`` calls cuBLASLt, without a GPU: the numbers against the header, the calls against a library that
multiplies in memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import itertools
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from sfast_core.machine.numerics import Numerics
from sfast_core.native.counters import Counters, handed_out
from sfast_core.ops.linear import OP, linear
from sfast_core.ops.linear import cublaslt_impl as product
from sfast_core.ops.linear import cublaslt_plans as plans
from sfast_core.ops.linear.cublaslt_library import DataType
from sfast_core.ops.linear.cublaslt_plans import ALIGNMENT, Addresses, PlanCache, Problem
from sfast_core.ops.spec import Arguments
from sfast_core.target import Target
from tests.ops.cases.epilogues.residual import CASES
from tests.ops.cublaslt import GPU, IMPLS, why_not


def _double(arg: Any) -> Any:
    return arg.double() if isinstance(arg, torch.Tensor) else arg


# -- a library that multiplies in memory ---------------------------------------------------------------------------

_DTYPES = {DataType.R_16F: torch.float16, DataType.R_16BF: torch.bfloat16}
_ONE = {68: (ctypes.c_float, 1.0), 64: (ctypes.c_uint16, torch.ones((), dtype=torch.float16).view(torch.int16).item())}


class Memory:
    """cuBLASLt as its manual tells it: matrices are stored by columns, and what is set is read when the product is
    launched.
    """

    def __init__(self, algorithms: int = plans.RANKS) -> None:
        self.objects: dict[int, Any] = {}
        self.preferences: dict[int, int] = {}
        self.ranks: list[int] = []
        self.sums: list[int] = []
        self.ldd: list[int] = []
        self.workspaces: list[int] = []
        self.unit = 512  # bytes of workspace for each rank
        self._algorithms = algorithms
        self._next = itertools.count(1)

    def _new(self, place: Any, made: Any) -> None:
        place._obj.value = next(self._next)
        self.objects[place._obj.value] = made

    def _drop(self, handle: ctypes.c_void_p) -> None:
        del self.objects[handle.value or 0]

    cublasLtMatmulDescDestroy = cublasLtMatrixLayoutDestroy = cublasLtMatmulPreferenceDestroy = _drop

    def cublasLtCreate(self, place: Any) -> None:
        self._new(place, "handle")

    def cublasLtMatmulDescCreate(self, place: Any, compute: int, scale: int) -> None:
        assert (compute, scale) in ((68, 0), (64, 2))  # factors are of what is summed
        self.sums.append(compute)
        self._new(place, {"sizes": {3: 4, 4: 4, 7: 4, 8: 8}, "one": _ONE[compute]})

    def cublasLtMatmulPreferenceCreate(self, place: Any) -> None:
        self._new(place, {"sizes": {1: 8, 3: 4, 5: 4, 6: 4, 7: 4, 8: 4}})

    def cublasLtMatrixLayoutCreate(self, place: Any, dtype: int, rows: int, columns: int, ld: int) -> None:
        assert ld >= rows and ld * 2 % ALIGNMENT == 0
        self._new(place, (_DTYPES[DataType(dtype)], rows, columns, ld))

    def _set(self, handle: ctypes.c_void_p, attribute: int, place: Any, size: int) -> None:
        described = self.objects[handle.value or 0]
        assert size == described["sizes"][attribute]
        described[int(attribute)] = place._obj.value

    cublasLtMatmulDescSetAttribute = cublasLtMatmulPreferenceSetAttribute = _set

    def cublasLtMatmulAlgoGetHeuristic(
        self, handle: Any, operation: Any, a: Any, b: Any, c: Any, d: Any, wish: Any, *results: Any
    ) -> None:
        requested, array, found = results
        self.preferences = {name: set_to for name, set_to in self.objects[wish.value].items() if name != "sizes"}
        assert self.objects[handle.value] == "handle" and c.value == d.value
        assert self.objects[operation.value].get(8, ALIGNMENT) == ALIGNMENT  # known before there is a bias
        for rank in range(min(requested, self._algorithms)):
            array[rank].algorithm.data[0], array[rank].workspace_bytes = rank, self.unit * rank
        found._obj.value = min(requested, self._algorithms)

    def cublasLtMatmul(self, handle: Any, operation: Any, alpha: Any, *rest: Any) -> None:
        a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algorithm, workspace, workspace_bytes, _ = rest
        set_to = self.objects[operation.value]
        kind, one = set_to["one"]
        assert (type(alpha._obj), type(beta._obj), alpha._obj.value, set_to[3], set_to[4]) == (kind, kind, one, 1, 0)
        self.ranks.append(algorithm._obj.data[0])
        self.workspaces.append(workspace)
        assert workspace_bytes == self.unit * self.ranks[-1] and bool(workspace) == bool(workspace_bytes)
        total = self._matrix(a, a_layout).double().t() @ self._matrix(b, b_layout).double()
        assert beta._obj.value in (0, one)
        if beta._obj.value:  # else C isn't read: it may hold anything, also what isn't a number
            total += self._matrix(c, c_layout).double()
        if set_to[7] == 4:
            total += self._flat(set_to[8], total.shape[0], self.objects[a_layout.value][0]).double()[:, None]
        self._matrix(d, d_layout).copy_(total)
        self.ldd.append(self.objects[d_layout.value][3])

    def _matrix(self, address: int, layout: Any) -> torch.Tensor:
        dtype, rows, columns, ld = self.objects[layout.value]
        return self._flat(address, (columns - 1) * ld + rows, dtype).as_strided((rows, columns), (1, ld))

    @staticmethod
    def _flat(address: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        assert address % ALIGNMENT == 0
        return torch.frombuffer((ctypes.c_uint16 * count).from_address(address), dtype=dtype)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Memory]:
    """The impl calls this library, with the CPU for a device."""
    library = Memory()
    cache = PlanCache(library)
    monkeypatch.setattr(product, "plans", lambda: cache)
    monkeypatch.setattr(product, "why_no_library", lambda: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    yield library
    kinds = [type(made) for made in library.objects.values()]
    # an operation and three layouts for each plan
    assert kinds.count(dict) * 3 == kinds.count(tuple) and "handle" in library.objects.values()


# odd: lengths that cuBLASLt can't be given; empty: nothing to compute
@pytest.mark.parametrize(
    "case", [case for case in CASES if "odd" not in case.id and case.id != "empty"], ids=lambda case: case.id
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rank", range(plans.RANKS))
@pytest.mark.parametrize("added", [False, True], ids=["plain", "residual"])
def test_what_is_launched_is_the_op(memory: Memory, case: Any, dtype: torch.dtype, rank: int, added: bool) -> None:
    args, _ = case.make(dtype, torch.device("cpu"))
    args = args if added else args[:3]
    out = IMPLS[rank].launch(*args)
    expected = linear(*map(_double, args))
    assert out.shape == expected.shape and out.is_contiguous() and out.dtype == dtype and memory.ranks == [rank]
    assert torch.equal(out, expected.to(dtype))  # rounded once


@pytest.mark.parametrize("rank", range(plans.RANKS))
@pytest.mark.parametrize("added", [False, True], ids=["plain", "residual"])
def test_sums_in_float16_are_a_plan_of_their_own(memory: Memory, rank: int, added: bool) -> None:
    args, _ = CASES[0].make(torch.float16, torch.device("cpu"))
    args = args if added else args[:3]
    expected = linear(*map(_double, args)).half()
    for _ in range(2):
        assert torch.equal(IMPLS[plans.RANKS + rank].launch(*args), expected)
        assert torch.equal(IMPLS[rank].launch(*args), expected)
    assert memory.sums == [64, 68] and memory.ranks == [rank] * 4


@pytest.mark.gpu
@pytest.mark.parametrize("rank", range(plans.RANKS))
def test_sums_in_float16_on_a_gpu(rank: int) -> None:
    x, weight, bias, residual = (
        torch.randn(shape, device="cuda").half() for shape in ((512, 640), (320, 640), (320,), (512, 320))
    )
    impl = IMPLS[plans.RANKS + rank]
    for args in ((x, weight), (x, weight, bias), (x, weight, bias, "none", False, residual)):
        got, expected = impl.launch(*args), linear(*map(_double, args))
        assert 0 < ((got.double() - expected).norm() / expected.norm()).item() < 1e-2
        assert torch.equal(got, impl.launch(*args))


ALLOWED = replace(GPU, numerics=Numerics(fp16_accumulation=True))


@pytest.mark.parametrize(
    ("target", "dtype", "reason"),
    [
        (GPU, torch.float16, "PyTorch isn't allowed to sum in float16"),
        (ALLOWED, torch.bfloat16, "x is bfloat16, must be float16"),
        (ALLOWED, torch.float32, "x is float32, must be float16"),
        (ALLOWED, torch.float16, None),
    ],
)
def test_float16_is_summed_in_float16_only_where_pytorch_may(
    target: Target, dtype: torch.dtype, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(product, "why_no_library", lambda: None)
    x, weight, bias, residual = (tensor.to(dtype) for tensor in (X, WEIGHT, BIAS, RESIDUAL))
    for impl in IMPLS[plans.RANKS :]:
        assert impl.why_not(target, x, weight, bias, "none", False, residual) == (
            f"{impl.name}: {reason}" if reason else None
        )


def test_what_is_asked_for(memory: Memory) -> None:
    args, _ = CASES[0].make(torch.float16, torch.device("cpu"))
    product.launch(*args)
    # Up to 32 MiB; parts of a sum in float32; every operand on 16 bytes.
    assert memory.preferences == {1: 32 << 20, 3: 2, 5: 16, 6: 16, 7: 16, 8: 16}


def test_a_plan_is_made_once_and_takes_each_bias(memory: Memory) -> None:
    (x, weight, bias, *_, residual), _ = CASES[0].make(torch.float16, torch.device("cpu"))
    first = product.launch(x, weight, bias, residual=residual)
    made = len(memory.objects)
    second = product.launch(x, weight, bias * 2, residual=residual)
    assert len(memory.objects) == made and not torch.equal(first, second)
    product.launch(x, weight, None, residual=residual)
    assert len(memory.objects) == made + 4


def test_the_last_algorithm_stands_in_for_one_that_is_not_there(memory: Memory) -> None:
    memory._algorithms = 1
    args, _ = CASES[0].make(torch.float16, torch.device("cpu"))
    product.launch(*args, rank=1)
    assert memory.ranks == [0]


def test_each_product_of_a_capture_has_a_workspace_of_its_own(memory: Memory) -> None:
    """One after the other, those of one plan too.

    None outside of a capture, none for an algorithm that needs no workspace.
    """
    x, weight = torch.randn(16, 64).half(), torch.randn(32, 64).half()
    own = Counters(torch.device("cpu"))
    memory.unit = 4
    with handed_out(own):
        for rank in (1, 0, 1, 2):
            product.launch(x, weight, rank=rank)
    begin, used = own.span
    assert memory.workspaces == [begin, 0, begin + 256, begin + 512] and used == 768
    product.launch(x, weight, rank=1)
    assert not begin <= memory.workspaces[-1] < begin + used and own.span == (begin, used)


def test_a_workspace_that_could_hold_sums_is_no_counters(memory: Memory) -> None:
    own = Counters(torch.device("cpu"))
    with handed_out(own):
        product.launch(torch.randn(4, 64).half(), torch.randn(32, 64).half(), rank=1)  # 512 bytes
    assert own.span == (0, 0) and memory.workspaces != [0]


PROBLEM = Problem(0, torch.float16, m=16, n=32, k=64, x_stride=64, weight_stride=64, bias=True)


def test_without_an_algorithm_nothing_is_left_behind() -> None:
    memory = Memory(algorithms=0)
    with pytest.raises(RuntimeError, match="cuBLASLt has no algorithm for Problem"):
        PlanCache(memory).plan(PROBLEM)
    assert list(memory.objects.values()) == ["handle"]


def test_threads_share_a_plan() -> None:
    """Each launch gets its own bias."""
    cache = PlanCache(Memory())
    x, weight, residual = torch.randn(16, 64).half(), torch.randn(32, 64).half(), torch.randn(16, 32).half()
    failed: list[int] = []

    def launch(number: int) -> None:
        bias, out = torch.full((32,), float(number)).half(), torch.empty(16, 32).half()
        for _ in range(50):
            plan = cache.plan(PROBLEM)
            operands = (x, weight, bias, residual, out)
            plan.launch(plan.algorithm(0), Addresses(*(operand.data_ptr() for operand in operands)), 0, 0)
            if not torch.equal(out, (F.linear(*map(_double, operands[:3])) + residual.double()).half()):
                failed.append(number)

    threads = [threading.Thread(target=launch, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


# -- what it refuses -----------------------------------------------------------------------------------------------


def _meta(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


X, WEIGHT, BIAS, RESIDUAL = _meta(2, 9, 64), _meta(48, 64), _meta(48), _meta(2, 9, 48)
OLD = Target(torch.device("cuda", 0), "old", (7, 5))

# name: (arguments, what the reason says)
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "no CUDA": ((Target(torch.device("cpu")), X, WEIGHT, BIAS, RESIDUAL), "needs CUDA"),
    "an old GPU": ((OLD, X, WEIGHT, BIAS, RESIDUAL), "needs compute capability 8.0, this is 7.5"),
    "float32": (
        (GPU, *(tensor.float() for tensor in (X, WEIGHT, BIAS, RESIDUAL))),
        "x is float32, must be float16 or bfloat16",
    ),
    "a weight in another dtype": ((GPU, X, WEIGHT.bfloat16(), BIAS, RESIDUAL), "weight is bfloat16, x is float16"),
    "a bias in another dtype": ((GPU, X, WEIGHT, BIAS.float(), RESIDUAL), "bias is float32, x is float16"),
    "a residual in another dtype": ((GPU, X, WEIGHT, BIAS, RESIDUAL.float()), "residual is float32, x is float16"),
    "a weight of another length": ((GPU, X, _meta(48, 72), BIAS, RESIDUAL), "x is [2, 9, 64], weight [48, 72]"),
    "a vector as weight": ((GPU, X, _meta(64), None, _meta(2, 9)), "x is [2, 9, 64], weight [64]"),
    "a bias that broadcasts": ((GPU, X, WEIGHT, _meta(1), RESIDUAL), "bias is [1], must be [48]"),
    "a residual that broadcasts": (
        (GPU, X, WEIGHT, BIAS, _meta(1, 1, 48)),
        "residual of [1, 1, 48] is broadcast to [2, 9, 48]",
    ),
    "an odd length": (
        (GPU, _meta(2, 9, 60), _meta(48, 60), BIAS, RESIDUAL),
        "weight is [48, 60], both must be multiples of 8",
    ),
    "an odd width": ((GPU, X, _meta(44, 64), None, _meta(2, 9, 44)), "weight is [44, 64], both must be multiples of 8"),
    "nothing": ((GPU, _meta(0, 64), WEIGHT, BIAS, _meta(0, 48)), "x or weight is empty"),
    "too much": ((GPU, _meta(2**26, 64), WEIGHT, BIAS, _meta(2**26, 48)), "has 2^31 elements or more"),
    "a transposed residual": (
        (GPU, X, WEIGHT, BIAS, _meta(2, 48, 9).transpose(1, 2)),
        "residual has strides (432, 1, 9), must be contiguous",
    ),
    "an x in no order": (
        (GPU, _meta(9, 2, 64).transpose(0, 1), WEIGHT, BIAS, RESIDUAL),
        "x of [2, 9, 64] with strides (64, 128, 1) is no matrix",
    ),
    "an x by columns": (
        (GPU, _meta(64, 18).t(), WEIGHT, BIAS, _meta(18, 48)),
        "x of [18, 64] with strides (1, 18) is no matrix",
    ),
    "one row for all": (
        (GPU, _meta(1, 64).expand(18, 64), WEIGHT, BIAS, _meta(18, 48)),
        "x of [18, 64] with strides (0, 1) is no matrix",
    ),
    "rows off 16 bytes": (
        (GPU, _meta(2, 9, 68)[..., :64], WEIGHT, BIAS, RESIDUAL),
        "x of [2, 9, 64] with strides (612, 68, 1) is no matrix",
    ),
    "a weight by columns": (
        (GPU, X, _meta(64, 48).t(), BIAS, RESIDUAL),
        "weight of [48, 64] with strides (1, 48) is no matrix",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_why_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "why_no_library", lambda: None)
    arguments, expected = REFUSED[name]
    assert expected in (why_not(*arguments) or "nothing against it")


def test_why_not_has_nothing_against_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "why_no_library", lambda: None)
    assert why_not(GPU, X, WEIGHT, BIAS, RESIDUAL) is None
    assert why_not(GPU, X, WEIGHT, None, RESIDUAL) is None
    assert why_not(GPU, _meta(2, 9, 192)[..., :64], _meta(48, 128)[:, 64:], BIAS, RESIDUAL) is None
    assert why_not(GPU, _meta(64), WEIGHT, BIAS, _meta(48)) is None


def test_each_algorithm_is_an_impl_and_the_first_alone_is_taken_over() -> None:
    assert len({impl.launch for impl in IMPLS}) == len({impl.name for impl in IMPLS}) == 2 * plans.RANKS
    assert OP.measured and [impl.carries_over for impl in IMPLS] == ([True] + [False] * (plans.RANKS - 1)) * 2


def test_calls_alike_are_of_one_family() -> None:
    family = lambda *args: OP.family(Arguments.of(linear, *args))  # type: ignore[misc]  # noqa: E731
    assert family(X, WEIGHT, BIAS, "none", False, RESIDUAL) == ("torch.float16 (48, 64) True none False True", 1152)
    assert family(X, WEIGHT) == family(X, WEIGHT, None) == ("torch.float16 (48, 64) False none False False", 1152)
