"""An op's signature stands once: its impls have it, and what they need is said in a table from which the reasons are
made.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from sfast_core.machine.numerics import CUDNN, Numerics
from sfast_core.ops import all_ops
from sfast_core.ops.needs import FLOATS, HALVES, HOPPER, Needs
from sfast_core.ops.spec import Arguments, Impl, Op
from sfast_core.target import Target
from tests.targets import A100, B200, H100

IMPLS = [pytest.param(op, impl, id=f"{op.name}.{impl.name}") for op in all_ops().values() for impl in op.impls]


@pytest.mark.parametrize(("op", "impl"), IMPLS)
def test_each_launch_has_the_parameters_of_its_op(op: Op, impl: Impl) -> None:
    try:
        module = impl.load()
    except ImportError as error:
        pytest.skip(str(error))
    assert callable(impl.launch)
    why_not = getattr(module, "why_not", None)
    assert why_not is None or list(inspect.signature(why_not).parameters) == ["target", "call"]
    named = {
        *(impl.needs.typed.split() if impl.needs.dtypes else ()),
        *impl.needs.alike.split(),
        *(["x"] if impl.needs.alike or impl.needs.dims else []),
    }
    assert not (impl.needs.dtypes or impl.needs.alike or impl.needs.dims) or named <= set(
        inspect.signature(op.reference).parameters
    )


def meaning(x: torch.Tensor, weight: torch.Tensor | None = None, times: int = 1) -> torch.Tensor:
    return x * times


@pytest.mark.parametrize(
    "launch",
    [
        lambda x, weight=None: x,
        lambda x, times=1, weight=None: x,
        lambda x, weight=None, times=2: x,
        lambda x, weight, times=1: x,
    ],
    ids=["one less", "another order", "another default", "no default"],
)
def test_a_launch_with_other_parameters_is_refused(launch: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tests.ops.fast_impl", SimpleNamespace(launch=launch))  # type: ignore[arg-type]
    (impl,) = Op("times", meaning, (Impl("fast"),)).impls
    with pytest.raises(TypeError, match=r"meaning.fast: launch\(x.* has not the parameters of meaning\(x"):
        impl.launch  # noqa: B018


X, HALF, INT = (torch.empty(2, 4, dtype=dtype, device="meta") for dtype in (torch.float32, torch.float16, torch.int8))
NO_CUDNN = replace(H100, numerics=Numerics(switched_off=(CUDNN,)))


@pytest.mark.parametrize(
    ("needs", "target", "args", "reason"),
    [
        (Needs(), H100, (X,), None),
        (Needs(), Target(torch.device("cpu")), (X,), "needs CUDA"),
        (Needs((9, 0)), A100, (X,), "needs compute capability 9.0, this is 8.0"),
        (HOPPER, B200, (X,), "is for compute capability 9.0, this is 10.0"),
        (
            Needs((7, 5), triton=True),
            replace(A100, capability=(7, 5)),
            (X,),
            "needs compute capability 8.0, this is 7.5",
        ),
        (Needs(triton=True), replace(H100, triton=False), (X,), "needs Triton"),
        (Needs(allowed=(CUDNN,)), NO_CUDNN, (X,), f"{CUDNN} is switched off in PyTorch"),
        (Needs(dtypes=HALVES), H100, (X,), "x is float32, must be float16 or bfloat16"),
        (
            Needs(dtypes=FLOATS, typed="x weight"),
            H100,
            (X, INT),
            "weight is int8, must be float16 or bfloat16 or float32",
        ),
        (Needs(dtypes=FLOATS, typed="x weight"), H100, (X, HALF), None),
        (Needs(alike="weight"), H100, (X, HALF), "weight is float16, x is float32"),
        (Needs(alike="weight"), H100, (X,), None),
        (Needs(dims=4), H100, (X,), "x is 2-D, must be 4-D"),
    ],
)
def test_reasons_are_made_from_what_is_declared(
    needs: Needs, target: Target, args: tuple[torch.Tensor, ...], reason: str | None
) -> None:
    assert needs.why_not(target, vars(Arguments.of(meaning, *args))) == reason


def test_the_extension_is_asked_last(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    own = SimpleNamespace(why_not=lambda target, call: "too many" if call.times > 1 else None)
    monkeypatch.setitem(sys.modules, "tests.ops.fast_impl", own)  # type: ignore[arg-type]
    (impl,) = Op("times", meaning, (Impl("fast", needs=Needs(extension="status")),)).impls
    assert impl.why_not(H100, X, times=2) == "fast: too many" and asked == []
    assert impl.why_not(H100, X) is None and asked == ["status"]
