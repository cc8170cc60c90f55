"""``COMFYUI_PATH=... python -m benchmarks.families``: every model family through the node, small: fused or not and why,
how exactly, by which passes.

Each is sampled by a real ComfyUI, plain and through the node, with the same random weights. Errors are relative L2
distances of the latent behind one step to float32's. Passes are counted as for an H100, on whatever machine: which of
them apply depends on which kernels there are. With a CUDA device also what a step takes, which for models as small as
these tells of launches alone. ``--wide``, on a CUDA device, measures some at their true width and length instead,
beside torch.compile (``--no-compile`` leaves that out) and the time that their products, convolutions and attention
take at least.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from sfast_core.capture.calls import function_name

from .command import comfyui_for, parser_of, version
from .distance import distance
from .family_models import FAMILIES, Family
from .family_sampling import applied, build, sample, step_ms
from .machine import facts, write
from .tables import markdown
from .tables import read as rows_in

_PLAIN = frozenset(
    "canonicalise drop_units drop_copies simplify_shapes simplify_shapes_again share_common fold_constants"
    " place_constants".split()
)
_VIEWS = frozenset(
    "reshape view permute transpose movedim t unsqueeze squeeze expand expand_as view_as element chunk split unbind"
    " narrow flatten unflatten select __getitem__ getattr detach split_with_sizes tensor_split".split()
)


@dataclass
class Row:
    """One family."""

    model: str
    status: str  #: "fused", "in segments", "eager" or "not built"
    why: str  #: not all of it is fused
    calls: int  #: torch functions that one call of the model is recorded as, without views
    left: int  #: calls of the program that computes it
    passes: str  #: the places that each fusion changed
    error: float  #: to float32
    eager_error: float  #: ComfyUI's own
    eager_ms: float = float("nan")
    ms: float = float("nan")


def measure(name: str, family: Family, device: torch.device) -> Row:
    """One family; what ComfyUI can't build is a row, too."""
    try:
        patcher = build(family, device, torch.bfloat16)
        eager, exact = sample(patcher, family, 1), sample(build(family, device, torch.float32), family, 1)
        with _counted() as counted:
            report, ours = _fast(patcher, family)
    except Exception as error:
        return Row(
            name,
            "not built",
            f"{type(error).__name__}: {str(error).splitlines()[0][:100]}",
            0,
            0,
            "",
            float("nan"),
            float("nan"),
        )
    (status, why), (before, after, passes) = _became(report), _largest(counted)
    row = Row(name, status, why, before, after, passes, distance(ours, exact), distance(eager, exact))
    if device.type == "cuda":
        row.eager_ms, row.ms = step_ms(patcher, family), step_ms(applied(patcher), family)
    return row


def _became(report: Any) -> tuple[str, str]:
    """What became of a model's calls, and why not all of it is fused."""
    reasons = "; ".join(dict.fromkeys(report.reasons))
    if not (report.calls["fused"] or report.calls["replayed"]):
        return "eager", reasons
    live = [name for signature in report.signatures for name in signature.live]
    return ("in segments", reasons) if live else ("fused", "")


def _largest(counted: list[tuple[int, int, Counter[str]]]) -> tuple[int, int, str]:
    """Of all graphs of a model the largest: its calls before and after, and its passes."""
    before, after, passes = max(counted, default=(0, 0, Counter()), key=lambda each: each[0])
    return before, after, ", ".join(f"{name} {count}" for name, count in passes.items() if count and name not in _PLAIN)


@contextmanager
def _counted() -> Iterator[list[tuple[int, int, Counter[str]]]]:
    """Rewrite a copy of each graph as for an H100, and count."""
    import sfast_core.lowering as lowering
    import sfast_core.native.load as load
    from sfast_core.ops import all_ops
    from sfast_core.rewrite import has_impl
    from sfast_core.runtime.store import WeightStore
    from sfast_core.target import Target

    rewrite = lowering.rewrite
    found: list[tuple[int, int, Counter[str]]] = []
    target = Target(torch.device("cuda", 0), "H100", (9, 0), sm_count=132, shared_memory_bytes=232448, triton=True)

    def counting(graph: torch.fx.Graph, *args: Any, **kwargs: Any) -> Any:
        copy = torch.fx.Graph()
        copy.output(copy.graph_copy(graph, {}))
        before = _calls(copy)
        # as if the CUDA extension were built, which without a GPU it can't be
        with patch.object(load, "why_not", return_value=None):
            done = rewrite(copy, WeightStore().may_pack, (), has_impl(all_ops().values(), target, (), {}))
        found.append((before, _calls(copy), Counter(done.counts)))
        return rewrite(graph, *args, **kwargs)

    with patch.object(lowering, "rewrite", counting):
        yield found


