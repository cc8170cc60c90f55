"""Where a call's time on the GPU goes: the profiler's kernels by kind, told by their names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .tables import markdown

#: The first that a name matches. Ours by the names of the kernels, libraries' by the parts of theirs that have been
#: stable.
_KINDS: tuple[tuple[str, str], ...] = (
    ("GEGLU with its product", r"linear_geglu|^gate_kernel"),
    ("attention", r"attention|halves_kernel|sdpa|fmha|flash|softmax"),
    (
        "GroupNorm",
        r"group_?norm|group_statistics|RowwiseMoments|ComputeFusedParams|\b(one|moments|apply|cluster)_kernel",
    ),
    ("LayerNorm, residual sums", r"layer_?norm"),
    ("norms and rotations of heads", r"norm_rope|rms_?norm"),
    (
        "convolution",
        r"fprop|dgrad|implicit_gemm|conv(?!ert)|cudnn|nchwToNhwc|nhwcToNchw|AddPadding|transposed_weight|phase_weights|epilogue_kernel|upsample",
    ),
    ("matrix products", r"linear_few|gemm|nvjet|cutlass|cublas|splitK|gemv"),
    ("concatenation", r"CatArray"),
    ("copies", r"memcpy|memset|copy_kernel|direct_copy|transpose|fill_kernel|zero_kernel"),
    ("elementwise", r"elementwise|silu|gelu|BinaryFunctor|sinusoids"),
)
_PATTERNS = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _KINDS)
OTHER = "other"
KINDS = (*(kind for kind, _ in _KINDS), OTHER)


@dataclass
class KernelRow:
    """One kind of kernel in one call of a model by a provider."""

    model: str
    provider: str
    kind: str
    ms: float
    launches: float


def kind(name: str) -> str:
    """The kind of a kernel by its name, as the profiler gives it."""
    return next((kind for kind, pattern in _PATTERNS if pattern.search(name)), OTHER)


def kernel_rows(model: str, provider: str, events: Iterable[Any], calls: int) -> list[KernelRow]:
    """The kinds that take any time, the longest first.

    Args:
        model: what was called.
        provider: by whom.
        events: the profiler's ``key_averages()``; what took no time on the GPU is left out.
        calls: how many calls were profiled.
    """
    rows: dict[str, KernelRow] = {}
    for event in events:
        if us := _device_us(event):
            row = rows.setdefault(kind(event.key), KernelRow(model, provider, kind(event.key), 0.0, 0.0))
            row.ms += us / 1e3 / calls
            row.launches += event.count / calls
    return sorted(rows.values(), key=lambda row: -row.ms)


def _device_us(event: Any) -> float:
    us = getattr(event, "self_device_time_total", None)
    return float(event.self_cuda_time_total if us is None else us)  # its name until PyTorch 2.5


def kernel_table(rows: list[KernelRow]) -> str:
    """Markdown: a line per kind, a column per model and provider; ms, share and number of launches."""
    columns = list(dict.fromkeys((row.model, row.provider) for row in rows))
    totals = {column: sum(row.ms for row in rows if (row.model, row.provider) == column) for column in columns}
    launches = {column: sum(row.launches for row in rows if (row.model, row.provider) == column) for column in columns}
    found = {(row.kind, row.model, row.provider): row for row in rows}

    def ms_from_the_last_column(name: str) -> list[float]:
        return [
            found[name, model, provider].ms if (name, model, provider) in found else 0.0
            for model, provider in reversed(columns)
        ]

    header = ["kernels of one call", *(f"{model}, {provider}" for model, provider in columns)]
    lines = []
    for name in sorted({row.kind for row in rows}, key=ms_from_the_last_column, reverse=True):
        cells = []
        for column in columns:
            row = found.get((name, *column))
            cells.append(f"{row.ms:.2f} ms, {100 * row.ms / totals[column]:.0f}% ({row.launches:.0f})" if row else "")
        lines.append([name, *cells])
    lines.append(["**all**", *(f"**{totals[column]:.2f} ms** ({launches[column]:.0f})" for column in columns)])
    return markdown(header, lines)
