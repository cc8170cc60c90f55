"""Workflows as data, seeds, and the names and places of results."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from sfast_core.farm import results, seeds, workflow
from sfast_core.farm.errors import FarmError


def test_seeds() -> None:
    assert (
        seeds.parse("0-3") == [0, 1, 2, 3]
        and seeds.parse(" 7, 1-2,7") == [7, 1, 2]
        and seeds.parse(str(2**64 - 1)) == [2**64 - 1]
    )
    for wrong in ("", "a", "3-1", "-5", "1.5", "0-99999999999", str(2**64), "²"):
        with pytest.raises(FarmError, match="seeds"):
            seeds.parse(wrong)


def test_which_inputs_are_seeds(make_prompt: Any) -> None:
    prompt = make_prompt(5)
    prompt["8"] = {"class_type": "RandomNoise", "inputs": {"noise_seed": 6}}
    prompt["9"] = {"class_type": "Other", "inputs": {"seed": ["8", 0], "seeds": 3}}
    assert workflow.seed_inputs(prompt) == [("5", "seed"), ("8", "noise_seed")] and workflow.own_seed(prompt) is None
    made = workflow.with_seed(prompt, 9)
    assert (
        made["5"]["inputs"]["seed"] == made["8"]["inputs"]["noise_seed"] == 9
        and prompt["5"]["inputs"]["seed"] == 5
        and list(made) == list(prompt)
    )
    first, second, own = workflow.digests(make_prompt(5), [1, 5, None])
    assert first != second == own and list(workflow.digests(make_prompt(4), [5])) == [own]
    assert list(workflow.digests(make_prompt(5, steps=3), [5])) != [own]


def test_what_has_to_be_warm(make_prompt: Any) -> None:
    found = workflow.needs(make_prompt(model="x/A.safetensors", lora="l.safetensors"))
    assert (found.models, found.adapters, found.sizes) == (
        ("x/A.safetensors",),
        ("l.safetensors",),
        ("width 64 height 64 batch_size 1",),
    )
    assert workflow.needs(make_prompt(3)) == workflow.needs(make_prompt(4)) != workflow.needs(make_prompt(width=128))


def test_what_is_no_workflow() -> None:
    with pytest.raises(FarmError, match=r"Export \(API\)"):
        workflow.parsed('{"nodes": [], "links": []}', "w.json")
    for wrong in (
        "",
        "[]",
        "{}",
        "3",
        '{"1": 3}',
        '{"1": {"class_type": 3}}',
        '{"1": {"class_type": "a", "inputs": []}}',
        "[" * 100_000,
    ):
        with pytest.raises(FarmError, match=r"w\.json"):
            workflow.parsed(wrong, "w.json")


def test_results_stay_in_their_folder(tmp_path: Path) -> None:
    root = tmp_path / "out"
    assert (
        results.folder_inside(root, "a/b") == root / "a" / "b"
        and results.folder_inside(root, str(root / "c")) == root / "c"
    )
    assert results.folder_inside(root, "a/../b") == root / "b" and results.folder_inside(root, ".") == root
    root.mkdir()
    (root / "link").symlink_to(tmp_path, target_is_directory=True)
    for wrong in ("..", "a/../../b", "/etc", "link", "link/x", str(tmp_path), str(root) + "2", "a\0b"):
        with pytest.raises(FarmError, match="--out"):
            results.folder_inside(root, wrong)


def test_names_say_what_they_are_and_nothing_else() -> None:
    job = results.job_name("../My fox!", 42, "abcdef0123456789")
    assert (
        job == "My-fox_42_abcdef012345"
        and results.file_name(job, "9:1", 0, ".PNG") == "My-fox_42_abcdef012345_9-1_0.png"
    )
    assert (
        results.job_name("...", None, "ab") == "workflow_ab"
        and results.stem("con") == "con-"
        and results.stem("COM1.x") == "COM1.x-"
    )
    assert results.file_name("j", "../../x", 1, "/../y") == "j_x_1.bin" and len(results.stem("x" * 500)) <= 60


def test_a_result_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a" / "x.png"
    results.write_whole(path, b"first")
    results.write_whole(path, b"second")
    assert path.read_bytes() == b"second"

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        results.write_whole(path, b"third")
    assert path.read_bytes() == b"second" and [each.name for each in path.parent.iterdir()] == ["x.png"]