def _calls(graph: torch.fx.Graph) -> int:
    """Those that compute something: no views."""
    calls = [node for node in graph.nodes if node.op in ("call_function", "call_method")]
    return sum(
        (function_name(node.target) if callable(node.target) else str(node.target)) not in _VIEWS for node in calls
    )


def _fast(patcher: Any, family: Family) -> tuple[Any, torch.Tensor]:
    """What became of the calls through the node, and the latent of the last sampling: a first call may only find out
    what must run live.
    """
    from sfast_core.hosts.comfy import states

    fast = applied(patcher)
    for _ in range(3):
        result = sample(fast, family, 1)
    (state,) = [state for state in states() if state.base_model() is patcher.model]
    return state.engine.report, result


def table(rows: list[Row]) -> str:
    """The rows as a Markdown table; times where there are some."""
    timed = any(row.ms == row.ms for row in rows)
    head = ["model", "status", "calls", "left", "error", "ComfyUI's", *(["ms", "ComfyUI's"] if timed else [])]
    found = []
    for row in rows:
        status = f"{row.status}: {row.why}" if row.why else row.status
        times = [f"{row.ms:.2f}", f"{row.eager_ms:.2f}"] if timed else []
        errors = [f"{row.error:.1e}", f"{row.eager_error:.1e}"]
        found.append([row.model, status, row.calls, row.left, *errors, *times, row.passes])
    return markdown([*head, "fusions"], found)


def read(path: Path) -> list[Row]:
    """The rows of a families.csv."""
    kinds = {"str": str, "int": int, "float": float}
    return [
        Row(**{field.name: kinds[str(field.type)](line[field.name]) for field in fields(Row)}) for line in rows_in(path)
    ]


def main() -> None:
    """Parse arguments, measure, print, write."""
    parser = parser_of("families", __doc__)
    parser.add_argument(
        "--models",
        default=";".join(FAMILIES),
        help="which families, with semicolons between them; the beginning of a name will do",
    )
    parser.add_argument(
        "--wide",
        action="store_true",
        help="at true width and length, beside torch.compile and the floor; writes families_wide.csv",
    )
    parser.add_argument(
        "--no-compile", action="store_true", help="with --wide: leave torch.compile out, which takes a minute a family"
    )
    args = parser.parse_args()
    comfyui = comfyui_for("families")
    import comfy.options  # noqa: F401  (it leaves this program's arguments alone)
    from comfy.cli_args import args as comfy_args

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    comfy_args.cpu, comfy_args.use_pytorch_cross_attention = device.type == "cpu", True
    os.environ["FAST_COMPILE_CPU"] = "1"
    machine = {"ComfyUI": version(comfyui), **facts()}
    asked = args.models.split(";")
    if args.wide:
        return _wide(
            None if args.models == ";".join(FAMILIES) else asked, device, args.out, machine, not args.no_compile
        )
    rows: list[Row] = []
    for name in [name for name in FAMILIES if any(name.startswith(each) for each in asked)]:
        with torch.no_grad():
            rows.append(measure(name, FAMILIES[name], device))
        print(f"{name}: {rows[-1].status} {rows[-1].why}", flush=True)
        # after each: a run that is cut keeps what it has
        text = write(args.out, "families", rows, table(rows), machine)
    print("\n" + text)


def _wide(asked: list[str] | None, device: torch.device, out: Path, machine: dict[str, str], compiled: bool) -> None:
    from .families_wide import WideRow, measure_wide, wide_table
    from .family_full_width import WIDE
    from .floors import rates

    if device.type != "cuda":
        raise SystemExit("benchmarks.families --wide needs a CUDA device")
    found, rows, text = rates(device), list[WideRow](), ""
    print(f"a large product {found.products / 1e12:.0f} TFLOP/s, attention {found.attention / 1e12:.0f}", flush=True)
    for name, family in WIDE.items():
        if asked is None or any(name.startswith(each) for each in asked):
            with torch.no_grad():
                rows.append(measure_wide(name, family, device, found, compiled))
            text = write(out, "families_wide", rows, wide_table(rows), machine)
            print(wide_table(rows[-1:]).splitlines()[-1], flush=True)
    print("\n" + text)


if __name__ == "__main__":
    main()
