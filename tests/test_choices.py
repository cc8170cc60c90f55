"""Choices on disk: kept, merged, and never trusted when they are damaged or another machine's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from sfast_core.machine.choices import Choice, Choices, cache_folder, machine_key
from sfast_core.machine.file_lock import locked
from sfast_core.target import Target

ROOT = Path(__file__).resolve().parent.parent
GPU = Target(torch.device("cuda", 0), "fake", (9, 0), sm_count=10)


def choice(key: str, impl: str = "triton", family: str = "f", size: int = 100) -> Choice:
    return Choice(key, family, size, impl, 2e-6)


def impl(choices: Choices, key: str) -> str | None:
    found = choices.get(key)
    return None if found is None else found.impl


def test_what_is_added_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "choices.json"
    choices = Choices(path)
    assert impl(choices, "a") is None
    choices.add([choice("a"), choice("b", "cudnn")])
    choices.add([choice("b", "flash")])
    for found in (choices, Choices(path)):
        assert (impl(found, "a"), impl(found, "b"), impl(found, "c")) == ("triton", "flash", None)
    assert {file.name for file in path.parent.iterdir()} == {"choices.json", "choices.lock"}


def test_the_nearest_in_size_of_the_same_family_decides(tmp_path: Path) -> None:
    given = [choice("a", "small", size=100), choice("b", "large", size=1000), choice("c", "other", "g", 400)]
    Choices(tmp_path / "c").add(given)
    choices = Choices(tmp_path / "c")
    assert [choices.nearest("f", size) for size in (1, 100, 310, 320, 9000)] == [
        given[0],
        given[0],
        given[0],
        given[1],
        given[1],
    ]
    assert choices.nearest("g", 200) == given[2] and choices.nearest("h", 100) is None


def test_two_processes_keep_each_others_choices(tmp_path: Path) -> None:
    path = tmp_path / "choices.json"
    one, other = Choices(path), Choices(path)
    one.add([choice("a")])
    other.add([choice("b")])
    assert impl(Choices(path), "a") == impl(Choices(path), "b") == "triton"


def test_threads_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "choices.json"
    choices = Choices(path)
    threads = [
        threading.Thread(target=lambda n=n: [choices.add([choice(f"{n} {i}")]) for i in range(5)]) for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = Choices(path)
    assert all(impl(found, f"{n} {i}") for n in range(4) for i in range(5))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\xff not json",
        b"[]",
        b"null",
        b'{"format": 0, "choices": {"a": ["f", 100, "triton", 2e-6]}}',
        b'{"choices": {"a": ["f", 100, "triton", 2e-6]}}',
        b'{"format": 3, "choices": ["a"]}',
        b'{"format": 3, "choices": {"a": "triton"}}',
        b'{"format": 3, "choices": {"a": ["f", "large", "triton", 2e-6]}}',
        b'{"format": 3, "choices": {"a": ["f", 100, "triton"]}}',
        b'{"format": 3, "choices": {"a": ["f", 100, "triton", "fast"]}}',
        b'{"format": 3, "choices": {"a": ["f", 100, "triton", 2e-6]',
        b"\xff\xfe{\x00}\x00",
        b'{"format": 3, "choices": {"\xe9": ["f", 100, "triton", 2e-6]}}',
        b'{"format": 3, "choices": {"a": ["f", 1e999, "triton", 2e-6]}}',
        b'{"format": 3, "choices": {"a": ["f", 100, "triton", 1' + b"0" * 400 + b"]}}",
        b'{"format": 3, "choices": {"a": ["f", 1' + b"0" * 5000 + b', "triton", 2e-6]}}',
        b'{"format": 3, "choices": {"a": ["f", 1' + b"0" * 100 + b', "triton", 2e-6]}}',
        b'{"format": 3, "choices": {"a": ["f", 100, "triton", NaN]}}',
        b'{"format": 3, "choices": {"a": ["f", 100, "triton", -1]}}',
        b'{"format": 3, "choices": {"a": ["f", 100, ["triton"], 2e-6]}}',
        b'{"format": 3, "choices": {"a": [{"f": 1}, 100, "triton", 2e-6]}}',
        b'{"format": 3, "choices": {"a": ["f", true, "triton", 2e-6]}}',
        b'{"format": 3, "choices": {"a": ["f", null, "triton", null]}}',
        b'{"format": 3, "choices": {"a": null}}',
        b'{"format": 3, "choices": {"a": {"family": "f"}}}',
        b'{"format": 3, "choices": null}',
        b'{"format": 3, "choices": 7}',
        b'{"format": 3}',
        b"[" * 200_000,
        b'{"a":' * 100_000,
    ],
    ids=lambda content: content[:50].decode("ascii", "replace"),
)
def test_a_damaged_or_foreign_file_is_empty_and_written_again(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "choices.json"
    path.write_bytes(content)
    choices = Choices(path)
    assert impl(choices, "a") is None
    choices.add([choice("b")])
    assert impl(Choices(path), "b") == "triton" and set(json.loads(path.read_text())["choices"]) == {"b"}


def test_a_damaged_entry_costs_no_other(tmp_path: Path) -> None:
    path = tmp_path / "choices.json"
    path.write_text(
        '{"format": 3, "choices": {"a": ["f", 100, "triton", 2e-6], "b": ["f", "large", "triton", 2e-6], "c": []}}'
    )
    choices = Choices(path)
    assert [impl(choices, key) for key in "abc"] == ["triton", None, None]


def a_directory(path: Path) -> None:
    path.mkdir()
    (path / "file").touch()


def unreadable(path: Path) -> None:
    path.write_text('{"format": 3, "choices": {}}')
    path.chmod(0)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(100 * 2**30)  # takes no room


IN_ITS_PLACE = {
    "directory": a_directory,
    "symlink to itself": lambda path: path.symlink_to(path),
    "symlink to nothing": lambda path: path.symlink_to(path.parent / "nothing"),
    "symlink to a device": lambda path: path.symlink_to("/dev/zero"),
    "unreadable": unreadable,
    "pipe": pipe,
    "huge": huge,
}


@pytest.mark.skipif(sys.platform == "win32", reason="has neither links nor pipes for everybody")
@pytest.mark.parametrize("kind", IN_ITS_PLACE)
def test_whatever_lies_in_its_place_is_empty(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "choices.json"
    IN_ITS_PLACE[kind](path)
    choices = Choices(path)
    assert impl(choices, "a") is None
    choices.add([choice("b")])
    assert impl(choices, "b") == "triton"
    assert impl(Choices(path), "b") == (None if kind == "directory" else "triton")
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.skipif(sys.platform == "win32", reason="has neither links nor pipes for everybody")
@pytest.mark.parametrize("kind", IN_ITS_PLACE)
def test_whatever_lies_in_the_locks_place_is_no_obstacle(tmp_path: Path, kind: str) -> None:
    IN_ITS_PLACE[kind](tmp_path / "choices.lock")
    Choices(tmp_path / "choices.json").add([choice("b")])
    assert impl(Choices(tmp_path / "choices.json"), "b") == "triton"


def test_a_folder_that_is_read_only_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "choices.json"
    Choices(path).add([choice("a")])
    path.parent.chmod(0o500)
    try:
        choices = Choices(path)
        choices.add([choice("b")])
        assert impl(choices, "a") == impl(choices, "b") == "triton"
    finally:
        path.parent.chmod(0o700)


_WRITER = """
import sys
from pathlib import Path
from sfast_core.machine.choices import Choice, Choices
path, name = Path(sys.argv[1]), sys.argv[2]
choices = Choices(path)
print("ready", flush=True)
sys.stdin.readline()
for number in range(40):
    choices.add([Choice(f"{name} {number}", "f", 1, "triton", 1e-6)])
