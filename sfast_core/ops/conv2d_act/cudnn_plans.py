"""Convolutions with their epilogue as graphs of cuDNN, built once per geometry and kept.

Through nvidia-cudnn-frontend's Python graph API. Only what cuDNN has ready-made kernels for: a bias, and ReLU. Plans
take about 5 ms then. Everything else it compiles at run time, about a second per kernel, and slower ones (H100, fp16,
us: 3x3 on 2x320x128x128 with a residual 144 compiled for the shape and 203 for all shapes, 118 with one pass of our own
    behind the plain convolution).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from ..packs import INNERMOST, dense

RANKS = 3  #: plans to a geometry. To build one takes 0.1 ms, to ask for the list 5 ms (H100)
ATTEMPTS = 3  #: further plans to try where one can't be built
WORKSPACE_LIMIT = 256 << 20


@functools.cache
def library() -> Any:
    """The frontend's module. Imported here, as it may raise more than ImportError without cuDNN's own library."""
    return importlib.import_module("cudnn")


def why_no_library() -> str | None:
    """The reason why the frontend or a recent cuDNN can't be used here, or None."""
    if importlib.util.find_spec("cudnn") is None:
        return "needs nvidia-cudnn-frontend"
    try:
        cudnn = library()
        if cudnn.backend_version() < 90000:
            return f"needs cuDNN 9, this is {cudnn.backend_version()}"
    except Exception as error:  # noqa: BLE001 (a library that can't be loaded is no error here)
        return f"nvidia-cudnn-frontend can't be loaded: {(str(error) or type(error).__name__).splitlines()[0][:120]}"
    return None


class Geometry(NamedTuple):
    """All that a plan depends on. Tensors are NHWC, or NDHWC, dense and begin on 16 bytes."""

    device: int
    dtype: torch.dtype
    x: tuple[int, ...]
    weight: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    relu: bool

    @property
    def out(self) -> tuple[int, ...]:
        """The shape of the result."""
        sizes = (
            (self.x[2 + i] + 2 * self.padding[i] - self.dilation[i] * (self.weight[2 + i] - 1) - 1) // self.stride[i]
            + 1
            for i in range(len(self.stride))
        )
        return self.x[0], self.weight[0], *sizes


class Plan(NamedTuple):
    """One that is built: its place in the list of its graph, and what it needs."""

    place: int
    workspace_bytes: int


@dataclass(frozen=True)
class Plans:
    """A graph with some of its plans built, by the order of cuDNN's heuristic; ``tensors``: its operands by name."""

    graph: Any
    built: tuple[Plan, ...]
    tensors: dict[str, Any]
    lock: threading.Lock = field(default_factory=threading.Lock)


def describe(cudnn: Any, geometry: Geometry, handle: Any) -> tuple[Any, dict[str, Any]]:
    """The graph of a convolution with bias, and its operands by name: "x", "weight", "bias", "out"."""
    io = {torch.float16: cudnn.data_type.HALF, torch.bfloat16: cudnn.data_type.BFLOAT16}[geometry.dtype]
    wide = cudnn.data_type.FLOAT
    graph = cudnn.pygraph(io_data_type=io, intermediate_data_type=wide, compute_data_type=wide, handle=handle)
    tensors: dict[str, Any] = {}

    def operand(name: str, shape: tuple[int, ...]) -> Any:
        tensors[name] = graph.tensor(name=name, dim=list(shape), stride=_innermost(shape), data_type=io)
        return tensors[name]

    value = graph.conv_fprop(
        operand("x", geometry.x),
        operand("weight", geometry.weight),
        pre_padding=list(geometry.padding),
        post_padding=list(geometry.padding),
        stride=list(geometry.stride),
        dilation=list(geometry.dilation),
    )
    value = graph.add(value, operand("bias", (1, geometry.weight[0], *[1] * len(geometry.stride))))
    if geometry.relu:
        value = graph.relu(value)
    value.set_output(True).set_data_type(io)
    tensors["out"] = value
    return graph, tensors


