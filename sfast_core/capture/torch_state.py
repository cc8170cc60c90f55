"""PyTorch's own settings, as a call finds them: what a forward computes, and how, depends on them as on its arguments.

They are asked at every call, so each is one C function, found once: some 4 us in all. A PyTorch that doesn't know a
setting has none to ask.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch
from torch.utils._device import DeviceContext

from ..reporting.reason import Reason
from ..reporting.reasons.calls import WATCHED
from .errors import CaptureError

State = tuple[Hashable, ...]  #: the values of all settings, in the order of :func:`names`

#: What a report calls a setting, the function of ``torch._C`` that tells it, and what it is where nobody has set it.
_SETTINGS: tuple[tuple[str, str, Hashable], ...] = (
    ("deterministic algorithms", "_get_deterministic_algorithms", False),
    ("deterministic algorithms' warn_only", "_get_deterministic_algorithms_warn_only", False),
    ("deterministic algorithms' fill_uninitialized_memory", "_get_deterministic_fill_uninitialized_memory", True),
    ("cuda.matmul.allow_fp16_accumulation", "_get_cublas_allow_fp16_accumulation", False),
    ("cuda.matmul.allow_fp16_reduced_precision_reduction", "_get_cublas_allow_fp16_reduced_precision_reduction", True),
    ("cuda.matmul.allow_bf16_reduced_precision_reduction", "_get_cublas_allow_bf16_reduced_precision_reduction", True),
    ("float32_matmul_precision", "_get_float32_matmul_precision", "highest"),
    ("cpu.allow_fp16_reduced_precision_reduction", "_get_cpu_allow_fp16_reduced_precision_reduction", False),
    ("preferred_blas_library", "_get_blas_preferred_backend", None),
    ("preferred_linalg_library", "_get_linalg_preferred_backend", None),
    ("cudnn.enabled", "_get_cudnn_enabled", True),
    ("cudnn.benchmark", "_get_cudnn_benchmark", False),
    ("cudnn.deterministic", "_get_cudnn_deterministic", False),
    ("mkldnn.enabled", "_get_mkldnn_enabled", True),
    ("mkldnn.deterministic", "_get_mkldnn_deterministic", False),
    ("nnpack.enabled", "_get_nnpack_enabled", True),
    ("cuda.flash_sdp", "_get_flash_sdp_enabled", True),
    ("cuda.fa3_sdp", "_get_fa3_sdp_enabled", False),
    ("cuda.mem_efficient_sdp", "_get_mem_efficient_sdp_enabled", True),
    ("cuda.math_sdp", "_get_math_sdp_enabled", True),
    ("cuda.cudnn_sdp", "_get_cudnn_sdp_enabled", True),
    ("cuda.overrideable_sdp", "_get_overrideable_sdp_enabled", True),
    ("cuda.allow_fp16_bf16_reduction_math_sdp", "_get_math_sdp_allow_fp16_bf16_reduction", False),
)
#: Likewise before there was one function for the precision of float32: where there is, these two raise for who uses
#: both.
_OLDER = (
    ("cuda.matmul.allow_tf32", "_get_cublas_allow_tf32", False),
    ("cudnn.allow_tf32", "_get_cudnn_allow_tf32", True),
)
#: The backends and operations that the newer function is asked for, and what they are where nobody has set them.
_FLOAT32, _TF32 = frozenset(("none", "ieee")), frozenset(("none", "tf32"))
_PRECISIONS = {
    ("generic", "all"): _FLOAT32,
    ("cuda", "all"): _FLOAT32,
    ("cuda", "matmul"): _FLOAT32,
    ("cuda", "conv"): _TF32,
    ("cuda", "rnn"): _TF32,
    ("mkldnn", "matmul"): _FLOAT32,
    ("mkldnn", "conv"): _FLOAT32,
}
_GRAD, _INFERENCE, _DTYPE, _DEVICE = "grad mode", "inference mode", "default dtype", "default device"


def torch_state() -> State:
    """The settings here and now, in this thread.

    Raises:
        CaptureError: somebody watches or changes each of torch's functions (a ``TorchFunctionMode``, a
        ``TorchDispatchMode``). A replay calls none.
    """
    try:
        return tuple([read() for read in _readers()])
    except CaptureError:
        raise
    except Exception:  # a setting that was set in two ways that contradict each other
        return tuple([_read_anyhow(read) for read in _readers()])


def changed_setting(now: State, then: State) -> str | None:
    """The name of the first setting that isn't what it was; None where all are."""
    return next((name for name, one, other in zip(names(), now, then, strict=True) if one != other), None)


