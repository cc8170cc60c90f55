"""Products, with or without bias and residual, as cuBLASLt takes them, made once per problem and kept.

cuBLASLt counts along columns first. A row-major [rows, columns] is to it a matrix of ``columns`` rows, so it is asked
for the transpose::

    out^T [N, M]  =  (weight^T [K, N])^T  @  x^T [K, M]  +  residual^T [N, M]  +  bias [N], the same for each column
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from .cublaslt_library import (
    COMPUTE_16F,
    COMPUTE_32F,
    DataType,
    Epilogue,
    HeuristicResult,
    Operation,
    Preference,
    ReductionScheme,
    Transpose,
    loaded,
)

ALIGNMENT = 16  #: bytes; what each operand begins on, and each row of it
RANKS = 3  #: algorithms to choose from
WORKSPACE_LIMIT = 32 << 20  # what NVIDIA advises for Hopper; others never ask for more
_HALF_ONE = 0x3C00  # 1.0 in float16
DTYPES = {torch.float16: DataType.R_16F, torch.bfloat16: DataType.R_16BF}


class Problem(NamedTuple):
    """All that a plan depends on; rows of ``x`` [M, K] and ``weight`` [N, K] begin so many elements apart.

    ``half_sums``: float16 is summed in float16, instead of in float32.
    """

    device: int
    dtype: torch.dtype
    m: int
    n: int
    k: int
    x_stride: int
    weight_stride: int
    bias: bool
    half_sums: bool = False


class Addresses(NamedTuple):
    """Where the operands lie. ``residual``, if there is one, and ``out`` are contiguous [M, N], perhaps the same."""

    x: int
    weight: int
    bias: int | None
    residual: int | None
    out: int


@dataclass(frozen=True)
class Plan:
    """A problem as cuBLASLt's descriptors, and its algorithms, from the expected fastest on."""

    library: Any
    handle: ctypes.c_void_p
    operation: ctypes.c_void_p
    x: ctypes.c_void_p
    weight: ctypes.c_void_p
    out: ctypes.c_void_p
    algorithms: tuple[HeuristicResult, ...]
    one: ctypes.c_float | ctypes.c_uint16  # as wide as what is summed
    zero: ctypes.c_float | ctypes.c_uint16
    lock: threading.Lock = field(default_factory=threading.Lock)

    def algorithm(self, rank: int) -> HeuristicResult:
        """The algorithm at ``rank`` (0: first), or the last."""
        return self.algorithms[min(rank, len(self.algorithms) - 1)]

    def launch(self, algorithm: HeuristicResult, addresses: Addresses, workspace: int, stream: int) -> None:
        """Enqueue the product. Legal in a capture: addresses and factors become the kernel's arguments here.

        Args:
            algorithm: one of the plan's.
            addresses: of the operands, laid out as the problem says.
            workspace: the address of ``algorithm.workspace_bytes`` on 256 bytes.
            stream: of the problem's device, which is the current one.

        Raises:
            RuntimeError: cuBLASLt refused.
        """
        without = addresses.residual is None
        with self.lock:  # the bias is an attribute of the operation, not an argument
            if addresses.bias is not None:
                _set(
                    self.library.cublasLtMatmulDescSetAttribute,
                    self.operation,
                    Operation.BIAS_POINTER,
                    ctypes.c_void_p(addresses.bias),
                )
            self.library.cublasLtMatmul(
                self.handle,
                self.operation,
                ctypes.byref(self.one),
                addresses.weight,
                self.weight,
                addresses.x,
                self.x,
                ctypes.byref(self.zero if without else self.one),
                addresses.out if without else addresses.residual,  # times zero it isn't read
                self.out,
                addresses.out,
                self.out,
                ctypes.byref(algorithm.algorithm),
                workspace,
                algorithm.workspace_bytes,
                stream,
            )


def _set(function: Callable[..., Any], descriptor: ctypes.c_void_p, attribute: int, value: Any) -> None:
    function(descriptor, attribute, ctypes.byref(value), ctypes.sizeof(value))


