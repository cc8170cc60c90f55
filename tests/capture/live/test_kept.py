"""What somebody keeps of what live code returns or is handed, by its place."""

from __future__ import annotations

from typing import Any

import torch

from sfast_core.capture.live.functions import InTable
from sfast_core.capture.live.kept import kept_of
from sfast_core.capture.live.looked import Looked
from sfast_core.capture.live.surroundings import Surroundings


def test_lists_are_the_models_by_their_places() -> None:
    first, second = [1], {"a": [2]}
    own = (first, second)
    models = ([1], {"a": [2]})
    kept = kept_of(models, own, {id(first), id(second["a"])}, "somebody")
    assert [each.models for each in kept] == [models[0], models[1]["a"]] and kept[0].models is models[0]
    assert kept[1].own is second["a"]


def test_the_calls_options_are_not_looked_into() -> None:
    """The model has something else in their place, with other content: to tell what was kept raised an error."""
    options: dict[str, Any] = {"patches": [[1], [2]]}
    seen = [3]
    own, models = {"img": seen, "transformer_options": options}, {"img": [3], "transformer_options": object()}
    (kept,) = kept_of(models, own, {id(seen), id(options["patches"])}, "somebody")
    assert kept.models is models["img"] and kept.own is seen


def test_looking_for_them_is_no_look_up_of_the_models() -> None:
    """What the model has looked up is what a later call's result has to have, too."""
    cache = [1]
    models = Looked({"img": 1, "cache": Looked({"seen": cache})})
    assert not kept_of(models, {"img": 1, "cache": {"seen": cache}}, set(), "somebody")
    assert not models.looks.keys and not models.looks.everything


def test_what_live_code_has_left_counts_where_the_call_is_finished() -> None:
    """Tensors have their numbers with it: what was written went to another tensor, of another shape."""
    table: dict[str, Any] = {}
    where = InTable(table, "hook", None, "because")

    def hook(cache: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        cache["seen"] = torch.ones(5)
        return x.add_(1)

    x, handed = torch.zeros(2), torch.zeros(2)
    around, args = Surroundings(), ({}, handed)
    before = around.contents((args, {}))
    result = hook(*args)
    left = [content.left() for content in before]
    written = [(handed, handed)]
    around.note_ran(where, (args, {}), result, [handed], written, result.nbytes, left, frozenset({id(handed)}))
    cache: dict[str, torch.Tensor] = {}
    again = around.again(where.key, hook, (cache, x), {})
    assert torch.equal(x, torch.ones(2)) and again.data_ptr() == x.data_ptr() and cache["seen"].shape == (5,)
    ((ref, own),) = around.copied
    assert ref() is handed and own is x
