"""What docs/adding-an-op.md adds works as it is written there, and touches as few files as it says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sfast_core.native import build

ROOT = Path(__file__).resolve().parent.parent
_STEP = re.compile(r"^`([\w/.]+)`$|^```(python|cpp|diff)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TESTS = (
    "tests/ops/test_ops.py",
    "tests/ops/test_extension_calls.py",
    "tests/ops/test_triton_compiles.py",
    "tests/rewrite/test_fuse_soft_cap.py",
    "tests/test_operators.py",
    *("-k", "soft_cap"),
)


def _write(section: str, tree: Path) -> set[str]:
    """Do in ``tree`` what a section of the page does; the files that it touches."""
    touched: list[str] = []
    for path, kind, text in _STEP.findall(section):
        if path:
            touched.append(path)
            continue
        file = tree / touched[-1]
        if kind == "diff":
            lines = text.splitlines(keepends=True)
            before, after = ("".join(line[1:] or "\n" for line in lines if line[0] != sign) for sign in "+-")
            there = file.read_text("utf-8")
            assert there.count(before) == 1, f"{touched[-1]}: {before}"
            file.write_text(there.replace(before, after), "utf-8")
        else:
            assert not file.exists()
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, "utf-8")
    return set(touched)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project."""
    copy = tmp_path_factory.mktemp("project")
    for name in ("sfast_core", "csrc", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "lib"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    return copy


def test_an_op_a_pass_and_a_kernel(tree: Path) -> None:
    page = (ROOT / "docs" / "adding-an-op.md").read_text("utf-8")
    op, found_by, kernel = (_write(section, tree) for section in page.split("\n## ")[1:4])
    assert len(op) <= 5 and len(found_by) <= 3 and len(kernel) <= 3
    python = [path for path in op | found_by | kernel if path.endswith(".py")]
    _run(tree, sys.executable, "-m", "ruff", "check", "--no-cache", *python)
    _run(tree, sys.executable, "-m", "ruff", "format", "--no-cache", "--check", *python)
    told = _run(tree, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS)
    assert re.search(r"^[1-9]\d* passed", told, re.MULTILINE)
    if nvcc := build.find_nvcc():
        _run(tree, str(nvcc), "-std=c++17", "-arch=sm_80", "-cubin", "csrc/soft_cap.cu")


def _run(tree: Path, *command: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(tree)}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