def _innermost(shape: tuple[int, ...]) -> list[int]:
    """Strides with the channels innermost, as they are also where sizes of 1 let others pass for it."""
    strides, step = [0, 1, *[0] * (len(shape) - 2)], shape[1]
    for dim in (*range(len(shape) - 1, 1, -1), 0):
        strides[dim], step = step, step * shape[dim]
    return strides


def build(cudnn: Any, geometry: Geometry, handle: Any) -> Plans:
    """Build the first :data:`RANKS` plans that can be built.

    Plans that don't give the same bits at every run are left out.

    Raises:
        RuntimeError: there is none.
    """
    graph, tensors = describe(cudnn, geometry, handle)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A])
    graph.deselect_numeric_notes([cudnn.numerical_note.NONDETERMINISTIC])
    graph.deselect_workspace_greater_than(WORKSPACE_LIMIT)
    # The frontend's own Python engines would share this list. cuDNN names its plans "eng<number>...".
    names = [graph.get_plan_name_at_index(index) for index in range(graph.get_execution_plan_count())]
    built: list[Plan] = []
    reason = f"{len(names)} plans"
    for index in [index for index, name in enumerate(names) if name.startswith("eng")][: RANKS + ATTEMPTS]:
        try:
            graph.build_plan_at_index(index)
            built.append(Plan(index, graph.get_workspace_size_plan_at_index(index)))
        except (RuntimeError, ValueError, cudnn.cudnnGraphNotSupportedError) as error:
            reason = f"{names[index]}: {error}"
        if len(built) == RANKS:
            break
    if not built:
        raise RuntimeError(f"cuDNN has no plan for {geometry}: {reason}")
    return Plans(graph, tuple(built), tensors)


class PlanCache:
    """The plans of this process. They are never dropped: a captured CUDA graph may hold their kernels."""

    def __init__(self, cudnn: Any) -> None:
        self._cudnn = cudnn
        self._lock = threading.Lock()
        self._plans: dict[Geometry, Plans] = {}
        self._idle_handles: defaultdict[int, list[Any]] = defaultdict(list)

    def run(self, geometry: Geometry, rank: int, operands: dict[str, torch.Tensor]) -> None:
        """Compute into ``operands["out"]`` on the current stream of the geometry's device, by the plan at ``rank`` (0:
        first), or the last.

        Legal while capturing once the plan is there: only the workspace is allocated, by PyTorch.
        """
        with torch.cuda.device(geometry.device), self._handle(geometry.device) as handle:
            self._cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
            plans = self._built(geometry, handle)
            plan = plans.built[min(rank, len(plans.built) - 1)]
            workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=operands["out"].device)
            # Tensors, not addresses: these it reads natively, 14 instead of 47 us a launch. It exports them, which
            # autograd would refuse.
            bound = {tensor: operands[name].detach() for name, tensor in plans.tensors.items()}
            with plans.lock:
                plans.graph.execute_plan_at_index(bound, workspace, plan.place, handle=handle)

    def _built(self, geometry: Geometry, handle: Any) -> Plans:
        plans = self._plans.get(geometry)
        if plans is None:
            with self._lock:
                plans = self._plans.get(geometry) or build(self._cudnn, geometry, handle)
                self._plans[geometry] = plans
        return plans

    @contextlib.contextmanager
    def _handle(self, device: int) -> Iterator[Any]:
        """A handle that no other thread uses meanwhile, as cuDNN asks for: the current device's, used again."""
        with self._lock:
            idle = self._idle_handles[device]
            handle = idle.pop() if idle else None
        if handle is None:
            handle = self._cudnn.create_handle()
        try:
            yield handle
        finally:
            with self._lock:
                idle.append(handle)


@functools.cache
def plans() -> PlanCache:
    """The process's plans."""
    return PlanCache(library())


def as_operand(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` dense in NHWC or NDHWC and beginning on 16 bytes, copied only where it is not."""
    return dense(tensor, INNERMOST.get(tensor.dim(), torch.contiguous_format))
