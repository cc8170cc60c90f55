"""Which impl is taken: known, near, measured, or the reference where all fail."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from sfast_core.machine.choices import Choice, Choices
from sfast_core.runtime.job import REFERENCE, Job
from sfast_core.runtime.tuner import _EXAMPLE_BYTES, Tuner
from tests.fakes import FakeBackend
from tests.tracing import CPU

pytestmark = pytest.mark.usefixtures("a_cpu_as_the_device")


class Impl:
    """Counts its launches; ``cost`` seconds by the fake clock, or an error."""

    def __init__(
        self,
        name: str,
        cost: float = 1.0,
        error: Exception | None = None,
        carries_over: bool = True,
        per_thread: bool = False,
    ) -> None:
        self.name, self.cost, self.error, self.carries_over, self.per_thread = (
            name,
            cost,
            error,
            carries_over,
            per_thread,
        )
        self.seen: list[Any] = []

    @property
    def launch(self) -> Callable[..., Any]:
        def launch(*args: Any, **kwargs: Any) -> None:
            self.seen.append((args, kwargs))
            CLOCK[0] += self.cost
            if self.error is not None:
                raise self.error

        return launch


CLOCK = [0.0]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfast_core.runtime.stopwatch.time.perf_counter", lambda: CLOCK[0])


def job(key: str, *impls: Impl, family: str = "", size: int = 0, channels_last: bool = False) -> Job:
    x = torch.empty(2, 3, 4, 5, device="meta", dtype=torch.float16)
    return Job(
        key,
        impls,
        (x, [torch.empty(3, device="meta", dtype=torch.int64), None]),
        {"eps": 1e-5},
        channels_last,
        family,
        size,
    )


REST = Choice("rest", "rest", 1, "one", 1000.0)  # what else a program has, and how long it takes


def rest() -> Job:
    return job("rest", Impl("one"), Impl("other"))


def kept(choices: Choices, key: str) -> str | None:
    found = choices.get(key)
    return None if found is None else found.impl


def tuner(choices: Choices | None = None, measure: bool = True) -> Tuner:
    return Tuner(CPU, FakeBackend(), choices or Choices(None), measure)


def test_the_fastest_is_taken_and_kept() -> None:
    choices = Choices(None)
    slow, fast = Impl("slow", 2.0), Impl("fast", 1.0)
    jobs = [job("a", slow, fast), job("b", slow), job("a", slow, fast), job("c")]
    assert tuner(choices).decide(jobs) == ["fast", "slow", "fast", REFERENCE]
    assert kept(choices, "a") == "fast" and kept(choices, "b") is None
    slow.cost = 0.1
    assert tuner(choices).decide(jobs) == ["fast", "slow", "fast", REFERENCE]


@pytest.mark.parametrize(
    ("seconds", "count", "size", "taken"),
    [
        (6.0, 1, 200, "slow"),  # 12 s at twice the size, 0.012 of the program; times the root of 2
        (8.0, 1, 200, "fast"),
        (9.0, 1, 10, "slow"),  # 0.9 s, times the root of 10
        (80.0, 1, 10, "fast"),
        (3.0, 6, 100, "slow"),
        (3.0, 7, 100, "fast"),  # so often that it is much of the program
    ],
)
def test_a_call_is_measured_where_much_of_the_time_is_at_stake(
    seconds: float, count: int, size: int, taken: str
) -> None:
    choices = Choices(None)
    choices.add([REST, Choice("other", "f", 100, "slow", seconds)])
    slow, fast = Impl("slow", 2.0), Impl("fast", 1.0)
    assert tuner(choices).decide([rest(), *count * [job("a", slow, fast, family="f", size=size)]]) == [
        "one",
        *count * [taken],
    ]
    assert bool(fast.seen) == (taken == "fast")


def test_of_an_unknown_program_all_is_measured() -> None:
    """Nobody knows what is much of it."""
    choices = Choices(None)
    choices.add([Choice("other", "f", 100, "slow", 1e-6)])
    impls = (Impl("slow", 2.0), Impl("fast", 1.0))
    assert tuner(choices).decide(
        [job("a", *impls, family="f", size=150), job("b", Impl("slow", 2.0), Impl("fast", 1.0))]
    ) == ["fast", "fast"]


def test_a_choice_that_does_not_carry_over_is_made_at_each_size() -> None:
    """At its own size it is kept, like any other."""
    choices = Choices(None)
    choices.add([REST])
    tune, impls = tuner(choices), (Impl("first"), Impl("second", cost=0.5, carries_over=False))
    assert tune.decide([rest(), job("a", *impls, family="f", size=100)]) == ["one", "second"]
    other = (Impl("first"), Impl("second", cost=2.0, carries_over=False))
    assert tune.decide([rest(), job("b", *other, family="f", size=150)]) == ["one", "first"] and len(other[1].seen) > 1
    again = (Impl("first"), Impl("second", carries_over=False))
    # compiled
    assert (
        tune.decide([rest(), job("a", *again, family="f", size=100)]) == ["one", "second"] and len(again[1].seen) == 1
    )
    third = (Impl("first"), Impl("second", cost=0.1, carries_over=False))
    # as at 150
    assert tune.decide([rest(), job("c", *third, family="f", size=160)]) == ["one", "first"] and third[1].seen == []


def test_a_choice_that_was_taken_over_is_not_taken_over_again() -> None:
    """From size to size it would go far from what was measured."""
    choices = Choices(None)
    choices.add([REST, Choice("other", "f", 100, "slow", 4.0)])
    impls = lambda: (Impl("slow", 2.0), Impl("fast", 1.0))  # noqa: E731
    assert tuner(choices).decide([rest(), job("a", *impls(), family="f", size=250)]) == ["one", "slow"]
    assert choices.get("a") == Choice("a", "a", 250, "slow", 10.0)
    assert tuner(choices).decide([rest(), job("b", *impls(), family="f", size=300)]) == ["one", "fast"]
    assert tuner(choices).decide([rest(), job("a", *impls(), family="f", size=250)]) == ["one", "slow"], (
        "at its own size it stays"
    )
    assert tuner(choices).decide([rest(), job("c", *impls(), family="f", size=400)]) == ["one", "fast"], (
        "what was measured still can be"
    )


def test_a_kept_choice_that_no_longer_applies_is_made_anew() -> None:
    choices = Choices(None)
    choices.add([Choice("a", "a", 1, "gone", 1.0)])
    assert (
        tuner(choices).decide([job("a", Impl("slow", 2.0), Impl("fast", 1.0))]) == ["fast"]
        and kept(choices, "a") == "fast"
    )


def test_without_measuring_the_first_is_taken() -> None:
    choices = Choices(None)
    first, second = Impl("first", 2.0), Impl("second", 1.0)
    assert tuner(choices, measure=False).decide([job("a", first, second)]) == ["first"]
    # launched once: its kernel is compiled
    assert len(first.seen) == 1 and second.seen == [] and kept(choices, "a") is None


def test_what_fails_is_not_taken() -> None:
    broken, works = Impl("broken", 0.0, RuntimeError("no kernel image")), Impl("works")
    too = Impl("too", 0.0, ValueError("no"))
    assert tuner().decide([job("a", broken, works), job("b", broken), job("c", broken, too)]) == [
        "works",
        REFERENCE,
        REFERENCE,
    ]


def test_what_fails_when_it_is_measured_is_not_taken() -> None:
    class Late(Impl):  # a matrix product is left out where kernels are only compiled
        @property
        def launch(self) -> Callable[..., Any]:
            self.error = RuntimeError("no workspace") if self.seen else None
            return super().launch

    broken, works = Late("broken", 0.0), Impl("works")
    choices = Choices(None)
    assert tuner(choices).decide([job("a", broken, works)]) == ["works"]
    assert kept(choices, "a") == "works" and len(broken.seen) == 2
    assert tuner(choices).decide([job("b", Late("one", 0.0), Late("two", 0.0))]) == [REFERENCE]


def test_a_thread_has_the_device_before_it_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuBLASLt found no context in a thread whose memory came from PyTorch's cache, and an impl that works counted as
    broken.
    """
    ready: set[int] = set()
    stream = SimpleNamespace(synchronize=lambda: ready.add(threading.get_ident()))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)

    class Strict(Impl):
        @property
        def launch(self) -> Callable[..., Any]:
            inner = super().launch

            def launch(*args: Any, **kwargs: Any) -> None:
                assert threading.get_ident() in ready or threading.current_thread() is threading.main_thread(), (
                    "no context"
                )
                inner(*args, **kwargs)

            return launch

    assert tuner().decide([job(str(i), Strict("slow", 2.0), Strict("fast", 1.0)) for i in range(20)]) == ["fast"] * 20


