"""Fails captures in one way, again and again, and looks at everything that others rely on.

``python failing_captures.py WAY``, in a process of its own.

What it finds wrong it prints, each on a line of its own, with what there is to know; it ends with 1 if there was
anything, with 0 if not.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import torch
import torch.nn.functional as F
from torch import nn

import sfast_core
from sfast_core.native.driver import capture_status
from sfast_core.runtime.backend import CudaBackend
from sfast_core.runtime.graphs import device_graphs

DEVICE = torch.device("cuda", 0)
TIMES = 20
Fault = Callable[[torch.Tensor], object]


def _raise(error: BaseException) -> None:
    raise error


def _left_on_another_stream(x: torch.Tensor) -> None:
    torch.cuda.set_stream(torch.cuda.Stream(DEVICE))
    raise ValueError("no")


def _ignored(x: torch.Tensor) -> None:
    with contextlib.suppress(RuntimeError):
        x.sum().item()


def _unjoined(x: torch.Tensor) -> None:
    other = torch.cuda.Stream(DEVICE)
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        KEPT.mul_(1.0)


def _driver_malloc(x: torch.Tensor) -> None:
    pointer = ctypes.c_uint64()
    status = ctypes.CDLL("libcuda.so.1").cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 20))
    print(f"  cuMemAlloc in a capture: {status}")


KEPT = torch.ones(64, 64, device=DEVICE)  #: memory that was there before any capture
FAULTS: dict[str, Fault] = {
    "an exception": lambda x: _raise(ValueError("no")),
    "an interrupt": lambda x: _raise(KeyboardInterrupt()),
    "out of memory": lambda x: torch.empty(1 << 50, dtype=torch.uint8, device=DEVICE),
    "another stream": _left_on_another_stream,
    "random numbers": lambda x: (torch.rand(8, device=DEVICE), _raise(ValueError("no"))),
    "pinned memory": lambda x: (torch.empty(1 << 16, pin_memory=True), _raise(ValueError("no"))),
    "a value": lambda x: x.sum().item(),
    "random numbers and a value": lambda x: torch.rand(8, device=DEVICE).sum().item(),
    "pinned memory and a value": lambda x: (torch.empty(1 << 16, pin_memory=True), x.sum().item()),
    "a copy to the device": lambda x: torch.ones(4096).to(DEVICE),
    "a copy from the device": lambda x: x.cpu(),
    "a tensor of Python's": lambda x: x.new_tensor([1.0, 2.0]),
    "places that aren't zero": lambda x: torch.nonzero(x),
    "a wait": lambda x: torch.cuda.synchronize(),
    "an ignored error": _ignored,
    "the driver's memory": _driver_malloc,
    "a stream that isn't joined": _unjoined,
}
#: After these the capture is valid still: what was allocated in it can be given back, whatever the allocator.
VALID = ("an exception", "an interrupt", "out of memory", "another stream", "random numbers")
FORGIVEN = ("the driver's memory",)  #: a driver may allow it


class Net(nn.Module):
    """A few layers."""

    def __init__(self, d: int = 256, n: int = 2) -> None:
        super().__init__()
        self.norm = nn.ModuleList(nn.LayerNorm(d) for _ in range(n))
        self.up, self.down = (nn.ModuleList(nn.Linear(a, b) for _ in range(n)) for a, b in ((d, 4 * d), (4 * d, d)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, up, down in zip(self.norm, self.up, self.down, strict=True):
            x = x + down(F.gelu(up(norm(x))))
        return x


class Makes(Net):
    """Makes tensors on the CPU in each call, in all the ways that models do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)
        n = x.shape[-1]
        angles = torch.outer(x[0, 0, :4].float(), torch.pow(100, -torch.arange(4).to(x[0, 0].float()).div(4)))
        x = (
            x
            + torch.arange(n, dtype=torch.float32).to(x.device, x.dtype) * 0.01
            + x.new_tensor([1.0])
            + angles.cos().mean().to(x.dtype)
        )
        x = x * torch.tensor(0.1) + torch.tensor(0.25, dtype=torch.float64) / (x.abs() + 1)
        x = x[:, torch.arange(x.shape[1] - 1, -1, -1)][:, :, [*range(n)]]
        x = x.masked_fill(x > 3, torch.tensor(3.0))
        x[0, 0, 0] = torch.tensor(0.5)
        x[0, 1, 0] = 2.0
        return torch.where(x > -3, x, torch.tensor(-3.0, dtype=x.dtype).to(x))


