"""What may be configured, and the errors that name the field."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from sfast_core import CompileConfig


def test_every_field_has_a_default_and_a_documentation() -> None:
    """That ``help(CompileConfig)`` shows."""
    CompileConfig()
    attributes = str(CompileConfig.__doc__).partition("Attributes:\n")[2].partition("Raises:")[0]
    documented = re.findall(r"^        (\w+): ", attributes, re.MULTILINE)
    assert documented == list(CompileConfig.names()) == [field.name for field in dataclasses.fields(CompileConfig)]


def test_another_config_by_its_fields() -> None:
    config = CompileConfig(tolerance=0.5)
    assert config.replace(measure=False) == CompileConfig(tolerance=0.5, measure=False) and config.measure
    with pytest.raises(ValueError, match="CompileConfig.capture_after: got 1"):
        config.replace(capture_after=1)


def test_equal_configs_are_one_key_and_none_can_be_changed() -> None:
    one, other = CompileConfig(disabled_passes=("fuse_conv_act",)), CompileConfig(disabled_passes=["fuse_conv_act"])  # type: ignore[arg-type]
    assert one == other and hash(one) == hash(other) and one != CompileConfig() and {one: 1}[other] == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.cuda_graphs = False  # type: ignore[misc]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"capture_after": 1}, "CompileConfig.capture_after: got 1, needs 2 or more"),
        ({"max_signatures": 0}, "CompileConfig.max_signatures: got 0, needs 1 or more"),
        ({"graph_budget_bytes": -1}, "CompileConfig.graph_budget_bytes: got -1, needs 0 or more, or None"),
        (
            {"disabled_passes": "fuse_linear"},
            "CompileConfig.disabled_passes: got 'fuse_linear', needs a tuple of names",
        ),
        ({"disabled_impls": "attention.*"}, "CompileConfig.disabled_impls: got 'attention.*', needs a tuple of names"),
        ({"disabled_passes": (1,)}, "CompileConfig.disabled_passes: got (1,), needs a tuple of names"),
        (
            {"disabled_passes": ("fuse_linaer",)},
            "CompileConfig.disabled_passes: got fuse_linaer, known are canonicalise, ",
        ),
        (
            {"disabled_impls": ("attention.cda",)},
            "CompileConfig.disabled_impls: got 'attention.cda', which fits no kernel; known are ",
        ),
        ({"cuda_graphs": "off"}, "CompileConfig.cuda_graphs: got 'off', needs True or False"),
        ({"adopt_weights": 1}, "CompileConfig.adopt_weights: got 1, needs True or False"),
        ({"measure": None}, "CompileConfig.measure: got None, needs True or False"),
        ({"allow_cpu": "1"}, "CompileConfig.allow_cpu: got '1', needs True, False or None"),
        ({"capture_after": 2.5}, "CompileConfig.capture_after: got 2.5, needs 2 or more"),
        ({"max_signatures": True}, "CompileConfig.max_signatures: got True, needs 1 or more"),
        ({"graph_budget_bytes": "1GB"}, "CompileConfig.graph_budget_bytes: got '1GB', needs 0 or more, or None"),
        ({"tolerance": float("nan")}, "CompileConfig.tolerance: got nan, needs 0 or more, or None"),
        ({"tolerance": -1e-3}, "CompileConfig.tolerance: got -0.001, needs 0 or more, or None"),
    ],
)
def test_a_field_out_of_range_is_named(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as caught:
        CompileConfig(**fields)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("allow", "variable", "allowed"),
    [
        (None, None, False),
        (None, "", False),
        (None, "0", False),
        (None, "1", True),
        (False, "1", False),
        (True, None, True),
    ],
)
def test_who_allows_a_cpu(
    monkeypatch: pytest.MonkeyPatch, allow: bool | None, variable: str | None, allowed: bool
) -> None:
    monkeypatch.delenv("FAST_COMPILE_CPU", raising=False)
    if variable is not None:
        monkeypatch.setenv("FAST_COMPILE_CPU", variable)
    assert CompileConfig(allow_cpu=allow).cpu_allowed() is allowed