"""


def writer(path: Path, name: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _WRITER, str(path), name]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_processes_that_write_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "choices.json"
    writers = {name: writer(path, name) for name in ("one", "other")}
    for process in writers.values():
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in writers.values():
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [process.wait(60) for process in writers.values()] == [0, 0]
    for process in writers.values():
        process.stdin.close(), process.stdout.close()  # type: ignore[union-attr]
    found = Choices(path)
    assert [
        f"{name} {number}" for name in writers for number in range(40) if found.get(f"{name} {number}") is None
    ] == []


_HOLDER = """
import sys, time
from pathlib import Path
from sfast_core.machine.file_lock import locked
with locked(Path(sys.argv[1]), 1.0) as held:
    print(held, flush=True)
    time.sleep(600)
"""


def test_a_lock_goes_with_its_process_and_is_waited_for_only_so_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(tmp_path / "choices.lock")], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None and holder.stdout.readline() == "True\n"
    with locked(tmp_path / "choices.lock", 0.05) as held:
        assert not held
    monkeypatch.setattr("sfast_core.machine.choices._LOCK_S", 0.05)
    Choices(tmp_path / "choices.json").add([choice("a")])
    assert impl(Choices(tmp_path / "choices.json"), "a") == "triton"
    holder.kill()
    holder.wait()
    holder.stdout.close()
    with locked(tmp_path / "choices.lock", 5.0) as held:
        assert held


def test_without_a_file_choices_last_as_long_as_the_object() -> None:
    choices = Choices(None)
    choices.add([choice("a")])
    assert impl(choices, "a") == "triton" and impl(Choices(None), "a") is None


def test_a_folder_that_cannot_be_written_to_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    choices = Choices(tmp_path / "file" / "choices.json")
    choices.add([choice("a")])
    assert impl(choices, "a") == "triton"


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "choices.json"
    Choices(path).add([choice("a")])

    def fail(source: str, target: Path) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "replace", fail)
    choices = Choices(path)
    choices.add([choice("b")])
    assert impl(choices, "b") == "triton" and sorted(tmp_path.iterdir()) == [path, tmp_path / "choices.lock"]
    assert impl(Choices(path), "a") == "triton" and impl(Choices(path), "b") is None


def test_nothing_new_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "choices.json"
    choices = Choices(path)
    choices.add([])
    assert not path.exists()
    choices.add([choice("a")])
    path.unlink()
    choices.add([choice("a")])
    assert not path.exists()


def test_another_machine_has_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = machine_key(GPU)
    assert key == machine_key(GPU) and len(key) == 24
    others = [
        Target(torch.device("cuda", 0), "another", (9, 0), sm_count=10),
        Target(torch.device("cuda", 0), "fake", (8, 9), sm_count=10),
        Target(torch.device("cuda", 0), "fake", (9, 0), sm_count=20),
    ]
    assert len({key, *map(machine_key, others)}) == 4
    monkeypatch.setattr(torch, "__version__", "9.9.9")
    assert machine_key(GPU) != key
    Choices.of(GPU, tmp_path).add([choice("a")])
    monkeypatch.undo()
    assert Choices.of(GPU, tmp_path).get("a") is None


@pytest.mark.parametrize("changed", ["triton_kernels.py", "conv2d.cu", "hopper.cuh"])
def test_the_key_changes_with_the_source_of_the_kernels(monkeypatch: pytest.MonkeyPatch, changed: str) -> None:
    before = machine_key(GPU)
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda self: read(self) + b"# changed" * (self.name == changed))
    assert machine_key(GPU) != before


def test_the_cache_is_the_users_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder() is None or "fast_compile" in str(cache_folder())
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    assert cache_folder() is None
    choices = Choices.of(GPU)
    choices.add([choice("a")])
    assert impl(choices, "a") == "triton"