@torch.library.custom_op("fast_compile_tests::hidden_read", mutates_args=())
def hidden_read(x: torch.Tensor) -> torch.Tensor:
    """Reads a value where nobody can see that: the rehearsal doesn't look into operators."""
    y = x * 2
    return y + (0 if y.sum().item() else 1)


@hidden_read.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Hidden(Net):
    """Can't be captured, and nothing says so."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.ops.fast_compile_tests.hidden_read(x))


class Open(Net):
    """Can't be captured, which is seen beforehand: an inverse is checked on the CPU."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + torch.linalg.inv(
            torch.eye(4, device=x.device) * (1 + x[0, 0, 0].float().abs())
        ).sum().to(x.dtype)


class Model:
    """A compiled module beside its eager twin."""

    def __init__(self, kind: type[Net] = Net) -> None:
        torch.manual_seed(0)
        self.module = kind().half().to(DEVICE)
        self.x = torch.randn(2, 64, 256, device=DEVICE).half()
        self.eager = self.module(self.x)
        self.fast = sfast_core.compile(self.module)
        self.errors = [self.error() for _ in range(4)]

    def error(self) -> float:
        """How far a call is from eager."""
        y = self.fast(self.x)
        return float((y.float() - self.eager.float()).norm() / self.eager.float().norm())

    @property
    def replayed(self) -> int:
        """How many calls were replays of a graph."""
        return int(self.fast.engine.report.calls["replayed"])

    @property
    def said(self) -> str:
        """The report."""
        return self.fast.report().text()


def wrong_with_model(name: str, model: Model, graphed: bool = True) -> Iterator[str]:
    """What is wrong with the next calls of ``model``."""
    before = model.replayed
    errors = [*model.errors, model.error(), model.error()]
    if not max(errors) < 5e-3:
        yield f"{name}: errors {errors}\n{model.said}"
    if graphed != (model.replayed == before + 2):
        yield f"{name}: {model.replayed - before} of 2 calls were replayed, wanted {2 if graphed else 0}\n{model.said}"


def wrong_with_host(drawing: Callable[[], torch.Tensor]) -> Iterator[str]:
    """What is wrong with what everybody uses. ``drawing`` replays a graph that draws a random number."""
    if torch.cuda.is_current_stream_capturing():
        yield "the current stream is capturing"
    x = torch.randn(1024, device=DEVICE)
    if not x.isfinite().all():
        yield "torch.randn gives numbers that aren't finite"
    torch.manual_seed(7)
    first = (torch.rand(4, device=DEVICE), drawing())
    torch.manual_seed(7)
    if not all(torch.equal(a, b) for a, b in zip(first, (torch.rand(4, device=DEVICE), drawing()), strict=True)):
        yield f"a seed doesn't give the same numbers: {first}"
    pinned = torch.ones(1 << 18, pin_memory=True)
    if pinned.to(DEVICE, non_blocking=True).sum().item() != 1 << 18:
        yield "pinned memory isn't copied"
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        y = x * 2 + torch.rand(1, device=DEVICE) * 0
    x.fill_(3.0)
    graph.replay()
    if not torch.equal(y, torch.full_like(y, 6.0)):
        yield f"a graph of the user's own gives {y[:4]}"
    del y
    graph.reset()


def drawn() -> Callable[[], torch.Tensor]:
    """A graph of the user's own that draws a random number."""
    torch.rand(4, device=DEVICE)  # as PyTorch asks for: what a kernel needs at its first launch is no part of a capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        number = torch.rand(4, device=DEVICE)

    def draw() -> torch.Tensor:
        graph.replay()
        return number.clone()

    return draw


def fail(backend: CudaBackend, fault: Fault, alone: bool) -> BaseException | None:
    """A capture that runs into ``fault`` with memory of its own in use. Returns what it raised."""

    def run() -> None:
        y = KEPT @ KEPT
        z = F.gelu(y) + 1  # noqa: F841
        fault(y)

    try:
        backend.capture(run, alone=alone, warm_up=lambda: F.gelu(KEPT @ KEPT)).release()
    except (Exception, KeyboardInterrupt) as error:
        return error
    return None


