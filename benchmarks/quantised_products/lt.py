"""cuBLASLt's products of float8: with a bias and GELU in the epilogue, scales by tensor or by row and column, several algorithms.

Numbers of attributes are those of ``cublasLt.h`` (CUDA 12.9 and 13.0).
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

import torch

from sfast_core.ops.cublaslt.library import HeuristicResult, Operation, Preference, loaded

_E4M3, _BF16, _F32, _COMPUTE_32F = 28, 14, 0, 68
_A_SCALE, _B_SCALE, _FAST_ACCUM, _BIAS_TYPE, _A_SCALE_MODE, _B_SCALE_MODE = 17, 18, 25, 26, 31, 32
_OUTER_VECTOR = 3  # CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
EPILOGUES = {"none": 1, "bias": 4, "gelu_bias": 36}
WORKSPACE = 32 << 20


class Float8Product:
    """``x [M, K] @ weight [N, K]^T`` in bfloat16, as described by its arguments, with ``algorithms`` to choose from.

    Raises:
        RuntimeError: cuBLASLt has none.
    """

    def __init__(
        self, x: torch.Tensor, x_scale: torch.Tensor, weight: torch.Tensor, weight_scale: torch.Tensor, bias: torch.Tensor, epilogue: str, fast: bool
    ) -> None:
        self._library = library = loaded()
        self.out = torch.empty(x.shape[0], weight.shape[0], dtype=torch.bfloat16, device=x.device)
        self._workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device=x.device)
        self._kept = (x, x_scale, weight, weight_scale, bias)
        self._handle = self._make("")
        self._operation = self._make("MatmulDesc", _COMPUTE_32F, _F32)
        by_row = x_scale.numel() > 1
        settings: list[tuple[int, Any]] = [
            (Operation.TRANSPOSE_A, ctypes.c_int32(1)),
            (Operation.TRANSPOSE_B, ctypes.c_int32(0)),
            (Operation.EPILOGUE, ctypes.c_uint32(EPILOGUES[epilogue])),
            (_A_SCALE, ctypes.c_void_p(weight_scale.data_ptr())),
            (_B_SCALE, ctypes.c_void_p(x_scale.data_ptr())),
            (_FAST_ACCUM, ctypes.c_int8(fast)),
        ]
        if by_row:
            settings += [(_A_SCALE_MODE, ctypes.c_int32(_OUTER_VECTOR)), (_B_SCALE_MODE, ctypes.c_int32(_OUTER_VECTOR))]
        if epilogue != "none":
            settings += [(Operation.BIAS_POINTER, ctypes.c_void_p(bias.data_ptr())), (_BIAS_TYPE, ctypes.c_int32(_BF16))]
        for attribute, value in settings:
            library.cublasLtMatmulDescSetAttribute(self._operation, attribute, ctypes.byref(value), ctypes.sizeof(value))
        (m, k), n = x.shape, weight.shape[0]
        self._weight = self._make("MatrixLayout", _E4M3, k, n, k)
        self._x = self._make("MatrixLayout", _E4M3, k, m, k)
        self._out = self._make("MatrixLayout", _BF16, n, m, n)
        preference = self._make("MatmulPreference")
        size = ctypes.c_uint64(WORKSPACE)
        library.cublasLtMatmulPreferenceSetAttribute(preference, Preference.MAX_WORKSPACE_BYTES, ctypes.byref(size), 8)
        results, found = (HeuristicResult * 6)(), ctypes.c_int()
        with contextlib.suppress(RuntimeError):
            library.cublasLtMatmulAlgoGetHeuristic(
                self._handle, self._operation, self._weight, self._x, self._out, self._out, preference, 6, results, ctypes.byref(found)
            )
        self.algorithms = [result for result in results[: found.value] if result.status == 0]
        if not self.algorithms:
            raise RuntimeError("cuBLASLt has no algorithm")

    def _make(self, kind: str, *arguments: Any) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        getattr(self._library, f"cublasLt{kind}Create")(ctypes.byref(made), *arguments)
        return made

    def launch(self, rank: int) -> torch.Tensor:
        """Queue it by the algorithm at ``rank``."""
        one, zero, algorithm = ctypes.c_float(1.0), ctypes.c_float(0.0), self.algorithms[rank]
        x, _, weight, _, _ = self._kept
        self._library.cublasLtMatmul(
            self._handle,
            self._operation,
            ctypes.byref(one),
            weight.data_ptr(),
            self._weight,
            x.data_ptr(),
            self._x,
            ctypes.byref(zero),
            self.out.data_ptr(),
            self._out,
            self.out.data_ptr(),
            self._out,
            ctypes.byref(algorithm.algorithm),
            self._workspace.data_ptr(),
            algorithm.workspace_bytes,
            torch.cuda.current_stream().cuda_stream,
        )
        return self.out