def test_what_another_thread_could_not_use_is_launched_in_this_one() -> None:
    """PyTorch keeps cuDNN's plans for attention for each thread, and for ever."""
    threads: dict[str, set[int]] = {}

    class Watched(Impl):
        @property
        def launch(self) -> Callable[..., Any]:
            inner = super().launch

            def launch(*args: Any, **kwargs: Any) -> None:
                threads.setdefault(self.name, set()).add(threading.get_ident())
                inner(*args, **kwargs)

            return launch

    bound, free = Watched("bound", per_thread=True), Watched("free")
    assert tuner(measure=False).decide([job("a", bound), job("b", free)]) == ["bound", "free"]
    assert threads["bound"] == {threading.get_ident()} and threading.get_ident() not in threads["free"]
    failing = Impl("failing", 0.0, RuntimeError("no plan"), per_thread=True)
    assert tuner().decide([job("a", failing, free)]) == ["free"]


def test_the_calling_thread_waits_for_no_memory_of_the_others() -> None:
    """It has the most to do: its plans of cuDNN's took longer than all that the others compiled."""
    launched = threading.Event()
    bound = SimpleNamespace(name="bound", per_thread=True, launch=lambda *args, **kwargs: launched.set())
    waiting = SimpleNamespace(
        name="waiting", per_thread=False, launch=lambda *args, **kwargs: waited.append(launched.wait(10))
    )
    waited: list[bool] = []
    # says that it takes all there is, and takes none
    large = torch.empty(1, device="meta", dtype=torch.float16).expand(_EXAMPLE_BYTES)
    assert tuner(measure=False).decide([Job("a", [waiting], (large,), {}), Job("b", [bound], (large,), {})]) == [
        "waiting",
        "bound",
    ]
    assert waited == [True]


