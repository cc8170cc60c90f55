"""Convolutions with their epilogue as graphs of cuDNN, built once per geometry and kept.

Through nvidia-cudnn-frontend's Python graph API. A bias (and ReLU) is in cuDNN's ready-made kernels: a plan takes about 10 ms, as
many as wanted. Everything else is compiled at run time, about a second per kernel, so these graphs are declared to have
dynamic shapes and share a kernel cache per topology: one compilation serves all sizes of it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

ATTEMPTS = 3  # plans to try where the first can't be built
WORKSPACE_LIMIT = 256 << 20
KERNEL_CACHE_VERSION = 90400
_ACTS = {"silu": "swish", "gelu": "gelu", "gelu_tanh": "gelu_approx_tanh", "relu": "relu"}


@functools.cache
def library() -> Any:
    """The frontend's module. Not imported with this one: without cuDNN's own library it may raise more than ImportError."""
    return importlib.import_module("cudnn")


class Geometry(NamedTuple):
    """All that a plan depends on. Tensors are NHWC, dense and begin on 16 bytes."""

    device: int
    dtype: torch.dtype
    x: tuple[int, ...]
    weight: tuple[int, ...]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    bias: bool
    channel_rows: int  #: rows of channel_add, 0 without it
    residual: bool
    act: str

    @property
    def ready_made(self) -> bool:
        """Whether cuDNN has kernels for it that need no compilation."""
        return self.bias and not self.channel_rows and not self.residual and self.act in ("none", "relu")

    @property
    def topology(self) -> Geometry:
        """What is left of it without the sizes (of the channels: their groups). Geometries with the same share compiled kernels."""
        return self._replace(x=(self.x[1] // self.weight[1],), weight=self.weight[2:], channel_rows=min(self.channel_rows, 2))

    @property
    def out(self) -> tuple[int, int, int, int]:
        """The shape of the result."""
        height, width = (
            (self.x[2 + i] + 2 * self.padding[i] - self.dilation[i] * (self.weight[2 + i] - 1) - 1) // self.stride[i] + 1 for i in range(2)
        )
        return self.x[0], self.weight[0], height, width


@dataclass(frozen=True)
class Plan:
    """A graph with the plan at ``index`` built; ``tensors`` are its operands by name."""

    graph: Any
    index: int
    workspace_bytes: int
    tensors: dict[str, Any]
    lock: threading.Lock = field(default_factory=threading.Lock)


def describe(cudnn: Any, geometry: Geometry, **options: Any) -> tuple[Any, dict[str, Any]]:
    """The graph of a convolution and its operands by name ("x", "weight", "out", ...). ``options`` go to the graph."""
    io = {torch.float16: cudnn.data_type.HALF, torch.bfloat16: cudnn.data_type.BFLOAT16}[geometry.dtype]
    wide = cudnn.data_type.FLOAT
    graph = cudnn.pygraph(io_data_type=io, intermediate_data_type=wide, compute_data_type=wide, **options)
    tensors: dict[str, Any] = {}

    def operand(name: str, shape: tuple[int, ...]) -> Any:
        _, c, h, w = shape
        tensors[name] = graph.tensor(name=name, dim=list(shape), stride=[h * w * c, 1, w * c, c], data_type=io)
        return tensors[name]

    value = graph.conv_fprop(
        operand("x", geometry.x),
        operand("weight", geometry.weight),
        pre_padding=list(geometry.padding),
        post_padding=list(geometry.padding),
        stride=list(geometry.stride),
        dilation=list(geometry.dilation),
    )
    channels = geometry.weight[0]
    if geometry.bias:
        value = graph.add(value, operand("bias", (1, channels, 1, 1)))
    if geometry.channel_rows:
        value = graph.add(value, operand("channel_add", (geometry.channel_rows, channels, 1, 1)))
    if geometry.residual:
        value = graph.add(value, operand("residual", geometry.out))
    if geometry.act != "none":
        value = getattr(graph, _ACTS[geometry.act])(value)
    value.set_output(True).set_data_type(io)
    tensors["out"] = value
    return graph, tensors


def build(cudnn: Any, geometry: Geometry, rank: int, **options: Any) -> Plan:
    """Build the plan that cuDNN's heuristic puts at ``rank`` (0: first), or one of the next where it can't be built.

    Plans that don't give the same bits at every run are left out.

    Raises:
        RuntimeError: there is none.
    """
    graph, tensors = describe(cudnn, geometry, **options)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A])
    graph.deselect_numeric_notes([cudnn.numerical_note.NONDETERMINISTIC])
    graph.deselect_workspace_greater_than(WORKSPACE_LIMIT)
    # The frontend's own Python engines would share this list. cuDNN names its plans "eng<number>...".
    names = [graph.get_plan_name_at_index(index) for index in range(graph.get_execution_plan_count())]
    reason = f"{len(names)} plans"
    for index in [index for index, name in enumerate(names) if name.startswith("eng")][rank : rank + ATTEMPTS]:
        try:
            graph.build_plan_at_index(index)
            return Plan(graph, index, graph.get_workspace_size_plan_at_index(index), tensors)
        except (RuntimeError, ValueError, cudnn.cudnnGraphNotSupportedError) as error:
            reason = f"{names[index]}: {error}"
    raise RuntimeError(f"conv2d_act: cuDNN has no plan at rank {rank} for {geometry}: {reason}")


class PlanCache:
    """The plans of this process. They are never dropped: a captured CUDA graph may hold their kernels."""

    def __init__(self, cudnn: Any) -> None:
        self._cudnn = cudnn
        self._lock = threading.Lock()
        self._plans: dict[tuple[Geometry, int], Plan] = {}
        self._kernels: dict[Geometry, Any] = {}
        self._idle_handles: defaultdict[int, list[Any]] = defaultdict(list)

    def run(self, geometry: Geometry, rank: int, operands: dict[str, torch.Tensor]) -> None:
        """Compute into ``operands["out"]`` on the current stream of the geometry's device.

        Legal while capturing once the plan is there: only the workspace is allocated, by PyTorch.
        """
        with torch.cuda.device(geometry.device), self._handle(geometry.device) as handle:
            self._cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
            plan = self._plan(geometry, rank, handle)
            workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=operands["out"].device)
            # Tensors, not addresses: these it reads natively, 14 instead of 47 us a launch. It exports them, which autograd would refuse.
            bound = {tensor: operands[name].detach() for name, tensor in plan.tensors.items()}
            with plan.lock:
                plan.graph.execute_plan_at_index(bound, workspace, plan.index, handle=handle)

    def _plan(self, geometry: Geometry, rank: int, handle: Any) -> Plan:
        plan = self._plans.get((geometry, rank))
        if plan is None:
            with self._lock:
                plan = self._plans.get((geometry, rank)) or build(
                    self._cudnn, geometry, rank, handle=handle, **self._shared_kernels(geometry)
                )
                self._plans[geometry, rank] = plan
        return plan

    def _shared_kernels(self, geometry: Geometry) -> dict[str, Any]:
        if geometry.ready_made or self._cudnn.backend_version() < KERNEL_CACHE_VERSION:
            return {}
        if geometry.topology not in self._kernels:
            self._kernels[geometry.topology] = self._cudnn.create_kernel_cache()
        return {"kernel_cache": self._kernels[geometry.topology], "is_dynamic_shape_enabled": True}

    @contextlib.contextmanager
    def _handle(self, device: int) -> Iterator[Any]:
        """A handle that no other thread uses meanwhile, as cuDNN asks for: made for the current device, and used again."""
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