def reserved() -> int:
    """Bytes that the allocator holds."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def wrong_with_fault(name: str) -> Iterator[str]:
    """Fail in the way ``name`` in the shared pool, alone, and in the scratch."""
    graphs = device_graphs(DEVICE)
    assert graphs is not None and isinstance(graphs.backend, CudaBackend)
    backend = graphs.backend
    old, drawing = Model(), drawn()
    yield from wrong_with_model("before", old)
    yield from wrong_with_host(drawing)
    held: list[int] = []
    for time in range(TIMES):
        error = (
            fail(backend, FAULTS[name], alone=time % 3 == 1)
            if time % 3 < 2
            else _fail_in_scratch(backend, FAULTS[name])
        )
        if time == 0:
            print(f"  {name}: {type(error).__name__}: {str(error).strip().splitlines()[:1]}")
        if error is None and name not in FORGIVEN:
            yield f"the capture didn't fail ({time})"
        if status := capture_status(backend._stream.cuda_stream):
            yield f"the stream's capture is {status!r} ({time})"
        if time < 3 or time == TIMES - 1:
            yield from wrong_with_model(f"old, after {time + 1}", old)
            yield from wrong_with_host(drawing)
            new = Model()
            yield from wrong_with_model(f"new, after {time + 1}", new)
            new.fast.uninstall()
            del new
        held.append(reserved())
    print(f"  bytes held: {held}; kept: {[type(item).__name__ for item in backend._kept]}")
    if name != "a stream that isn't joined":  # each has cuBLAS's workspace on another one
        if held[-1] > held[5] + (2 << 20):
            yield f"memory grows: {held}"
        if backend._kept:
            yield f"kept for good: {backend._kept}"
    makes = Model(Makes)
    yield from wrong_with_model("one that makes tensors on the CPU", makes)


def _fail_in_scratch(backend: CudaBackend, fault: Fault) -> BaseException | None:
    with backend.scratch():
        error = fail(backend, fault, alone=True)
        for _ in range(2):
            backend.capture(lambda: KEPT.mul_(1.0), alone=True).release()
    return error


def wrong_with_kind(kind: type[Net], graphed: bool) -> Iterator[str]:
    """A model that can't be captured, or makes tensors on the CPU, between others."""
    old, drawing = Model(), drawn()
    for name in ("first", "second"):
        middle = Model(kind)
        print(f"  {kind.__name__}: {middle.said}")
        yield from wrong_with_model(name, middle, graphed)
        yield from wrong_with_model("old", old)
        yield from wrong_with_model("new", Model())
        yield from wrong_with_host(drawing)


KINDS: dict[str, tuple[type[Net], bool]] = {"makes": (Makes, True), "hidden": (Hidden, False), "open": (Open, False)}


def main(way: str) -> int:
    """Print what is wrong. Returns how the process ends."""
    print(
        f"{way}: torch {torch.__version__}, {torch.cuda.get_device_name()}, {torch.cuda.get_allocator_backend()}, Python {sys.version.split()[0]}"
    )
    wrong = []
    try:
        with torch.no_grad():
            for found in wrong_with_kind(*KINDS[way]) if way in KINDS else wrong_with_fault(way):
                wrong.append(found)
                print(f"WRONG: {found}", flush=True)
    except BaseException:
        wrong.append("it ended")
        print(f"WRONG: it ended with\n{traceback.format_exc()}")
    if wrong:
        print(
            "the allocator:",
            torch.cuda.memory_summary()
            if torch.cuda.get_allocator_backend() == "native"
            else torch.cuda.mem_get_info(),
        )
        backend = device_graphs(DEVICE).backend  # type: ignore[union-attr]
        print("the backend:", {name: value for name, value in vars(backend).items() if name != "_touched"})
    print(f"{way}: {len(wrong)} wrong", flush=True)
    return int(bool(wrong))


if __name__ == "__main__":
    found = main(sys.argv[1])
    sys.stderr.flush()
    os._exit(found)  # how the process goes down is no part of this
