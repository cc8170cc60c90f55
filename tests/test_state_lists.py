"""Lists and options that a forward fills for its caller."""

from __future__ import annotations

import copy
import functools
import pickle
from collections import OrderedDict, defaultdict
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, compile
from tests.test_state import Model, Twins, assert_alike


class Frames(nn.Module):
    """A video's decoder: it keeps each convolution's last frames in a list, and counts in another."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(4, 4, 3) for _ in range(2))

    def forward(
        self, x: torch.Tensor, feat_cache: list[Any] | None = None, feat_idx: list[int] | None = None
    ) -> torch.Tensor:
        for conv in self.convs:
            if feat_cache is None or feat_idx is None:
                x = conv(nn.functional.pad(x, (2, 0)))
                continue
            index, kept = feat_idx[0], x[..., -2:].clone()
            before = feat_cache[index]
            if kept.shape[-1] < 2 and before is not None and before != "none":
                kept = torch.cat([before[..., -1:], kept], -1)
            missing = 2 if before is None else 2 - before.shape[-1]
            x = conv(nn.functional.pad(x if before is None else torch.cat([before, x], -1), (missing, 0)))
            feat_cache[index] = kept
            feat_idx[0] += 1
        return x


def test_a_list_of_frames_is_filled_in_place(path: str) -> None:
    twins = Twins(Frames)
    for _ in range(3):
        mine, theirs = [None, None], [None, None]
        for _ in range(5):
            counts = [0], [0]
            x = torch.randn(1, 4, 1)
            with torch.inference_mode():
                results = [
                    m(x, feat_cache=c, feat_idx=i)
                    for m, c, i in ((twins.model, mine, counts[0]), (twins.slow, theirs, counts[1]))
                ]
            assert_alike(*results)
            assert_alike((mine, counts[0]), (theirs, counts[1]))
    assert twins.calls == {"traced": 3, path: 12}


class Drawing(nn.Module):
    """Can't be recorded, and leaves something in a list and a dict that it is handed, as often as it is told to."""

    def forward(self, x: torch.Tensor, kept: list[torch.Tensor], table: dict[str, Any], write: bool) -> torch.Tensor:
        if write:
            kept.append(x + 1)
            kept[0] = kept[0] * 2
            table["last"] = x - 1
        return x + 0 * torch.rand(())


