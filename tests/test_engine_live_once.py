"""Code that runs live does so once for each call, and what it and the model leave for each other is what eager leaves."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, compile

OPS: Any = SimpleNamespace(apply=None, kept=None)
COUNT: Any = SimpleNamespace(n=0)
CALLS = 12
ON_CPU = CompileConfig(allow_cpu=True)


class Counting(nn.Module):
    """Counts its calls, and so runs live; ``does`` is given it, its input and its result from the eighth call on."""

    def __init__(self, does: Callable[..., Any]) -> None:
        super().__init__()
        self.linear, self.does, self.n = nn.Linear(8, 8), does, 0
        self.kept: Any = None

    def forward(self, x: torch.Tensor, box: Any = None) -> torch.Tensor:
        self.n += 1
        y = self.linear(x) * (self.n % 3 + 1)
        return self.does(self, x, y, box) if self.n > 7 else y


class Around(nn.Module):
    """A model with such a module: ``reads`` is how it goes on."""

    def __init__(self, does: Callable[..., Any], reads: Callable[..., Any]) -> None:
        super().__init__()
        self.linear, self.counting, self.reads = nn.Linear(8, 8), Counting(does), reads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.reads(self, self.linear(x))


def _raises(module: Any, x: torch.Tensor, y: torch.Tensor, box: Any) -> torch.Tensor:
    if module.n in (8, 11):
        raise KeyError(module.n)
    return y


def _keeps_its_result(module: Any, x: torch.Tensor, y: torch.Tensor, box: Any) -> torch.Tensor:
    module.kept = y
    return y


def _keeps_what_it_returns_a_view_of(module: Any, x: torch.Tensor, y: torch.Tensor, box: Any) -> torch.Tensor:
    module.kept = y
    return y[:]


def _keeps_what_it_is_handed(module: Any, x: torch.Tensor, y: torch.Tensor, box: Any) -> torch.Tensor:
    module.kept = x
    return y


def _puts(module: Any, x: torch.Tensor, y: torch.Tensor, box: Any) -> torch.Tensor:
    box["left"] = 1
    return y


def _caught(model: Around, x: torch.Tensor) -> torch.Tensor:
    try:
        return model.counting(x) + 1
    except KeyError:
        return x * 5


def _written(model: Around, x: torch.Tensor) -> torch.Tensor:
    y = model.counting(x)
    y += 1
    return y * 2


def _its_own_written(model: Around, x: torch.Tensor) -> torch.Tensor:
    y = model.counting(x)
    x += 1
    return y * x


def _returned(model: Around, x: torch.Tensor) -> torch.Tensor:
    return model.counting(x)


def _looked_into(model: Around, x: torch.Tensor) -> torch.Tensor:
    box: dict[str, int] = {}
    return model.counting(x, box) * (1 + len(box))


@pytest.mark.parametrize(
    ("does", "reads"),
    [
        (_raises, _caught),
        (_keeps_its_result, _written),
        (_keeps_its_result, _returned),
        (_keeps_what_it_returns_a_view_of, _written),
        (_keeps_what_it_is_handed, _its_own_written),
        (_puts, _looked_into),
    ],
)
def test_a_module_that_does_something_else_at_some_call(does: Any, reads: Any) -> None:
    eager = Around(does, reads).eval().requires_grad_(False)
    ours = copy.deepcopy(eager)
    compiled = compile(ours, ON_CPU)
    with torch.no_grad():
        for call in range(CALLS):
            x = torch.randn(2, 8)
            expected, got = eager(x), compiled(x)
            torch.testing.assert_close(got, expected)
            expected += 1
            got += 1  # the caller's, and perhaps the module's, too
            assert ours.counting.n == eager.counting.n == call + 1
            assert (ours.counting.kept is None) == (eager.counting.kept is None)
            if eager.counting.kept is not None:
                torch.testing.assert_close(ours.counting.kept, eager.counting.kept)
        assert compiled.engine.report.calls["fused"] > 3


def test_a_module_that_raises_does_so_once() -> None:
    ours = Around(_raises, lambda model, x: model.counting(x) + 1).eval().requires_grad_(False)
    compiled = compile(ours, ON_CPU)
    raised = []
    with torch.no_grad():
        for _ in range(CALLS):
            try:
                compiled(torch.randn(2, 8))
            except KeyError as error:
                raised.append(error.args[0])
    assert raised == [8, 11] and ours.counting.n == CALLS


# -- functions ----------------------------------------------------------------------------------------------------------


def counted(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """It reads another count at each call, and so runs live."""
    COUNT.n += 1
    return x * (COUNT.n % 3 + 1) * scale


class Delegates:
    """Writes down what it is called on the function that calls it, as Python's own mocks do."""

    function: Any = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.function.calls += 1
        self.function.log.append(1)
        return x * 2


DELEGATE = Delegates()


def delegating(x: torch.Tensor) -> torch.Tensor:
    """It calls that."""
    return DELEGATE(x)


class Functions(nn.Module):
    """Calls the function that is in the place, as ``calls`` says."""

    factor = 1.0

    def __init__(self, calls: Callable[..., Any]) -> None:
        super().__init__()
        self.linear, self.calls = nn.Linear(8, 8), calls

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.calls(self, self.linear(x))


