"""``python install.py demo`` and ``python install.py test``."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from . import ROOT, native, optional
from .console import say
from .environment import Environment, EnvironmentFailed, prepare
from .native import load
from .packages import packages_for

# Runs a module of this repository as a program, from whatever folder the caller is in, so that paths mean what they
# say.
_RUN_MODULE = (
    "import runpy, sys; sys.path[0] = sys.argv.pop(1)\nrunpy.run_module(sys.argv.pop(1), run_name='__main__',"
    " alter_sys=True)"
)

_WORKERS = str(min(os.cpu_count() or 1, 8))  # each takes a gigabyte


_TEST_HELP = """usage: python install.py test [pytest's options]

ruff, mypy and the tests, in a private environment that is made the first time. What stands behind it goes to pytest:
  python install.py test tests/ops -k attention     those tests
  python install.py test -n 0                       in one process
"""


def run(command: str, arguments: Sequence[str]) -> int:
    """Make the private environment ready for ``command`` and run it there.

    Help, and what is wrong in the options, comes before that.
    """
    if command == "demo":
        try:
            load("demo_options", ROOT / "benchmarks" / "demo_options.py").parse(arguments)
        except SystemExit as ended:  # it has helped, or said what is wrong
            return int(ended.code or 0)
    elif set(arguments) & {"-h", "--help"}:
        print(_TEST_HELP, end="")
        return 0
    try:
        environment = prepare(command, packages_for(command))
        native.builder().ensure(say)
        frontend = environment.ask("optional.wanted()")
        if frontend:
            optional.install(environment.pip, frontend)
        return demo(environment, arguments) if command == "demo" else test(environment, arguments)
    except (EnvironmentFailed, OSError) as error:  # a full disk, a folder that can't be written to
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("stopped")
        return 130


def demo(environment: Environment, arguments: Sequence[str]) -> int:
    """Run the demo in the caller's folder: its picture goes there."""
    # on a busy machine, threads that spin made it 3 minutes instead of 1
    environment.variables.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return _run(environment, ["-c", _RUN_MODULE, str(ROOT), "benchmarks.demo", *arguments])


def test(environment: Environment, arguments: Sequence[str]) -> int:
    """Run ruff, mypy and the tests, each even where one before it failed. pytest has the last word on the screen.

    The tests run in a process for each core; pytest's own ``-n 0`` behind it puts them into one.
    """
    codes = []
    # tiny tensors: threads that wait for one another take longer
    environment.variables.setdefault("OMP_NUM_THREADS", "1")
    checks = ["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"]
    for step in (*checks, ["pytest", "-n", _WORKERS, "--dist", "worksteal", *arguments]):
        say(" ".join(step))
        codes.append(_run(environment, ["-m", *step], in_repository=True))
    return next((code for code in codes if code != 0), 0)


def _run(environment: Environment, arguments: Sequence[str], in_repository: bool = False) -> int:
    """Run the environment's Python in the foreground; its exit code."""
    folder = ROOT if in_repository else None
    return subprocess.run(
        [str(environment.python), *arguments], cwd=folder, env=environment.variables, check=False
    ).returncode
