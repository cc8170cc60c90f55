"""Every check of what a call reads and leaves behind matters: where one is left out, a scenario that is named here goes
wrong.

The scenarios are those of other tests: a change that is noticed no more, an effect that is lost, an argument that is
taken for another.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sfast_core.capture.guards import bytecode, guard
from sfast_core.capture.guards.places import Places
from tests.capture.effects.test_effects import test_a_call_leaves_behind_what_it_does as check_effect
from tests.capture.guards import faults_in_comparing, faults_in_leaving, faults_in_reading
from tests.capture.guards.test_asked_for import Patch
from tests.capture.guards.test_asked_for import test_what_is_asked_again as check_asked
from tests.capture.guards.test_asked_for import test_what_is_asked_of_an_input as check_asked_of_an_input
from tests.capture.guards.test_computed_names import Options
from tests.capture.guards.test_computed_names import test_a_change_is_noticed as check_computed_name
from tests.capture.guards.test_easily_overlooked import test_a_change_that_steers as check_overlooked
from tests.capture.guards.test_files_by_name import test_a_file_that_is_found_by_its_name as check_file
from tests.capture.guards.test_rebound import FORWARDS
from tests.capture.guards.test_rebound import test_whatever_code_puts_it_there as check_rebound
from tests.capture.guards.unseen import UNSEEN
from tests.capture.steering.test_arguments import test_an_object_that_is_read_is_nothing_to_trace as check_argument
from tests.capture.steering.test_steering import test_a_change_is_noticed as check_steering
from tests.capture.steering.test_structure import test_a_change_is_noticed as check_structure
from tests.capture.steering.worlds import cases
from tests.capture.test_passed_tensors import (
    test_what_is_passed_is_told_from_what_was_passed_to_the_trace as check_passed,
)
from tests.planting import planted
from tests.test_engine_options_kept import test_a_class_that_is_set_to_what_it_was as check_set
from tests.test_engine_options_kept import test_live_code_that_looks_for_them_there as check_looked_for

Fault = tuple[Any, str, str, str, str]
FAULTS = (*faults_in_reading.FAULTS, *faults_in_comparing.FAULTS, *faults_in_leaving.FAULTS)

CASES = {str(case): case for case, _ in cases()}


def check(scenario: str, folder: Path) -> None:
    """Run a scenario, which raises where it goes wrong."""
    kind, _, name = scenario.partition(":")
    with Patch.context() as patch:
        assert isinstance(patch, Patch)
        asked = patch
        run: dict[str, Callable[[], Any]] = {
            "asked": lambda: check_asked(name, asked, folder),
            "asked of an input": lambda: check_asked_of_an_input(name),
            "unseen": lambda: UNSEEN[name](),
            "overlooked": lambda: check_overlooked(name, patch),
            "structure": lambda: check_structure(name),
            "computed name": lambda: check_computed_name(patch, name, Options),
            "arguments": lambda: check_argument(name),
            "options": {"set to what it was": check_set, "live code looks for them": check_looked_for}.get(name, str),
            "effect": lambda: check_effect(name, folder),
            "passed": lambda: check_passed(name),
            "rebound": lambda: check_rebound({each.__name__: each for each in FORWARDS}[name]),
            "file": lambda: check_file(name, asked),
            "steering": lambda: check_steering(CASES[name], folder),
        }
        run[kind]()


@pytest.mark.parametrize("name", UNSEEN)
def test_what_no_read_set_sees(name: str) -> None:
    UNSEEN[name]()


@pytest.mark.parametrize(
    "fault", FAULTS, ids=lambda fault: f"{fault[0].__name__.rpartition('.')[2]}.{fault[1]} without {fault[2][:60]}"
)
def test_without_a_check_something_goes_wrong(fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, old, new, scenario = fault
    if owner is Places and name == "_all_the_same":  # this is asked at each call where nothing tells of writes
        monkeypatch.setattr(guard, "version_of_attributes", lambda: None)
    check(scenario, tmp_path)
    monkeypatch.setattr(owner, name, planted(owner, name, old, new))
    monkeypatch.setattr(bytecode, "_known_codes", functools.cache(dict))  # what is known of code without the fault
    with pytest.raises((AssertionError, KeyError)):  # and none of its own: a fault that can't run shows nothing
        check(scenario, tmp_path)
