"""What the CUDA extension makes of a captured graph's memsets: the graph must compute what it did, and hold the nodes
that are expected.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch

from sfast_core.native import counters
from sfast_core.native.counters import Counters
from sfast_core.ops.linear import cublaslt_impl as product
from sfast_core.ops.linear import cublaslt_plans as plans
from sfast_core.runtime import memset_nodes
from sfast_core.runtime.backend import CudaBackend

MEMSET = 2  # CU_GRAPH_NODE_TYPE_MEMSET


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("bits", "count", "replaced"),
    [(8, 1, 1), (8, 4096, 1), (8, 4097, 0), (16, 3, 1), (32, 1, 1), (32, 1024, 1), (32, 1 << 20, 0)],
)
def test_a_memset_keeps_its_place_in_a_graph(bits: int, count: int, replaced: int) -> None:
    """A small one becomes a kernel; either way it comes behind what was before it and before what was behind, at each
    replay.
    """
    driver = ctypes.CDLL("libcuda.so.1")
    memset = getattr(driver, f"cuMemsetD{bits}Async")
    x = torch.full((count,), 7, dtype={8: torch.int8, 16: torch.int16, 32: torch.int32}[bits], device="cuda")
    before, behind = torch.empty_like(x), torch.empty_like(x)
    graph = memset_nodes.editable_graph(x.device)
    assert graph is not None
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin()
        torch.add(x, 0, out=before)
        assert (
            memset(ctypes.c_uint64(x.data_ptr()), 3, ctypes.c_size_t(count), ctypes.c_void_p(stream.cuda_stream)) == 0
        )
        torch.add(x, 2, out=behind)
        x.add_(1)
        graph.capture_end()
        assert memset_nodes.instantiate_without_memsets(graph) == replaced
        for earlier in (7, 4, 4):
            graph.replay()
            stream.synchronize()
            assert [set(values.tolist()) for values in (before, behind, x)] == [{earlier}, {5}, {4}]


class Work:
    """Memsets, and kernels that count in what they zeroed. ``memory`` is written from outside between two replays."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self.memory = torch.zeros(1 << 14, dtype=torch.uint8, device="cuda")
        self._seen = torch.zeros(16, 4, dtype=torch.uint8, device="cuda")
        self._steps = torch.zeros(1, device="cuda")
        self._side_steps = torch.zeros(1, device="cuda")
        self._numbers: Iterator[int] = itertools.count()
        self._zeroed: set[int] = set()
        self.side = torch.cuda.Stream()

    def reset(self, value: int) -> None:
        self.memory.fill_(value)
        for tensor in (self._seen, self._steps, self._side_steps):
            tensor.zero_()

    def run(self, scenario: Callable[[Work], None]) -> None:
        self._numbers = itertools.count()
        scenario(self)

    def state(self) -> list[Any]:
        """All that was computed. What lies between counters is nobody's."""
        memory = self.memory.tolist()
        return [
            {at: memory[at] for at in sorted(self._zeroed)},
            *(x.tolist() for x in (self._seen, self._steps, self._side_steps)),
        ]

    def memset(self, begin: int, value: int = 0, count: int = 4) -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        address = ctypes.c_uint64(self.memory.data_ptr() + begin)
        assert self._driver.cuMemsetD8Async(address, ctypes.c_ubyte(value), ctypes.c_size_t(count), stream) == 0
        self._zeroed |= {*range(begin, begin + count)}

    def look(self, begin: int) -> None:
        torch.add(self.memory[begin : begin + 4], 0, out=self._seen[next(self._numbers)])

    def count(self, begin: int) -> None:
        self.memory[begin : begin + 4].add_(1)
        self.look(begin)

    def step(self) -> None:
        self._steps.add_(1)

    def aside(self, *calls: Callable[[], None]) -> None:
        """On the other stream, behind what is queued on this one so far. ``join`` waits for it."""
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            for call in calls:
                call()

    def side_step(self) -> None:
        self._side_steps.add_(1)

    def join(self) -> None:
        torch.cuda.current_stream().wait_stream(self.side)


def chain(work: Work) -> None:
    for begin in (0, 256):
        work.step()
        work.memset(begin)
        work.count(begin)


def root(work: Work) -> None:
    work.memset(0)
    work.count(0)


def leaf(work: Work) -> None:
    work.step()
    work.memset(0)


def alone(work: Work) -> None:
    work.memset(0)


def next_to_each_other(work: Work) -> None:
    work.step()
    work.memset(0)
    work.memset(256)
    work.count(0)
    work.count(256)


def fork(work: Work) -> None:
    work.step()
    work.aside(lambda: work.memset(0), lambda: work.count(0))
    work.memset(256)
    work.count(256)
    work.join()
    work.step()


def two_before_and_two_behind(work: Work) -> None:
    work.step()
    work.aside(work.side_step)
    work.step()
    work.join()
    work.memset(0)
    work.aside(lambda: work.look(0))
    work.look(0)
    work.join()
    work.count(0)


def two_roots(work: Work) -> None:
    work.aside(lambda: work.memset(0), lambda: work.count(0))
    work.step()
    work.memset(256)
    work.count(256)
    work.join()


def edge_around_it(work: Work) -> None:
    work.step()
    work.aside(lambda: work.memset(0))
    work.join()
    work.count(0)


def large(work: Work) -> None:
    work.step()
    work.memset(0, count=8192)
    work.count(8000)


