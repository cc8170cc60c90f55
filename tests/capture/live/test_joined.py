"""What live code gives back may at another call be what it was given:
a write to the one is then a write to the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import nn

from tests.live import Host

NAME = "fast_compile_joined"


@pytest.fixture(scope="module", autouse=True)
def library() -> Iterator[Any]:
    library = torch.library.Library(NAME, "DEF")
    library.define("enlarge_(Tensor(a!) x) -> ()")
    library.impl("enlarge_", _enlarge, "CPU")
    yield library


def _enlarge(x: torch.Tensor) -> None:
    x.mul_(2)


class Changes(nn.Module):
    """Changes what a function gives back, in place or by an operator of a library's."""

    def __init__(self, by_operator: bool) -> None:
        super().__init__()
        self.out, self.by_operator = nn.Linear(8, 8), by_operator

    def forward(self, x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        (function,) = options["before"]
        x = function(x, options)
        if self.by_operator:
            getattr(torch.ops, NAME).enlarge_(x)
        else:
            x.mul_(2)
        return self.out(x)


@pytest.mark.parametrize("by_operator", [False, True])
def test_a_write_that_may_be_one_to_an_input(by_operator: bool) -> None:
    """In a call in which it is one, the original forward finishes the call, and the caller's tensor is written to."""
    host = Host(Changes(by_operator))
    another, itself = (lambda x, options: x.clone()), (lambda x, options: x)
    for gives in (another, another, itself):
        x = torch.randn(2, 5, 8)
        mine, theirs = x.clone(), x.clone()
        torch.testing.assert_close(host(mine, before=[gives]), host.eager(theirs, before=[gives]))
        assert torch.equal(mine, theirs)
    assert host.calls == {"traced": 1, "fused": 1, "eager": 1}
    assert any("lies elsewhere" in reason for reason in host.engine.report.reasons)


class Writes(nn.Module):
    """Hands two tensors on, of which one is written to."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        h = self.out(x)
        (function,) = options["before"]
        return self.out(function(h[:, :3], h[:, 2:], options))


def test_tensors_that_overlap_do_so_in_live_code() -> None:
    def writes(one: torch.Tensor, other: torch.Tensor, options: Any) -> torch.Tensor:
        one.add_(1)
        return other * 2

    host = Host(Writes())
    for _ in range(3):
        x = torch.randn(2, 5, 8)
        torch.testing.assert_close(host(x, before=[writes]), host.eager(x, before=[writes]))
    assert any("lie in one memory" in reason for reason in host.engine.report.reasons)


def test_tensors_that_overlap_may_be_read() -> None:
    host = Host(Writes())
    for _ in range(3):
        x = torch.randn(2, 5, 8)
        reads = lambda one, other, options: one * 2 + other  # noqa: E731
        torch.testing.assert_close(host(x, before=[reads]), host.eager(x, before=[reads]))
    assert host.calls == {"traced": 1, "fused": 2}


class Reads(nn.Module):
    """Changes in place what a function gives back, or what it was given, and reads the other of them.

    Args:
        changes_given: which.
        live: hands both to another function, which may write to what it is handed.
    """

    def __init__(self, changes_given: bool, live: bool) -> None:
        super().__init__()
        self.out, self.changes_given, self.live = nn.Linear(8, 8), changes_given, live

    def forward(self, x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        given = self.out(x)
        back = options["before"][0](given, options)
        changed, other = (given, back) if self.changes_given else (back, given)
        if self.live:
            options["before"][1](changed, options)
        else:
            changed.mul_(2)
        return self.out(other + 0.5 * changed.sum(1, keepdim=True))


def _itself(x: torch.Tensor, options: Any) -> torch.Tensor:
    return x


def _another(x: torch.Tensor, options: Any) -> torch.Tensor:
    return x * 1.5


def _a_part(x: torch.Tensor, options: Any) -> torch.Tensor:
    return x[:, 1:4]


def _another_part(x: torch.Tensor, options: Any) -> torch.Tensor:
    return x[:, :3]


def _a_copy_of_a_part(x: torch.Tensor, options: Any) -> torch.Tensor:
    return x[:, :3].clone()


def _backwards(x: torch.Tensor, options: Any) -> torch.Tensor:
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _doubles(x: torch.Tensor, options: Any) -> None:
    x.mul_(2)


WHOLE, PARTS = (_itself, _another, _backwards), (_a_part, _another_part, _a_copy_of_a_part)


@pytest.mark.parametrize("changes_given", [False, True])
@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("ways", [*permutations(WHOLE, 2), *permutations(PARTS, 2)])
def test_what_is_given_back_may_be_what_was_given(changes_given: bool, live: bool, ways: tuple[Any, ...]) -> None:
    """In some calls and not in others, and then a write to the one is one to the other; each way is traced once."""
    host = Host(Reads(changes_given, live))
    for step in range(8):
        x = torch.randn(2, 5, 8)
        functions = [ways[step // 2 % 2], _doubles]
        torch.testing.assert_close(host(x, before=functions), host.eager(x, before=functions))
    assert host.calls["traced"] + host.calls.get("fused", 0) >= 5, (host.calls, host.engine.report.text())


class Steers(nn.Module):
    """Hands two tensors to a function that changes one and gives the other back, as ComfyUI's Lumina does."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        first = h = self.out(x)
        for function in options["before"]:
            h = self.out(h)
            out = function({"img": h[:, 1:], "first": first[:, 1:], "options": options})
            if "img" in out:
                h[:, 1:] = out["img"]
            h = h + out["first"].mean()
        return h + first


def test_a_write_beside_what_is_given_back() -> None:
    """One trace, and every call uses it."""

    def control(args: dict[str, Any]) -> dict[str, Any]:
        img = args.pop("img")
        img[:, :2] += args["first"][:, :2] * 0.5
        return args

    host = Host(Steers())
    for _ in range(4):
        x = torch.randn(2, 5, 8)
        torch.testing.assert_close(host(x, before=[control, control]), host.eager(x, before=[control, control]))
    assert host.calls == {"traced": 1, "fused": 3}, host.engine.report.text()
