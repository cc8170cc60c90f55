"""Every op and impl against the op's reference, at every case in ``tests/ops/cases``.

The measure is the error against the truth, relative to the truth's norm. The truth is the reference on the same values
in float64 (float32 for slow cases, which would not fit; elsewhere it would not do: PyTorch's GroupNorm on the CPU
subtracts squares). An impl may be off by twice what the reference is off in the inputs' own dtype, plus NOISE: no
kernel has to round exactly where PyTorch does, but none may be of another class of accuracy.

Without a GPU, the Triton impls run in Triton's interpreter (see ``tests/conftest.py``) and the others only where their
cases say that they can.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch

from sfast_core.ops import NAMES, Impl, Op, all_ops
from sfast_core.target import probe
from tests.ops.case import Case
from tests.targets import H100

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# A tenth of one rounding in each dtype, for float32 ten: sums of thousands of terms, in another order.
NOISE = {torch.float16: 1e-4, torch.bfloat16: 8e-4, torch.float32: 1e-6}
# How much worse than the reference an impl may be. The interpreter (Triton 3.9) rounds to bfloat16 toward zero: twice
# the error.
FACTOR = {torch.float16: 2, torch.bfloat16: 2 if CUDA else 4, torch.float32: 2}


@dataclass(frozen=True)
class Check:
    """One op at one case in one dtype, with the impl under test or None for the reference."""

    op: Op
    impl: Impl | None
    case: Case
    dtype: torch.dtype

    @property
    def id(self) -> str:
        """As pytest shows it."""
        names = [
            self.op.name,
            *([self.impl.name] if self.impl else []),
            self.case.id,
            str(self.dtype).removeprefix("torch."),
        ]
        return "-".join(names)

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The case's arguments, made anew."""
        return self.case.make(self.dtype, DEVICE)


def _cases(name: str) -> ModuleType:
    return importlib.import_module(f"tests.ops.cases.{name}")


def _ops() -> list[Op]:
    """The ops that have cases: one without fails ``test_has_cases`` and leaves the other ops' tests alone."""
    return [op for op in all_ops().values() if importlib.util.find_spec(f"tests.ops.cases.{op.name}")]


def _runs_here(impl: Impl, cases: ModuleType) -> bool:
    return CUDA or impl.name.startswith("triton") or impl.name in getattr(cases, "CPU_IMPLS", ())


def _is_interpreted(impl: Impl | None) -> bool:
    """It takes a thousand times as long: then a case runs in float16, and two of three in one of the others in turn."""
    return not CUDA and impl is not None and impl.name.startswith("triton")


def _checks(impls: bool, small_only: bool = False) -> list[Any]:
    """All that there is to check on this machine, as pytest parameters."""
    checks = []
    for op in _ops():
        module = _cases(op.name)
        cases = [*module.CASES, *(getattr(module, "GPU_CASES", []) if CUDA and not small_only else [])]
        for impl in [i for i in op.impls if _runs_here(i, module)] if impls else [None]:
            for index, case in enumerate(cases):
                for dtype in DTYPES[:1] if case.slow else DTYPES:
                    check = Check(op, impl, case, dtype)
                    slow = case.slow or (
                        _is_interpreted(impl) and dtype is not DTYPES[0] and dtype is not DTYPES[index % 3]
                    )
                    checks.append(pytest.param(check, id=check.id, marks=[pytest.mark.slow] if slow else []))
    return checks


def map_tensors(value: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """``function`` applied to every tensor in nested tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, (tuple, list)):
        return type(value)(map_tensors(item, function) for item in value)
    if isinstance(value, dict):
        return {key: map_tensors(item, function) for key, item in value.items()}
    return value


def _tensors(value: Any) -> list[torch.Tensor]:
    """Every tensor in nested tuples, lists and dicts, in order."""
    found: list[torch.Tensor] = []
    map_tensors(value, found.append)
    return found


def on_meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Shape, dtype and strides; the stride of a dimension of size 1 (and all of an empty tensor's) says nothing."""
    strides = tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)
    return tuple(tensor.shape), tensor.dtype, strides if tensor.numel() else ()


def _error(out: torch.Tensor, truth: torch.Tensor) -> float:
    """``||out - truth|| / ||truth||``; the plain norm of the difference where the truth is zero."""
    truth = truth if truth.dtype in (torch.float32, torch.float64) else truth.float()  # of 8 bits
    norm = float(torch.linalg.vector_norm(truth))
    return float(torch.linalg.vector_norm(out.to(truth.dtype) - truth)) / (norm or 1.0)


