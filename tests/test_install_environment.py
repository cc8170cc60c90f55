"""The private environment of ``install.py demo`` and ``test``: a real venv, a wheel made here, no package index."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fast_compile_installer import commands, environment
from fast_compile_installer.packages import Packages
from fast_compile_installer.pip import Pip

pytestmark = pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="needs pip")
needs_venv = pytest.mark.skipif(importlib.util.find_spec("ensurepip") is None, reason="needs venv and ensurepip")
TORCH = importlib.metadata.version("torch")


@pytest.fixture(autouse=True)
def _no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("INDEX_URL", raising=False)


@pytest.fixture
def wheel(tmp_path: Path) -> str:
    """The path of a wheel with one module."""
    path = tmp_path / "wheels" / "fast_compile_probe-1.0-py3-none-any.whl"
    path.parent.mkdir()
    info = "fast_compile_probe-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("fast_compile_probe.py", "VALUE = 42\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: fast-compile-probe\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return str(path)


def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, whoever runs pip fails."""

    def install(self: Pip, arguments: Sequence[str], **options: Any) -> None:
        raise AssertionError(f"pip was asked for {arguments}")

    monkeypatch.setattr(Pip, "install", install)


@needs_venv
def test_a_venv_takes_the_running_pythons_torch_and_is_ready_the_second_time(
    tmp_path: Path, wheel: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = environment.prepare("demo", Packages((wheel,)), root=tmp_path)
    assert made.python.is_relative_to(tmp_path / ".venv")
    assert f"using this Python's PyTorch {TORCH}" in capsys.readouterr().out
    assert made.ask("requirements.version('torch')") == TORCH
    assert made.output("-c", "import fast_compile_probe; print(fast_compile_probe.VALUE)") == "42"
    assert importlib.util.find_spec("fast_compile_probe") is None, "nothing goes into the running Python"

    environment.prepare("test", Packages((wheel,), bare=(wheel,)), root=tmp_path)
    no_pip(monkeypatch)
    monkeypatch.setattr(environment, "_make_venv", lambda *_, **__: pytest.fail("the venv was made again"))
    for command, packages in (("demo", Packages((wheel,))), ("test", Packages((wheel,), bare=(wheel,)))):
        assert environment.prepare(command, packages, root=tmp_path).python == made.python
    with pytest.raises(AssertionError, match="pip was asked for"):
        environment.prepare("demo", Packages((wheel, "more")), root=tmp_path)


def test_without_ensurepip_a_folder_does(tmp_path: Path, wheel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_modules(monkeypatch, "ensurepip")
    made = environment.prepare("demo", Packages((), bare=(wheel,)), root=tmp_path)
    assert made.folder == tmp_path / ".venv-packages" and (made.folder / "fast_compile_probe.py").is_file()
    assert made.output("-c", "import fast_compile_probe; print(fast_compile_probe.VALUE)") == "42"
    assert made.ask("requirements.version('torch')") == TORCH
    assert importlib.util.find_spec("fast_compile_probe") is None, "nothing goes into the running Python"
    no_pip(monkeypatch)
    environment.prepare("demo", Packages((), bare=(wheel,)), root=tmp_path)


def test_without_ensurepip_and_pip_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hide_modules(monkeypatch, "ensurepip", "pip")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(
        commands, "prepare", lambda command, wanted: environment.prepare(command, wanted, root=tmp_path)
    )
    assert commands.run("demo", []) == 1
    assert capsys.readouterr().out.splitlines() == [
        "Fast Compile: this Python has neither venv with ensurepip nor pip (on Debian: apt install python3-venv)"
    ]


def test_a_failing_pip_is_one_line_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_modules(monkeypatch, "ensurepip")
    for _ in range(2):
        with pytest.raises(
            environment.EnvironmentFailed, match="No matching distribution found for no-such-package-as-this"
        ):
            environment.prepare("demo", Packages(("no-such-package-as-this",)), root=tmp_path)


def test_an_old_torch_is_not_taken(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(environment.requirements, "version", lambda name: "2.1.2+cu121")
    assert environment.find_host_torch() is None
    assert "2.1.2+cu121 is older than 2.6" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("codes", "result"),
    [((0, 0, 0, 0), 0), ((1, 0, 0, 0), 1), ((0, 3, 2, 0), 3), ((0, 0, 2, 0), 2), ((0, 0, 0, 5), 5), ((1, 1, 2, 5), 1)],
)
def test_all_checks_run_and_pytest_comes_last(
    codes: tuple[int, ...], result: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[list[str]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        steps.append(command[2:])
        assert options["cwd"] == commands.ROOT
        return subprocess.CompletedProcess(command, codes[len(steps) - 1])

    monkeypatch.setattr(subprocess, "run", run)
    here = environment.Environment(Path("folder"), Path(sys.executable), Pip(("pip",)))
    assert commands.test(here, ["-k", "name"]) == result
    assert steps[:3] == [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"]]
    assert steps[3][0] == "pytest" and steps[3][-2:] == ["-k", "name"]  # behind ours, so that the caller's win


def test_the_demo_runs_in_the_callers_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository, caller = tmp_path / "repository", tmp_path / "caller"
    (repository / "benchmarks").mkdir(parents=True)
    (caller / "benchmarks").mkdir(parents=True)  # the caller's own package of that name is not the one that is meant
    (repository / "benchmarks" / "__init__.py").write_text("")
    (repository / "benchmarks" / "other.py").write_text("SUFFIX = '.txt'\n")
    demo = "import sys, pathlib\nfrom . import other\npathlib.Path('out' + other.SUFFIX).write_text(' '.join(sys.argv[1:]))\nsys.exit(3)\n"
    (repository / "benchmarks" / "demo.py").write_text(demo)
    monkeypatch.setattr(commands, "ROOT", repository)
    monkeypatch.chdir(caller)
    here = environment.Environment(tmp_path, Path(sys.executable), Pip(("pip",)))
    assert commands.demo(here, ["--steps", "4"]) == 3
    assert (caller / "out.txt").read_text() == "--steps 4"


@pytest.mark.parametrize(
    ("command", "arguments", "code", "words"),
    [
        ("demo", ["--help"], 0, "--steps"),
        ("demo", ["--stpes", "4"], 2, "unrecognized arguments: --stpes"),
        ("test", ["-h"], 0, "pytest's options"),
    ],
)
def test_help_comes_before_anything_is_made(
    command: str,
    arguments: list[str],
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And so does what is wrong in the options."""
    monkeypatch.setattr(commands, "prepare", lambda *_: pytest.fail("an environment was made"))
    assert commands.run(command, arguments) == code
    assert words in "".join(capsys.readouterr())


def test_a_folder_that_cannot_be_written_to_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", ".venv")

    monkeypatch.setattr(commands, "prepare", refuse)
    assert (
        commands.run("demo", []) == 1
        and capsys.readouterr().out == "Fast Compile: [Errno 13] Permission denied: '.venv'\n"
    )


def hide_modules(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let these modules seem to be missing."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name in names else find_spec(name, *rest)
    )