def _reads_an_attribute(model: Functions, x: torch.Tensor) -> torch.Tensor:
    return OPS.apply(x) * OPS.apply.factor


def _reads_all_attributes(model: Functions, x: torch.Tensor) -> torch.Tensor:
    y = OPS.apply(x)
    for value in vars(OPS.apply).values():
        y = y * value
    return y


def _reads_defaults(model: Functions, x: torch.Tensor) -> torch.Tensor:
    return OPS.apply(x) * OPS.apply.__defaults__[0]


def _reads_what_a_partial_has(model: Functions, x: torch.Tensor) -> torch.Tensor:
    return OPS.apply(x) * OPS.apply.keywords["scale"] * OPS.apply.factor


def _writes_an_attribute(model: Functions, x: torch.Tensor) -> torch.Tensor:
    OPS.apply.mark = model.factor
    return OPS.apply(x)


def _set_factor(function: Any) -> None:
    function.factor = 3.0


def _set_another(function: Any) -> None:
    function.another = 3.0


def _set_defaults(function: Any) -> None:
    function.__defaults__ = (2.0,)


def _set_keywords(function: Any) -> None:
    function.keywords["scale"] = 2.0


def _set_mark(function: Any) -> None:
    function.mark = None


@pytest.mark.parametrize(
    ("calls", "partial", "change"),
    [
        (_reads_an_attribute, False, _set_factor),
        (_reads_an_attribute, True, _set_factor),
        (_reads_all_attributes, False, _set_another),
        (_reads_defaults, False, _set_defaults),
        (_reads_what_a_partial_has, True, _set_keywords),
        (_reads_what_a_partial_has, True, _set_factor),
        (_writes_an_attribute, False, _set_mark),
        (_writes_an_attribute, True, _set_mark),
    ],
)
def test_what_the_model_reads_of_a_function_that_runs_live(calls: Any, partial: bool, change: Any) -> None:
    eager = Functions(calls).eval().requires_grad_(False)
    xs = torch.randn(2 * CALLS, 2, 8)

    def pictures(model: Any) -> list[Any]:
        """Each call's result, how often the function ran, and what it was given."""
        made = functools.partial(counted, scale=1.0) if partial else _of_the_same_code()
        COUNT.n, OPS.apply, made.factor = 0, made, 1.0
        found = []
        for call, x in enumerate(xs):
            if call == CALLS:
                change(made)
            found.append((model(x), COUNT.n, getattr(made, "mark", None)))
        return found

    with torch.no_grad():
        expected = pictures(eager)
        for got, then in zip(pictures(compile(copy.deepcopy(eager), ON_CPU)), expected, strict=True):
            torch.testing.assert_close(got[0], then[0])
            assert got[1:] == then[1:]


def _of_the_same_code() -> Any:
    return type(counted)(counted.__code__, counted.__globals__, "counted", counted.__defaults__)


def _by_its_name(model: Functions, x: torch.Tensor) -> torch.Tensor:
    return delegating(x)


def test_a_function_runs_live_wherever_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here by the name in its file; the object on which it is, too, is read before."""
    monkeypatch.setattr(DELEGATE, "function", delegating)
    monkeypatch.setattr(delegating, "calls", 0, raising=False)
    monkeypatch.setattr(delegating, "log", [], raising=False)
    compiled = compile(Functions(_by_its_name).eval().requires_grad_(False), ON_CPU)
    with torch.no_grad():
        for call in range(CALLS):
            compiled(torch.randn(2, 8))
            assert delegating.calls == len(delegating.log) == call + 1  # type: ignore[attr-defined]
    assert compiled.engine.report.calls["fused"]


@pytest.mark.parametrize("autospec", [False, True])
def test_calls_of_a_mock_are_counted(autospec: bool) -> None:
    inner = Functions(lambda model, x: x * 2)
    compiled = compile(nn.Sequential(inner, nn.ReLU()).eval().requires_grad_(False), ON_CPU)
    with torch.no_grad():
        for _ in range(3):
            compiled(torch.randn(2, 8))
        effect = Functions.forward if autospec else inner.forward
        with mock.patch.object(Functions, "forward", autospec=autospec, side_effect=effect) as there:
            for call in range(CALLS):
                compiled(torch.randn(2, 8))
                assert there.call_count == call + 1


class Writes(nn.Module):
    """Runs live, keeps what it is handed and writes to it."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[torch.Tensor] = []
        self.n = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        self.kept.append(x)
        x[:, :2] *= 1.3
        return x * (self.n % 3 + 1)


def test_what_it_writes_to_what_it_keeps_is_its_own() -> None:
    """What it was handed has the write already: this is no reason to run without a program."""
    model = nn.Sequential(nn.Linear(8, 8), Writes(), nn.Linear(8, 8)).requires_grad_(False)
    twin = copy.deepcopy(model)
    fast = compile(model, ON_CPU)
    for _ in range(CALLS):
        x = torch.randn(2, 8)
        torch.testing.assert_close(fast(x), twin(x))
    torch.testing.assert_close(model[1].kept, twin[1].kept)
    assert model[1].n == CALLS and fast.report().as_dict()["modules"][0]["calls"]["fused"] > CALLS / 2