def outside(work: Work) -> None:
    work.look(256)
    work.memset(256)
    work.count(256)
    work.memset(0)
    work.count(0)


def across_the_end(work: Work) -> None:
    work.look(254)
    work.memset(254)
    work.count(254)


def not_zero(work: Work) -> None:
    work.step()
    work.memset(0, value=3)
    work.count(0)
    work.memset(256)
    work.count(256)


def twice(work: Work) -> None:
    for _ in range(2):
        work.memset(0)
        work.count(0)
    work.memset(256)
    work.count(256)


def overlapping(work: Work) -> None:
    work.memset(0)
    work.count(0)
    work.memset(2)
    work.count(2)


def zero_over_another_value(work: Work) -> None:
    work.memset(0, value=3)
    work.count(0)
    work.memset(0)
    work.count(0)


class Expected(NamedTuple):
    """``ahead`` of the memsets are zeroed in front if these bytes are counters; the others become kernels where they
    are.
    """

    counters_bytes: int
    ahead: int
    in_place: int = 0


SCENARIOS: dict[Callable[[Work], None], Expected] = {
    chain: Expected(512, 2),
    root: Expected(256, 1),
    leaf: Expected(256, 1),
    alone: Expected(256, 1),
    next_to_each_other: Expected(512, 2),
    fork: Expected(512, 2),
    two_before_and_two_behind: Expected(256, 1),
    two_roots: Expected(512, 2),
    edge_around_it: Expected(256, 1),
    large: Expected(8192, 1),
    outside: Expected(256, 1, 1),
    across_the_end: Expected(256, 0, 1),
    not_zero: Expected(512, 1, 1),
    twice: Expected(512, 1, 2),
    overlapping: Expected(256, 0, 2),
    zero_over_another_value: Expected(256, 0, 2),
}


def node_types(graph: Any) -> list[int]:
    """Of all nodes of a captured graph."""
    driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t()
    whole = ctypes.c_void_p(graph.raw_cuda_graph())
    assert driver.cuGraphGetNodes(whole, None, ctypes.byref(count)) == 0
    nodes = (ctypes.c_void_p * count.value)()
    assert driver.cuGraphGetNodes(whole, nodes, ctypes.byref(count)) == 0
    types = []
    for node in nodes:
        kind = ctypes.c_int()
        assert driver.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)) == 0
        types.append(kind.value)
    return types


@pytest.mark.gpu
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
@pytest.mark.parametrize("off", [0, 1], ids=["", "counters at an odd address"])
def test_counters_are_zeroed_in_front(scenario: Callable[[Work], None], off: int) -> None:
    """The bits are those of the same calls without a graph, whatever the memory held.

    An address that can't be leaves the graph as it was.
    """
    counters_bytes, ahead, in_place = SCENARIOS[scenario]
    work, stream = Work(), torch.cuda.Stream()
    graph = memset_nodes.editable_graph(work.memory.device)
    assert graph is not None
    stream.wait_stream(torch.cuda.current_stream())
    values, expected = (7, 255, 0, 7), []
    with torch.cuda.stream(stream):
        for value in values:
            work.reset(value)
            work.run(scenario)
            expected.append(work.state())
        torch.cuda.synchronize()
        graph.capture_begin()
        work.run(scenario)
        graph.capture_end()
        before = node_types(graph)
        replaced = memset_nodes.instantiate_without_memsets(graph, (work.memory.data_ptr() + off, counters_bytes))
        behind = node_types(graph)
        for value, computed in zip(values, expected, strict=True):
            work.reset(value)
            graph.replay()
            stream.synchronize()
            assert work.state() == computed
    assert before.count(MEMSET) == ahead + in_place
    if off:
        assert replaced == 0 and sorted(behind) == sorted(before)
    else:
        assert (
            replaced == ahead + in_place
            and behind.count(MEMSET) == 0
            and len(behind) == len(before) - ahead + (ahead > 0)
        )


@pytest.mark.gpu
def test_products_compute_the_same_bits_whatever_lay_in_their_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each algorithm of some products, twice in one graph. The memory is soiled before each replay."""
    if reason := product.why_no_library():
        pytest.skip(reason)
    made: list[Counters] = []

    def make(device: torch.device) -> Counters:
        made.append(Counters(device))
        return made[-1]

    monkeypatch.setattr(counters, "Counters", make)
    device = torch.device("cuda", torch.cuda.current_device())
    shapes = [(2048, 3840, 1280), (2048, 1280, 5120), (8192, 640, 640), (154, 1280, 2048), (2, 1280, 320), (8, 8, 4096)]
    operands = [
        tuple(torch.randn(rows, k, dtype=torch.half, device=device) / k**0.5 for rows in (m, n)) for m, n, k in shapes
    ]
    launches = [(pair, rank) for pair in operands for rank in range(plans.RANKS)] * 2
    with torch.no_grad():
        expected = [product.launch(*pair, rank=rank) for pair, rank in launches]
        results = [torch.empty_like(result) for result in expected]

        def run() -> None:
            for result, (pair, rank) in zip(results, launches, strict=True):
                result.copy_(product.launch(*pair, rank=rank))

        graph = CudaBackend(device).capture(run)
        for value in (255, 1, 0):
            for own in made:
                own._memory.fill_(value)
            for result in results:
                result.fill_(float("nan"))
            graph.replay()
            torch.cuda.synchronize()
            assert all(torch.equal(result, bits) for result, bits in zip(results, expected, strict=True))
        graph.release()
    assert len(made) == 1