def unusual(state: State) -> list[str]:
    """Settings that are not as PyTorch comes, in words.

    That gradients are off is not worth one: so are they wherever anything is compiled.
    """
    now = dict(zip(names(), state, strict=True))
    mode = [_INFERENCE] if now[_INFERENCE] else [f"{_GRAD} on"] if now[_GRAD] else []
    where = [f"{_DEVICE} {now[_DEVICE]}"] if now[_DEVICE] is not None else []
    return [
        *mode,
        *where,
        *(f"{name} {now[name]}" for name, usual in _named() if usual is not None and not _is(now[name], usual)),
    ]


def _is(value: Hashable, usual: Hashable) -> bool:
    if isinstance(usual, frozenset):
        return value in usual
    # newer versions tell two in one
    return all(part == usual for part in value) if isinstance(value, tuple) else value == usual


def names() -> tuple[str, ...]:
    """What the settings are called that this PyTorch has."""
    return tuple(name for name, _ in _named())


@functools.cache
def _named() -> tuple[tuple[str, Hashable], ...]:
    return tuple((name, usual) for name, usual, _ in _found())


@functools.cache
def _readers() -> tuple[Callable[[], Hashable], ...]:
    return tuple(read for _, _, read in _found())


def _found() -> Iterator[tuple[str, Hashable, Callable[[], Any]]]:
    """Each setting that this PyTorch has: its name, its usual value (None: not worth a word), and what reads it."""
    yield _GRAD, None, torch.is_grad_enabled
    yield _INFERENCE, None, torch.is_inference_mode_enabled
    yield _DTYPE, torch.float32, torch.get_default_dtype
    yield _DEVICE, None, _default_device
    for kind in ("cuda", "cpu"):  # the forward may switch it on
        yield f"autocast's dtype on {kind}", None, functools.partial(torch.get_autocast_dtype, kind)
    precision = getattr(torch._C, "_get_fp32_precision_getter", None)
    for name, function, usual in (*_SETTINGS, *(() if precision else _OLDER)):
        read = getattr(torch._C, function, None)
        if read is not None:
            yield name, usual, read
    if (order := getattr(torch._C, "_get_sdp_priority_order", None)) is not None:
        yield "cuda.sdp_priority_order", None, AttentionOrder(order, ask_for_attention)
    if precision is not None:
        for (backend, operation), usual in _PRECISIONS.items():
            yield (
                f"{backend}.{operation}.fp32_precision",
                usual,
                functools.partial(_precision, precision, backend, operation),
            )


class AttentionOrder:
    """The order in which attention's kernels are asked. PyTorch puts its own in place when it first looks for one on a
    GPU: a call would find another than it began with, and the next one another than the first.

    Args:
        read: tells the order.
        ask: lets PyTorch look for a kernel; returns whether it has.
    """

    def __init__(self, read: Callable[[], list[int]], ask: Callable[[], bool]) -> None:
        self._read, self._ask = read, ask
        self._asked = False

    def __call__(self) -> tuple[int, ...]:
        if not self._asked:
            self._asked = self._ask()
        return tuple(self._read())


def ask_for_attention() -> bool:
    """Let PyTorch look for an attention kernel, on a GPU that is in use: none is launched. False where none is yet."""
    if not torch.cuda.is_initialized():
        return False
    used = getattr(torch._C, "_cuda_hasPrimaryContext", lambda index: index == torch.cuda.current_device())
    for index in filter(used, range(torch.cuda.device_count())):
        with contextlib.suppress(Exception), torch.inference_mode(False):
            x = torch.empty(1, 1, 8, 8, dtype=torch.float16, device=torch.device("cuda", index))
            torch._fused_sdp_choice(x, x, x)
            return True
    return False


def _precision(read: Callable[[str, str], str], backend: str, operation: str) -> str:
    """The precision that an operation has: where none is set, float32's own, so that TF32 switched on and off again
    leaves what was before.
    """
    value = read(backend, operation)
    return "ieee" if value == "none" and operation != "all" else value


def _read_anyhow(read: Callable[[], Hashable]) -> Hashable:
    try:
        return read()
    except CaptureError:
        raise
    except Exception as error:
        return type(error).__name__


def _default_device() -> Hashable:
    """The device of ``torch.set_default_device`` or of a ``with torch.device(...)``: that of the innermost; None where
    there is none.

    Raises:
        CaptureError: another mode than these stands around the call.
    """
    if torch._C._len_torch_dispatch_stack():
        raise CaptureError(watched_by(torch._C._get_dispatch_stack_at(torch._C._len_torch_dispatch_stack() - 1)))
    found = None
    for index in range(torch._C._len_torch_function_stack()):
        mode = torch._C._get_function_stack_at(index)
        if not isinstance(mode, DeviceContext):
            raise CaptureError(watched_by(mode))
        found = mode.device
    return found


def watched_by(mode: object) -> Reason:
    """That this mode of PyTorch's waits for the functions of a call."""
    return WATCHED(mode=type(mode).__name__)