def _truth(check: Check, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """What the reference gives in a wider dtype."""
    wide = torch.float32 if check.case.slow else torch.float64

    def widen(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(wide) if tensor.is_floating_point() else tensor

    wider = [wide if arg is check.dtype else arg for arg in map_tensors(args, widen)]  # of the result
    return _tensors(check.op.reference(*wider, **map_tensors(kwargs, widen)))


def _skip_unless_possible(check: Check, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    assert check.impl is not None
    reason = check.impl.why_not(
        probe(DEVICE) if CUDA else H100, *map_tensors(args, on_meta), **map_tensors(kwargs, on_meta)
    )
    if reason:
        pytest.skip(reason)


def _launch(check: Check, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    assert check.impl is not None
    return _tensors(check.impl.launch(*args, **kwargs))


@pytest.fixture(autouse=True)
def _exact_float32() -> Iterator[None]:
    """No TF32, or the truth itself would be rounded to 10 bits; and no gradients."""
    matmul, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    with torch.no_grad():
        yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, cudnn


@pytest.mark.parametrize("name", NAMES)
def test_has_cases(name: str) -> None:
    """There is a file of cases for every op, with at least one in it."""
    assert _cases(name).CASES


@pytest.mark.parametrize("check", _checks(impls=False, small_only=True))
def test_reference_on_meta(check: Check) -> None:
    """On meta tensors the reference foretells shape, dtype and strides."""
    args, kwargs = check.arguments()
    foretold = _tensors(check.op.reference(*map_tensors(args, on_meta), **map_tensors(kwargs, on_meta)))
    real = _tensors(check.op.reference(*args, **kwargs))
    assert [_layout(t) for t in foretold] == [_layout(t) for t in real]


# NumPy, in the interpreter: x / (1 + exp(-x)) is to be 0 then
@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
@pytest.mark.parametrize("check", _checks(impls=True))
def test_matches_reference(check: Check) -> None:
    """The impl gives what the reference gives, in the same layout, as exactly, and leaves its arguments as they are."""
    args, kwargs = check.arguments()
    _skip_unless_possible(check, args, kwargs)
    before = [t.clone() for t in _tensors((args, kwargs))]
    outs = _launch(check, args, kwargs)
    for tensor, copy in zip(_tensors((args, kwargs)), before, strict=True):
        assert torch.equal(tensor, copy), "an argument was overwritten"
    del before

    eager = _tensors(check.op.reference(*args, **kwargs))
    assert [_layout(t) for t in outs] == [_layout(t) for t in eager]
    for index, (out, same, truth) in enumerate(zip(outs, eager, _truth(check, args, kwargs), strict=True)):
        error, allowed = (
            _error(out, truth),
            FACTOR[check.dtype] * _error(same, truth) + max(NOISE[check.dtype], check.case.noise),
        )
        assert error <= allowed, f"output {index}: error {error:.3g}, allowed {allowed:.3g}"


@pytest.mark.gpu
@pytest.mark.parametrize("check", _checks(impls=True, small_only=True))
def test_equal_arguments_give_equal_bits(check: Check) -> None:
    """Launch after launch, whatever lay in the memory that they are given,
    and replayed from a graph beside other work.
    """
    args, kwargs = check.arguments()
    _skip_unless_possible(check, args, kwargs)
    first = [out.clone() for out in _launch(check, args, kwargs)]
    for fill in (0.0, 1.0, float("nan")):
        # and given back: what is allocated next begins with this, and L2 holds something else
        torch.full((1 << 24,), fill, device=DEVICE)
        assert all(torch.equal(mine, out) for mine, out in zip(_launch(check, args, kwargs), first, strict=True))
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        outs = _launch(check, args, kwargs)
    busy = torch.ones(2048, 2048, device=DEVICE)
    for _ in range(3):
        with torch.cuda.stream(side):
            busy @ busy
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(mine, out) for mine, out in zip(outs, first, strict=True))


@pytest.mark.parametrize("op", _ops(), ids=lambda op: op.name)
def test_no_impl_is_left_untested(op: Op) -> None:
    """Each Triton impl applies to some case on a machine that has everything: the tests above skip where ``why_not``
    has a reason.
    """
    module = _cases(op.name)
    for impl in [i for i in op.impls if i.name.startswith("triton")]:
        reasons = set()
        for case in module.CASES:
            args, kwargs = case.make(torch.float16, torch.device("cpu"))
            reasons.add(impl.why_not(H100, *map_tensors(args, on_meta), **map_tensors(kwargs, on_meta)))
        assert None in reasons, f"{impl.name} applies to no case: {reasons}"


@pytest.mark.parametrize("op", _ops(), ids=lambda op: op.name)
def test_what_launches_is_found_by_its_name(op: Op) -> None:
    """A graph that is printed says what it calls by module and name, which are the same at each rank."""
    for impl in op.impls:
        if _imports(impl):
            launch = impl.launch
            named = getattr(importlib.import_module(launch.__module__), launch.__name__)
            assert named is inspect.unwrap(launch), impl.name


def _imports(impl: Impl) -> bool:
    try:
        impl.load()
    except ImportError:
        return False
    return True


@pytest.mark.parametrize("op", _ops(), ids=lambda op: op.name)
def test_why_not_without_cuda(op: Op) -> None:
    """On the CPU every impl has a reason not to run, so lowering falls back to the reference."""
    args, kwargs = _cases(op.name).CASES[0].make(torch.float16, torch.device("cpu"))
    for impl in op.impls:
        assert impl.why_not(probe(torch.device("cpu")), *map_tensors(args, on_meta), **map_tensors(kwargs, on_meta))


@pytest.mark.gpu
@pytest.mark.parametrize("check", _checks(impls=True))
def test_is_deterministic(check: Check) -> None:
    """Two launches give the same bits."""
    args, kwargs = check.arguments()
    _skip_unless_possible(check, args, kwargs)
    first, second = _launch(check, args, kwargs), _launch(check, args, kwargs)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("check", _checks(impls=True, small_only=True))
def test_replays_in_a_graph(check: Check) -> None:
    """Captured into a CUDA graph and replayed after the arguments were overwritten,
    the impl gives what a launch gives.
    """
    args, kwargs = check.arguments()
    _skip_unless_possible(check, args, kwargs)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        _launch(check, args, kwargs)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = _launch(check, args, kwargs)
    for tensor in _tensors((args, kwargs)):
        # other integers may be places
        if (tensor.is_floating_point() or tensor.dtype == torch.int8) and 0 not in tensor.stride():
            tensor.copy_(tensor.float().flip(-1) * 0.75)  # PyTorch multiplies no float8
    graph.replay()
    expected = _launch(check, args, kwargs)
    assert all(torch.equal(a, b) for a, b in zip(outs, expected, strict=True))
