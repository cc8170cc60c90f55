"""Arguments of live code, made again at each call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from sfast_core.capture import CaptureError
from sfast_core.capture.live import Form, Surroundings, Traced, Unread, again, copies, outline
from sfast_core.capture.live.kept import InOptions, Kept
from sfast_core.capture.live.structure import Structure, match, pattern_of
from sfast_core.capture.live.template import Constant, DictBox, Filling, ListBox, OptionAt, TensorAt


def test_a_dict_is_one_object_for_the_whole_call_and_keeps_what_others_put_there() -> None:
    around = Surroundings({"sigmas": 1.5})
    by = Filling([torch.ones(2)], around)
    first = DictBox(0, [("block", Constant(1)), ("sigmas", OptionAt(("sigmas",))), ("x", TensorAt(0))]).fill(by)
    assert list(first) == ["block", "sigmas", "x"] and first["sigmas"] == 1.5 and first["x"] is by.tensors[0]
    first["theirs"] = "left"
    second = DictBox(0, [("block", Constant(2))], removed=("x",)).fill(by)
    assert second is first and second == {"block": 2, "sigmas": 1.5, "theirs": "left"}
    assert DictBox(0, [("block", Constant(1))]).fill(Filling([], Surroundings())) == {"block": 1}


def test_a_list_is_one_object_too() -> None:
    by = Filling([], Surroundings())
    first = ListBox(3, (Constant(1),)).fill(by)
    assert ListBox(3, (Constant(2), Constant(3))).fill(by) is first == [2, 3]


def test_copies_have_the_form_and_are_normal_tensors_that_count_writes() -> None:
    like = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    with torch.inference_mode():
        (copy,) = copies([Form.of(like)], [like.contiguous()])
        version = copy._version
        copy[0].mul_(2)
    assert copy.stride() == like.stride() and not copy.is_inference() and copy._version > version
    assert Form.of(torch.randn(3, 1).expand(3, 4)).stride == (4, 1)


def test_what_is_unread_may_be_handed_on_and_not_used() -> None:
    around = Surroundings({"step": 3, "state": object()})
    mark = Traced(around).unread(("step",))
    for use in (
        lambda: mark + 1,
        lambda: int(mark),
        lambda: mark[0],
        lambda: mark(),
        lambda: mark.attribute,
        lambda: len(mark),
        lambda: bool(mark),
    ):
        with pytest.raises(CaptureError, match="'step'"):
            use()
    assert around.mentioned == {"step"} and {**{"a": mark}}["a"].copy() is mark


def test_a_structure_has_options_by_their_place() -> None:
    state = object()
    one, other = Surroundings({"state": state, "step": 1}), Surroundings({"state": (mine := object()), "step": 2})
    one.unread = other.unread = frozenset({"step"})
    a = Structure({"state": state, "step": 1, "x": torch.ones(2)}, one)
    b = Structure({"state": mine, "step": 2, "x": torch.zeros(2)}, other)
    assert a.key == b.key and len(a.tensors) == 1 and a.unknown is None
    assert a.key != Structure({"state": mine, "step": 1, "x": torch.zeros(2)}, other).key
    assert "object" in str(Structure(object(), one).unknown)


def test_of_a_dict_that_is_returned_only_what_is_used_counts() -> None:
    x, y = torch.ones(2), torch.ones(3)
    around = Surroundings()
    pattern = pattern_of({"img": x, "txt": y, "more": None}, around, [x, y])
    found = [None, None]
    assert match(pattern, {"img": x, "more": None, "other": 1}, frozenset({0}), found) and found[0] is x
    assert not match(pattern, {"img": x, "more": None}, frozenset({0, 1}), [None, None])
    assert not match(pattern, {"img": y, "more": None}, frozenset({0}), [None, None])
    assert not match(pattern, {"img": x, "more": 1}, frozenset({0}), [None, None])


def test_what_has_run_hands_back_what_it_returned() -> None:
    calls = []
    around = Surroundings({"patches": {"a": [lambda x: (calls.append(x), x + 1)[1]]}})
    table = again(around.options["patches"], ("patches",), around)
    around.note_ran(InOptions(("patches", "a", 0), "a"), ((), {}), "kept", [], [], 0)
    assert table["a"][0](1) == "kept" and calls == []
    assert table["a"][0](1) == 2 and calls == [1]


def test_an_outline_has_where_functions_are() -> None:
    tables = [
        {"a": [lambda: 1, (int, lambda: 2)]},
        {"a": [lambda: 3, (int, lambda: 4)]},
        {"a": [lambda: 3, (str, lambda: 4)]},
        {"a": [lambda: 1]},
    ]
    one, same, other, fewer = map(outline, tables)
    assert one == same and one != other and one != fewer


class _Reading(torch.nn.Module):
    """Looks at an option, itself or in a module below it."""

    def __init__(self, below: torch.nn.Module | None = None) -> None:
        super().__init__()
        self.below = below

    def forward(self, option: Any) -> int:
        return len(option) if self.below is None else self.below(option)


def test_who_looked_at_an_unread_option_that_no_signature_can_have() -> None:
    """A module below the one that is called may run live; else the option is to be part of the signature, which says
    why it can't.
    """
    for below, value in ((_Reading(), [object()]), (None, [object()]), (_Reading(), [1.0])):
        root = _Reading(below)
        around = Surroundings({"bank": value}, root)
        with pytest.raises(CaptureError, match="the model reads 'bank' from its options"):
            root(Unread(("bank",), around))
        if below is not None and value != [1.0]:
            assert around.inside[0] is below and not around.mentioned
        else:
            assert not around.inside and around.mentioned == {"bank"}


@pytest.mark.parametrize(
    "around",
    [lambda box: box, lambda box: (1, box), lambda box: {"k": [box, 2]}],
    ids=["itself", "in a tuple", "in a dict's list"],
)
def test_a_list_that_live_code_keeps_is_itself_in_the_result(around: Any) -> None:
    models, own = [1.0], [1.0]
    kept = Kept(models, own, "theirs")
    leaves = tree_leaves(kept.put_into(around(models)), is_leaf=lambda value: value is own)
    assert any(leaf is own for leaf in leaves)
    other = around([1.0])
    assert kept.put_into(other) is other
