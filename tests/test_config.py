"""What may be configured, and the errors that name the field."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from sfast_core import CompileConfig


def test_every_field_has_a_default_and_a_documentation() -> None:
    import ast
    import inspect

    CompileConfig()
    (body,) = [node.body for node in ast.parse(inspect.getsource(CompileConfig)).body if isinstance(node, ast.ClassDef)]
    documented = {
        before.target.id
        for before, after in zip(body, body[1:], strict=False)
        if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name) and isinstance(after, ast.Expr)
    }
    assert documented == set(CompileConfig.names()) == {field.name for field in dataclasses.fields(CompileConfig)}


def test_equal_configs_are_one_key_and_none_can_be_changed() -> None:
    one, other = CompileConfig(disabled_passes=("a",)), CompileConfig(disabled_passes=["a"])  # type: ignore[arg-type]
    assert one == other and hash(one) == hash(other) and one != CompileConfig() and {one: 1}[other] == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.cuda_graphs = False  # type: ignore[misc]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"capture_after": 1}, "CompileConfig.capture_after: got 1, needs 2 or more"),
        ({"max_signatures": 0}, "CompileConfig.max_signatures: got 0, needs 1 or more"),
        ({"graph_budget_bytes": -1}, "CompileConfig.graph_budget_bytes: got -1, needs 0 or more, or None"),
        ({"disabled_passes": "fuse_linear"}, "CompileConfig.disabled_passes: got one string, needs a tuple of names"),
        ({"disabled_impls": "attention.*"}, "CompileConfig.disabled_impls: got one string, needs a tuple of names"),
    ],
)
def test_a_field_out_of_range_is_named(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as caught:
        CompileConfig(**fields)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("allow", "variable", "allowed"),
    [(None, None, False), (None, "", False), (None, "0", False), (None, "1", True), (False, "1", False), (True, None, True)],
)
def test_who_allows_a_cpu(monkeypatch: pytest.MonkeyPatch, allow: bool | None, variable: str | None, allowed: bool) -> None:
    monkeypatch.delenv("FAST_COMPILE_CPU", raising=False)
    if variable is not None:
        monkeypatch.setenv("FAST_COMPILE_CPU", variable)
    assert CompileConfig(allow_cpu=allow).cpu_allowed() is allowed