def build(library: Any, handle: ctypes.c_void_p, problem: Problem) -> Plan:
    """Describe the problem and ask for algorithms. Launches nothing.

    Raises:
        RuntimeError: cuBLASLt has none.
    """
    dtype = DTYPES[problem.dtype]
    with contextlib.ExitStack() as made:

        def make(kind: str, *arguments: Any) -> ctypes.c_void_p:
            made_object = ctypes.c_void_p()
            getattr(library, f"cublasLt{kind}Create")(ctypes.byref(made_object), *arguments)
            made.callback(getattr(library, f"cublasLt{kind}Destroy"), made_object)
            return made_object

        sums = (COMPUTE_16F, DataType.R_16F) if problem.half_sums else (COMPUTE_32F, DataType.R_32F)
        operation = make("MatmulDesc", *sums)
        set_operation = functools.partial(_set, library.cublasLtMatmulDescSetAttribute, operation)
        set_operation(Operation.TRANSPOSE_A, ctypes.c_int32(Transpose.YES))
        set_operation(Operation.TRANSPOSE_B, ctypes.c_int32(Transpose.NO))
        set_operation(Operation.EPILOGUE, ctypes.c_uint32(Epilogue.BIAS if problem.bias else Epilogue.DEFAULT))
        if problem.bias:  # not read for the heuristic: it only tells how a bias will be aligned
            set_operation(Operation.BIAS_POINTER, ctypes.c_void_p(ALIGNMENT))
        weight = make("MatrixLayout", dtype, problem.k, problem.n, problem.weight_stride)
        x = make("MatrixLayout", dtype, problem.k, problem.m, problem.x_stride)
        out = make("MatrixLayout", dtype, problem.n, problem.m, problem.n)
        algorithms = _algorithms(library, handle, operation, weight, x, out)
        if not algorithms:
            raise RuntimeError(f"cuBLASLt has no algorithm for {problem}")
        made.pop_all()  # they are the plan's now
    factors = (
        (ctypes.c_uint16(_HALF_ONE), ctypes.c_uint16(0))
        if problem.half_sums
        else (ctypes.c_float(1.0), ctypes.c_float(0.0))
    )
    return Plan(library, handle, operation, x, weight, out, algorithms, *factors)


def _algorithms(
    library: Any, handle: ctypes.c_void_p, operation: Any, weight: Any, x: Any, out: Any
) -> tuple[HeuristicResult, ...]:
    preference = ctypes.c_void_p()
    library.cublasLtMatmulPreferenceCreate(ctypes.byref(preference))
    try:
        set_preference = functools.partial(_set, library.cublasLtMatmulPreferenceSetAttribute, preference)
        set_preference(Preference.MAX_WORKSPACE_BYTES, ctypes.c_uint64(WORKSPACE_LIMIT))
        # Parts of a sum are added as they were summed, in float32 mostly, and in a fixed order: exact, and the same
        # bits at every run.
        set_preference(Preference.REDUCTION_SCHEME_MASK, ctypes.c_uint32(ReductionScheme.COMPUTE_TYPE))
        for matrix in (
            Preference.MIN_ALIGNMENT_A_BYTES,
            Preference.MIN_ALIGNMENT_B_BYTES,
            Preference.MIN_ALIGNMENT_C_BYTES,
            Preference.MIN_ALIGNMENT_D_BYTES,
        ):
            set_preference(matrix, ctypes.c_uint32(ALIGNMENT))
        results, found = (HeuristicResult * RANKS)(), ctypes.c_int()
        library.cublasLtMatmulAlgoGetHeuristic(
            handle, operation, weight, x, out, out, preference, RANKS, results, ctypes.byref(found)
        )
    finally:
        library.cublasLtMatmulPreferenceDestroy(preference)
    return tuple(result for result in results[: found.value] if result.status == 0)


class PlanCache:
    """The plans of this process, each made once and never dropped: a few hundred bytes for each shape.

    Thread-safe. A handle has no settings, so all threads share the one of their device.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        self._lock = threading.Lock()
        self._plans: dict[Problem, Plan] = {}
        self._handles: dict[int, ctypes.c_void_p] = {}

    def plan(self, problem: Problem) -> Plan:
        """The plan of a problem, whose device is the current one.

        Raises:
            RuntimeError: cuBLASLt has none.
        """
        plan = self._plans.get(problem)
        if plan is None:
            with self._lock:
                plan = self._plans.get(problem) or build(self._library, self._handle(problem.device), problem)
                self._plans[problem] = plan
        return plan

    def _handle(self, device: int) -> ctypes.c_void_p:
        handle = self._handles.get(device)
        if handle is None:
            handle = ctypes.c_void_p()
            self._library.cublasLtCreate(ctypes.byref(handle))
            self._handles[device] = handle
        return handle


@functools.cache
def plans() -> PlanCache:
    """The process's plans."""
    return PlanCache(loaded())
