"""The private environment of ``demo`` and ``test``: a ``.venv`` in the repository, which nothing outside it ever
notices.

Where the running Python has PyTorch, its site-packages are put on the venv's path through a ``.pth`` file, behind the
venv's own. Where this Python can't make a venv, the packages go into the folder ``.venv-packages``, which is put on
PYTHONPATH. A state file says what the folder was made for and which commands it is ready for, so that a second run
starts no pip at all.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import ROOT, requirements
from .console import say
from .packages import OLDEST_TORCH, TORCH, Packages
from .pip import Pip, PipError, for_running_python
from .torch_choice import announce_torch

PTH = "fast_compile_host.pth"
_STATE = "fast_compile.json"
_ASK = (
    "import sys; sys.path.insert(0, sys.argv[1])\nfrom fast_compile_installer import optional, requirements\nprint({}"
    " or '')"
)


class EnvironmentFailed(Exception):
    """The environment can't be made; the message says what to do about it."""


@dataclass(frozen=True)
class HostTorch:
    """The PyTorch of the running Python, and the folders that it and what it needs are in."""

    version: str
    folders: tuple[str, ...]


@dataclass(frozen=True)
class Environment:
    """A Python that has the packages: its executable and the variables to run it with."""

    folder: Path
    python: Path
    pip: Pip
    variables: dict[str, str] = field(default_factory=lambda: dict(os.environ))

    def output(self, *arguments: str) -> str:
        """What the environment's Python prints.

        Raises:
            EnvironmentFailed: it doesn't run.
        """
        try:
            done = subprocess.run(
                [str(self.python), *arguments], capture_output=True, text=True, env=self.variables, check=True
            )
        except (OSError, subprocess.CalledProcessError) as error:
            raise EnvironmentFailed(
                f"{self.python} doesn't run ({error}); delete {self.folder} and try again"
            ) from error
        return done.stdout.strip()

    def ask(self, expression: str) -> str:
        """An expression of this package's ``optional`` and ``requirements``, as that Python sees it; "" for None."""
        return self.output("-c", _ASK.format(expression), str(ROOT))


def prepare(command: str, wanted: Packages, root: Path = ROOT) -> Environment:
    """The environment with all that ``command`` wants.

    Raises:
        EnvironmentFailed: it can't be made.
    """
    inside = Path(sys.prefix).resolve() == (root / ".venv").resolve()
    host = None if inside else find_host_torch()
    identity = None if inside else [sys.base_prefix, sys.version, *([host.version, *host.folders] if host else [])]
    can_venv = inside or all(importlib.util.find_spec(name) is not None for name in ("venv", "ensurepip"))
    folder = root / (".venv" if can_venv else ".venv-packages")
    state = _read(folder)
    environment = _venv(folder) if can_venv else _folder(folder)
    if not inside and (state.get("identity") != identity or not environment.python.is_file()):
        if can_venv:
            _make_venv(environment, fresh=bool(state))
            _link(environment, host)
        else:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        state = {"identity": identity, "ready": {}}
        _write(folder, state)
    digest = hashlib.sha256(repr((TORCH, wanted)).encode()).hexdigest()
    ready = state.setdefault("ready", {})
    if ready.get(command) != digest:
        try:
            _install(environment, wanted)
        except PipError as error:
            raise EnvironmentFailed(f"pip failed: {error}") from error
        ready[command] = digest
        _write(folder, state)
    return environment


def find_host_torch() -> HostTorch | None:
    """The running Python's PyTorch, or None where there is none or it is too old."""
    version = requirements.version("torch")
    if version is None or importlib.util.find_spec("torch") is None:
        return None
    if requirements.release(version) < OLDEST_TORCH:
        say(
            f"this Python's PyTorch {version} is older than {'.'.join(map(str, OLDEST_TORCH))}; the private environment"
            " gets its own"
        )
        return None
    folders = [
        entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages") and Path(entry).is_dir()
    ]
    return HostTorch(version, tuple(folders))


def _venv(folder: Path) -> Environment:
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    return Environment(folder, python, Pip((str(python), "-m", "pip", "install")))


def _folder(folder: Path) -> Environment:
    pip = for_running_python()
    if pip is None:
        raise EnvironmentFailed(
            "this Python has neither venv with ensurepip nor pip (on Debian: apt install python3-venv)"
        )
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return Environment(folder, Path(sys.executable), pip.into(folder), {**os.environ, "PYTHONPATH": path})


def _make_venv(environment: Environment, fresh: bool) -> None:
    """Make the venv; ``fresh`` drops what is in it. A folder that isn't known to be ours is only completed."""
    say(f"making {environment.folder} ...")
    command = [sys.executable, "-m", "venv", *(["--clear"] if fresh else []), str(environment.folder)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        told = (done.stderr or done.stdout).strip().splitlines()
        raise EnvironmentFailed(f"python -m venv failed: {told[-1] if told else done.returncode}")


def _link(environment: Environment, host: HostTorch | None) -> None:
    """Put the host's site-packages behind the venv's own."""
    site_packages = Path(environment.output("-c", "import sysconfig; print(sysconfig.get_path('purelib'))"))
    if host is None:
        (site_packages / PTH).unlink(missing_ok=True)
        return
    say(f"using this Python's PyTorch {host.version}")
    (site_packages / PTH).write_text("\n".join(host.folders) + "\n", encoding="utf-8")


def _install(environment: Environment, wanted: Packages) -> None:
    """PyTorch where there is none, then the rest, which must leave it as it is.

    Raises:
        PipError: pip failed.
    """
    installed = "requirements.version('torch')"
    if not environment.ask(installed):
        announce_torch(environment.pip)
        environment.pip.install([TORCH], show=True)
    constraints = environment.folder / "constraints.txt"
    constraints.write_text(f"torch=={environment.ask(installed)}\n", encoding="utf-8")
    say(f"installing {', '.join((*wanted.plain, *wanted.bare))} ...")
    if wanted.plain:
        environment.pip.install([*wanted.plain, "--constraint", str(constraints)], show=True)
    if wanted.bare:
        bare = [environment.ask(f"requirements.as_torch_wants({name!r})") for name in wanted.bare]
        environment.pip.install(["--no-deps", *bare], show=True)


def _read(folder: Path) -> dict[str, Any]:
    try:
        state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def _write(folder: Path, state: dict[str, Any]) -> None:
    draft = folder / f"{_STATE}.draft"
    draft.write_text(json.dumps(state), encoding="utf-8")
    os.replace(draft, folder / _STATE)