@pytest.mark.parametrize(
    ("tensor", "nbytes"),
    [
        (torch.empty(2, 3, dtype=torch.float16), 24),
        (torch.empty(4, 9, dtype=torch.float16)[:, :3], 24 + 2 * (3 * 9 + 3)),  # with what lies between its rows
        (torch.empty(0, 9), 0),
    ],
)
def test_what_an_example_takes(tensor: torch.Tensor, nbytes: int) -> None:
    assert Job("a", [], (tensor, None, 3), {}).bytes == nbytes


def test_what_cannot_be_captured_is_taken_last() -> None:
    backend = FakeBackend()
    backend.failures = [RuntimeError("not permitted when stream is capturing"), None]
    assert Tuner(CPU, backend, Choices(None), True).decide([job("a", Impl("first", 1.0), Impl("second", 2.0))]) == [
        "second"
    ]
    assert backend.free == FakeBackend().free  # its own graphs are given back


@pytest.mark.parametrize("channels_last", [False, True])
def test_impls_are_tried_on_random_data_of_the_right_kind(channels_last: bool) -> None:
    impl, random = Impl("one"), torch.get_rng_state()
    tuner().decide([job("a", impl, Impl("other"), channels_last=channels_last)])
    ((x, (indices, nothing)), kwargs) = impl.seen[-1]
    assert x.shape == (2, 3, 4, 5) and x.dtype == torch.float16 and x.device == CPU and float(x.float().std()) > 0.5
    assert x.is_contiguous(memory_format=torch.channels_last) is channels_last
    assert not indices.any() and indices.dtype == torch.int64 and nothing is None and kwargs == {"eps": 1e-5}
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_numbers_of_8_bits_are_random_too(dtype: torch.dtype) -> None:
    """Zeros run faster than a model's weights do; and PyTorch has no random numbers of float8."""
    impl = Impl("one")
    given = Job("a", [impl, Impl("other")], (torch.empty(64, 64, dtype=dtype, device="meta"),), {})
    tuner().decide([given])
    ((numbers,), _) = impl.seen[-1]
    assert numbers.dtype == dtype and torch.isfinite(numbers.float()).all() and float(numbers.float().std()) > 8


class _Largest(TorchDispatchMode):
    """How many bytes the largest result of an operator has."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.bytes = max(self.bytes, result.nbytes if isinstance(result, torch.Tensor) else 0)
        return result


def test_an_example_takes_no_more_while_it_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight of 8 bits was drawn in 16 as a whole: three times its size, at the moment when memory is short."""
    monkeypatch.setattr("sfast_core.runtime.job._FILLED_AT_ONCE", 1000)
    given = Job("a", [Impl("one")], (torch.empty(1, 3, 4000, dtype=torch.float8_e4m3fn, device="meta"),), {})
    with _Largest() as largest:
        ((numbers,), _) = given.example(CPU)
    assert largest.bytes == numbers.nbytes and bool(numbers.view(torch.uint8).any(-1).all())


def test_compiling_computes_no_product() -> None:
    """Each thread that did would keep a workspace of cuBLAS."""
    products = []

    def launch(*args: Any, **kwargs: Any) -> None:
        products.append(F.linear(torch.ones(2, 3), torch.ones(4, 99)))  # can't be computed
        numbers = torch.ones(2, 3).to(torch.float8_e4m3fn)
        products.append(
            torch._scaled_mm(
                numbers,
                torch.ones(99, 4).to(torch.float8_e4m3fn),
                torch.ones(()),
                torch.ones(()),
                out_dtype=torch.bfloat16,
            )
        )

    assert tuner(measure=False).decide([job("a", SimpleNamespace(name="one", launch=launch, per_thread=False))]) == [
        "one"
    ]
    assert [(product.shape, product.dtype) for product in products] == [
        ((2, 4), torch.float32),
        ((2, 4), torch.bfloat16),
    ]
    reference = Impl(REFERENCE)
    assert tuner(measure=False).decide([job("a", reference)]) == [REFERENCE] and reference.seen == []