class HandsOn(nn.Module):
    """Reads what its layer has left."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drawing, self.last = nn.Linear(8, 8), Drawing(), nn.Linear(8, 8)
        self.write = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept: list[torch.Tensor] = [x]
        table: dict[str, Any] = {"last": x}
        x = self.drawing(self.first(x), kept, table, self.write)
        return self.last(x) + sum(kept) + table["last"]


@pytest.mark.parametrize("from_the_start", [True, False])
def test_what_a_part_that_runs_live_leaves_in_a_list_is_there(path: str, from_the_start: bool) -> None:
    net = HandsOn().eval()
    handle = compile(net, CompileConfig(allow_cpu=True))
    for step in range(8):
        net.write = from_the_start or step > 3
        x = torch.randn(2, 8)
        with torch.inference_mode():
            torch.testing.assert_close(net(x), HandsOn.forward(net, x), rtol=1e-5, atol=1e-6)
    calls = handle.engine.report.calls
    assert calls["eager"] and bool(calls[path]) is not from_the_start, handle.report().text()


class Numbering(nn.Module):
    """Can't be recorded, and leaves a number in the options that it is handed, as blocks of diffusion models leave
    where they are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps = [0]

    def forward(self, x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        self.steps[0] += 1
        options["block_index"] = 3 if self.steps[0] < 12 else 4
        options["shape"] = [*x.shape, options["block_index"]]
        return x + 0 * torch.rand(())


class HandsOptionsOn(nn.Module):
    """Reads that number, and hands it on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.numbering, self.last = nn.Linear(8, 8), Numbering(), nn.Linear(8, 8)
        self.changes = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        options: dict[str, Any] = {"block_index": 0, "others": [1]}
        x = self.numbering(self.first(x), options)
        if self.changes:
            options["shape"].append(7)
            self.numbering.seen = list(options["shape"])
        return self.last(x) * options["block_index"] + options["shape"][-1]


def test_a_part_that_runs_live_may_leave_plain_values_in_options(path: str) -> None:
    net, slow = HandsOptionsOn().eval(), HandsOptionsOn().eval()
    slow.load_state_dict(net.state_dict())
    handle = compile(net, CompileConfig(allow_cpu=True))
    calls = []
    for _ in range(16):
        slow.numbering.steps[0] = net.numbering.steps[0]
        x = torch.randn(2, 8)
        with torch.inference_mode():
            torch.testing.assert_close(net(x), slow(x), rtol=1e-5, atol=1e-6)
        calls.append(handle.engine.report.calls[path])
    assert calls[8] >= 5 and calls[15] > calls[12], handle.report().text()


def test_a_list_that_such_a_part_leaves_may_be_changed_by_others(path: str) -> None:
    net, slow = HandsOptionsOn().eval(), HandsOptionsOn().eval()
    slow.load_state_dict(net.state_dict())
    net.changes = slow.changes = True
    compile(net, CompileConfig(allow_cpu=True))
    for _ in range(6):
        slow.numbering.steps[0] = net.numbering.steps[0]
        x = torch.randn(2, 8)
        with torch.inference_mode():
            torch.testing.assert_close(net(x), slow(x), rtol=1e-5, atol=1e-6)
        assert net.numbering.seen == slow.numbering.seen


class Generates(Model):
    """As transformers' models, asks for what torch.compile makes of it."""

    def get_compiled_call(self, config: Any) -> Any:
        return config


def test_of_two_compilers_one() -> None:
    model = Generates()
    handle = compile(model, CompileConfig(allow_cpu=True))
    assert model.get_compiled_call("theirs") == model.__call__
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.get_compiled_call("theirs") == "theirs"
    handle.uninstall()
    assert model.get_compiled_call("theirs") == "theirs" and "get_compiled_call" not in vars(model)


class Kept:
    """An object that nobody takes apart, with a state of its own."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(steps=torch.zeros(1), **attributes)


class Unknown(nn.Module):
    """Its cache holds an object that no signature can have, and so does its result."""

    def forward(self, x: torch.Tensor, cache: dict[str, Any]) -> Any:
        cache["kept"].steps.add_(1)
        cache["last"] = x + cache["kept"].steps
        return Kept(last=cache["last"] * 2, cache=cache)


def test_a_call_that_cannot_be_described_has_run_once(path: str) -> None:
    twins, mine, theirs = Twins(Unknown), {"kept": Kept()}, {"kept": Kept()}
    with torch.inference_mode():
        for _ in range(3):
            x = torch.randn(2, 8)
            result, expected = twins.model(x, mine), twins.slow(x, theirs)
            assert result.cache is mine
            assert_alike(result.last, expected.last)
            assert_alike((mine["last"], mine["kept"].steps), (theirs["last"], theirs["kept"].steps))


class Ordered(nn.Module):
    """It puts a tensor in the place of another."""

    def forward(self, x: torch.Tensor, cache: Any) -> torch.Tensor:
        y = x + cache[0]
        cache[0] = x * 2
        return y


class Row(list[Any]):
    """A list of a class of its own."""


@pytest.mark.parametrize("kind", [OrderedDict, functools.partial(defaultdict, list), Row, list, dict])
def test_what_is_put_into_a_cache_of_any_class_is_there(kind: Any, path: str) -> None:
    twins, before = Twins(Ordered), torch.zeros(2, 8)
    mine, theirs = (Row([before]) if kind is Row else kind({0: before}) if kind is not list else [before] for _ in "12")
    for _ in range(4):
        twins(torch.randn(2, 8), mine, theirs)
        assert_alike(mine[0], theirs[0])


class Keeping(nn.Module):
    """It keeps the cache that it is given, and goes on with it where none is given."""

    def forward(self, x: torch.Tensor, cache: Any = None) -> torch.Tensor:
        if cache is None:
            cache = self.kept[0]
        self.kept = [cache]
        cache["y"] = [x + each for each in cache.get("y", [x])]
        return cache["y"][0] * 2


def test_a_cache_that_the_module_keeps_is_the_callers(path: str) -> None:
    twins, mine, theirs = Twins(Keeping), {}, {}  # type: ignore[var-annotated]
    with torch.inference_mode():
        for given in (True, False, True, True, False):
            x = torch.randn(2, 8)
            results = [m(x, c) if given else m(x) for m, c in ((twins.model, mine), (twins.slow, theirs))]
            assert_alike(*results)
            assert_alike(mine, theirs)
            assert twins.model.kept[0] is mine


class Viewing(nn.Module):
    """It writes to one tensor of its cache in place, and returns parts of that, of another and of what it computes."""

    def forward(self, x: torch.Tensor, cache: dict[str, torch.Tensor]) -> Any:
        cache["a"].add_(x)
        y = x * 2
        return cache["a"][:1], y, y[1], cache["b"][0]


def test_parts_of_a_caches_tensors_are_parts_of_them(path: str) -> None:
    twins = Twins(Viewing)
    mine, theirs = ({"a": torch.zeros(2, 8), "b": torch.zeros(2, 8)} for _ in range(2))
    for step in range(4):
        results = twins(torch.randn(2, 8), mine, theirs)
        with torch.inference_mode():
            for result, cache in zip(results, (mine, theirs), strict=True):
                cache["a"][0, 0] = cache["b"][0, 0] = result[1][1, 0] = step
                assert result[0][0, 0] == result[2][0] == result[3][0] == step
    assert twins.calls == {"traced": 1, path: 3}


class Overlapping(nn.Module):
    """It reads one tensor of its cache behind a write to another."""

    def forward(self, x: torch.Tensor, cache: dict[str, torch.Tensor]) -> torch.Tensor:
        cache["a"].add_(x)
        return cache["b"] * 2


def test_tensors_of_a_cache_that_have_elements_in_common(path: str) -> None:
    twins = Twins(Overlapping)
    for _ in range(3):
        mine, theirs = ({"a": t, "b": t[:1]} for t in (torch.zeros(2, 8), torch.zeros(2, 8)))
        twins(torch.randn(2, 8), mine, theirs)
    for _ in range(3):
        mine, theirs = ({"a": torch.zeros(2, 8), "b": torch.ones(1, 8)} for _ in range(2))
        twins(torch.randn(2, 8), mine, theirs)
    assert twins.calls[path] == 2
