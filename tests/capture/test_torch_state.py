"""PyTorch's settings: each one that can be set makes another signature, which says so; asking for them is right in
every version.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from sfast_core.capture import CaptureError, Signature, difference
from sfast_core.capture.torch_state import (
    AttentionOrder,
    ask_for_attention,
    changed_setting,
    names,
    torch_state,
    unusual,
)
from tests.settings import set_to
from tests.tracing import try_record

X = torch.zeros(2, 3)


@contextlib.contextmanager
def called(switch: Callable[..., Any], value: Any, before: Any, **more: Any) -> Iterator[None]:
    switch(value, **more)
    try:
        yield
    finally:
        switch(before)


@contextlib.contextmanager
def in_another_order() -> Iterator[None]:
    """PyTorch tries its kernels for attention in this order."""
    before = torch._C._get_sdp_priority_order()
    torch._C._set_sdp_priority_order(before[::-1])
    try:
        yield
    finally:
        torch._C._set_sdp_priority_order(before)


def of_c(name: str, value: Any, before: Any) -> Any:
    """By a function of ``torch._C``, where Python has none."""
    switch = getattr(torch._C, name, None)
    return called(switch, value, before) if switch else pytest.skip(f"this PyTorch has no {name}")


@pytest.fixture(autouse=True)
def as_pytorch_comes() -> Iterator[None]:
    yield
    put_back()


def put_back() -> None:
    """Setting the precision of float32 sets others along with it, and not back."""
    torch.set_float32_matmul_precision("highest")
    if hasattr(torch._C, "_set_fp32_precision_setter"):
        for place in (
            ("generic", "all"),
            ("cuda", "all"),
            ("cuda", "matmul"),
            ("mkldnn", "matmul"),
            ("mkldnn", "conv"),
            ("mkldnn", "all"),
        ):
            torch._C._set_fp32_precision_setter(*place, "none")
        CUDNN.allow_tf32 = True


@contextlib.contextmanager
def float32_as(backend: str, operation: str, value: str) -> Iterator[None]:
    before = torch._C._get_fp32_precision_getter(backend, operation)
    torch._C._set_fp32_precision_setter(backend, operation, value)
    try:
        yield
    finally:
        torch._C._set_fp32_precision_setter(backend, operation, before)


MATMUL, CUDNN = torch.backends.cuda.matmul, torch.backends.cudnn
SETTINGS: dict[str, tuple[str, Callable[[], Any]]] = {
    "grad": ("grad mode", torch.no_grad),
    "inference": ("grad mode", torch.inference_mode),  # which is off in there, too
    "dtype": ("default dtype", lambda: called(torch.set_default_dtype, torch.float64, torch.float32)),
    "device": ("default device", lambda: called(torch.set_default_device, "meta", None)),
    "device context": ("default device", lambda: torch.device("meta")),
    "deterministic": ("deterministic algorithms", lambda: called(torch.use_deterministic_algorithms, True, False)),
    "deterministic, warn_only": (
        "deterministic algorithms",
        lambda: called(torch.use_deterministic_algorithms, True, False, warn_only=True),
    ),
    "fill": (
        "deterministic algorithms' fill_uninitialized_memory",
        lambda: set_to(torch.utils.deterministic, "fill_uninitialized_memory", False),
    ),
    "fp16 accumulation": (
        "cuda.matmul.allow_fp16_accumulation",
        lambda: set_to(MATMUL, "allow_fp16_accumulation", True),
    ),
    "fp16 reduction": (
        "cuda.matmul.allow_fp16_reduced_precision_reduction",
        lambda: set_to(MATMUL, "allow_fp16_reduced_precision_reduction", False),
    ),
    "bf16 reduction": (
        "cuda.matmul.allow_bf16_reduced_precision_reduction",
        lambda: set_to(MATMUL, "allow_bf16_reduced_precision_reduction", False),
    ),
    "matmul precision": (
        "float32_matmul_precision",
        lambda: called(torch.set_float32_matmul_precision, "high", "highest"),
    ),
    "TF32": ("", lambda: set_to(MATMUL, "allow_tf32", True)),
    "cuDNN's TF32": ("", lambda: set_to(CUDNN, "allow_tf32", False)),
    "autocast's dtype on a GPU, where it is off": (
        "autocast's dtype on cuda",
        lambda: called(functools.partial(torch.set_autocast_dtype, "cuda"), torch.bfloat16, torch.float16),
    ),
    "autocast's dtype, where it is off": (
        "autocast's dtype on cpu",
        lambda: called(functools.partial(torch.set_autocast_dtype, "cpu"), torch.float16, torch.bfloat16),
    ),
    "cudnn": ("cudnn.enabled", lambda: set_to(CUDNN, "enabled", False)),
    "benchmark": ("cudnn.benchmark", lambda: set_to(CUDNN, "benchmark", True)),
    "cudnn deterministic": ("cudnn.deterministic", lambda: set_to(CUDNN, "deterministic", True)),
    "mkldnn": ("mkldnn.enabled", lambda: torch.backends.mkldnn.flags(enabled=False)),
    "flash": ("cuda.flash_sdp", lambda: called(torch.backends.cuda.enable_flash_sdp, False, True)),
    "efficient": ("cuda.mem_efficient_sdp", lambda: called(torch.backends.cuda.enable_mem_efficient_sdp, False, True)),
    "math": ("cuda.math_sdp", lambda: called(torch.backends.cuda.enable_math_sdp, False, True)),
    "cudnn attention": ("cuda.cudnn_sdp", lambda: called(torch.backends.cuda.enable_cudnn_sdp, False, True)),
    "mkldnn deterministic": ("mkldnn.deterministic", lambda: of_c("_set_mkldnn_deterministic", True, False)),
    "nnpack": ("nnpack.enabled", lambda: of_c("_set_nnpack_enabled", False, True)),
    "third flash": ("cuda.fa3_sdp", lambda: of_c("_set_sdp_use_fa3", True, False)),
    "overrideable attention": ("cuda.overrideable_sdp", lambda: of_c("_set_sdp_use_overrideable", False, True)),
    "priority of attentions": ("cuda.sdp_priority_order", lambda: in_another_order()),
    "sums of attention": (
        "cuda.allow_fp16_bf16_reduction_math_sdp",
        lambda: of_c("_set_math_sdp_allow_fp16_bf16_reduction", True, False),
    ),
    "one attention": (
        "cuda.flash_sdp",
        lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    ),
    "order of attentions": (
        "",
        lambda: torch.nn.attention.sdpa_kernel(
            [
                getattr(torch.nn.attention.SDPBackend, name)
                for name in ("MATH", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION")
            ],
            set_priority=True,
        ),
    ),
}
if hasattr(torch._C, "_get_fp32_precision_getter"):
    SETTINGS |= {
        f"{backend} {operation}": (
            "",
            lambda b=backend, o=operation: float32_as(b, o, "tf32" if o == "matmul" else "ieee"),
        )
        for backend, operation in (
            ("generic", "all"),
            ("cuda", "matmul"),
            ("cuda", "conv"),
            ("cuda", "rnn"),
            ("mkldnn", "matmul"),
        )
    }


@pytest.mark.parametrize("setting", SETTINGS)
def test_each_setting_is_part_of_the_signature_and_has_a_name(setting: str) -> None:
    name, switched = SETTINGS[setting]
    before = Signature((X,), {})
    with switched():
        other = Signature((X,), {})
        assert other.key == Signature((X,), {}).key and hash(other.key) == hash(Signature((X,), {}).key)
    assert before.key != other.key and before.forms == other.forms
    found = changed_setting(other.state, before.state)
    assert found in names() and name in ("", found)
    assert difference(other.key, before.key) == f"PyTorch's setting {found!r}"


#: What changes along with others alone, or can't be set on a CPU.
ALONG = frozenset("generic.all cuda.all cuda.matmul cuda.matmul.allow_tf32 mkldnn.conv mkldnn.matmul".split())
NOT_HERE = frozenset(
    "cpu.allow_fp16_reduced_precision_reduction preferred_blas_library preferred_linalg_library".split()
)


@pytest.mark.parametrize("name", names())
def test_without_any_one_of_them_two_states_would_be_one(name: str) -> None:
    states = [torch_state()]
    for _, switched in SETTINGS.values():
        try:
            with switched():
                states.append(torch_state())
        except pytest.skip.Exception:
            pass
        put_back()
    without = [{key: value for key, value in zip(names(), state, strict=True) if key != name} for state in states]
    told_apart = any(a == b and states[i] != states[j] for i, a in enumerate(without) for j, b in enumerate(without))
    assert (
        told_apart
        or name in NOT_HERE
        or name.removesuffix(".fp32_precision") in ALONG
        or name == "float32_matmul_precision"
    )


@pytest.mark.parametrize(
    "setting", ["inference", "dtype", "device", "deterministic", "fp16 accumulation", "benchmark", "math", "TF32"]
)
def test_a_report_tells_signatures_with_other_settings_apart(setting: str) -> None:
    _, switched = SETTINGS[setting]
    before = str(Signature((X,), {}))
    with switched():
        assert str(Signature((X,), {})) != before


def test_inference_mode_and_no_grad_are_two() -> None:
    with torch.no_grad():
        one = torch_state()
    with torch.inference_mode():
        other = torch_state()
    assert changed_setting(one, other) == "inference mode"
    assert unusual(one) == [] and unusual(other) == ["inference mode"] and unusual(torch_state()) == ["grad mode on"]


@pytest.mark.parametrize("backend", [MATMUL, CUDNN])
def test_tf32_switched_and_switched_back_is_what_it_was(backend: Any) -> None:
    """PyTorch then says "ieee" where it said "none": the same arithmetic, and no reason to trace again."""
    before = torch_state()
    with set_to(backend, "allow_tf32", not backend.allow_tf32):
        assert torch_state() != before
    assert torch_state() == before


def test_settings_that_contradict_each_other_are_a_state_too() -> None:
    """PyTorch raises for who asks for one when it was set in the older way and in the newer one."""
    if not hasattr(torch._C, "_get_fp32_precision_getter"):
        pytest.skip("this PyTorch has one way")
    before = torch_state()
    with set_to(MATMUL, "allow_tf32", True):
        MATMUL.fp32_precision = "ieee"
        mixed = torch_state()
        MATMUL.fp32_precision = "none"
    assert mixed != before and changed_setting(mixed, before) is not None


class Watching(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Dispatching(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [Watching, Dispatching])
def test_who_watches_every_function_would_miss_a_replay(mode: Any) -> None:
    with (
        mode(),
        torch.device("cpu"),
        pytest.raises(CaptureError, match=f"{mode.__name__} watches each of torch's functions"),
    ):
        torch_state()


class Switching(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.backends.cudnn.benchmark = True
        return x * 2


def test_a_call_that_leaves_a_setting_changed_leaves_no_trace() -> None:
    with set_to(CUDNN, "benchmark", False):
        _, trace = try_record(Switching(), X)
    assert getattr(trace, "reason", None) == "the call itself changes PyTorch's setting 'cudnn.benchmark'"


class Circular(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        result: list[Any] = [x * 2]
        result.append(result)
        return result


def test_a_result_that_holds_itself_leaves_no_trace() -> None:
    result, trace = try_record(Circular(), X)
    assert result[1] is result and getattr(trace, "reason", None) == "the result holds a list that is also elsewhere"


def test_the_order_that_pytorch_puts_in_place_itself_is_there_from_the_first_call_on() -> None:
    """At its first attention on a GPU, in the midst of a call."""
    order, in_use = [1, 2, 0], [False]

    def ask() -> bool:
        if in_use[0]:
            order[:] = [3, 1, 2, 0]
        return in_use[0]

    reader = AttentionOrder(lambda: order, ask)
    assert reader() == (1, 2, 0), "no GPU is in use yet"
    in_use[0] = True
    assert reader() == (3, 1, 2, 0)
    order[:] = [0, 1, 2, 3]
    assert reader() == (0, 1, 2, 3), "what somebody sets is seen, and stays"


def test_without_a_gpu_in_use_nobody_is_asked() -> None:
    if not torch.cuda.is_initialized():
        assert not ask_for_attention()
