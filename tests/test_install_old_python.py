"""What a Python that is too old for anything else of the project runs: install.py, and the core's first file."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
#: What Python 2.7 has no syntax for. It reads a file whole before it runs a line of it.
_NEWER = (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.Nonlocal, ast.AsyncFunctionDef, ast.Await, ast.Match)


@pytest.mark.parametrize("name", ["install.py", "sfast_core/__init__.py", "sfast_core/version.py"])
def test_an_old_python_gets_as_far_as_the_sentence(name: str) -> None:
    for node in ast.walk(ast.parse((ROOT / name).read_text("ascii"), feature_version=(3, 6))):
        assert not isinstance(node, _NEWER), ast.unparse(node)
        assert not isinstance(node, ast.ImportFrom) or node.module != "__future__"
        assert not isinstance(node, (ast.List, ast.Tuple, ast.Set)) or not any(
            isinstance(x, ast.Starred) for x in node.elts
        )
        assert not isinstance(node, ast.Dict) or None not in node.keys
        assert not isinstance(node, ast.Raise) or node.cause is None, ast.unparse(node)
        assert not isinstance(node, ast.FunctionDef) or node.returns is None, ast.unparse(node)
        assert not isinstance(node, ast.arguments) or not node.kwonlyargs
        assert not isinstance(node, ast.arg) or node.annotation is None, ast.unparse(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            assert not node.keywords and len(node.args) == 1, ast.unparse(node)


@pytest.mark.parametrize("arguments", [["-m", "sfast_core", "doctor"], ["install.py", "demo"]])
def test_an_old_python_is_answered_in_a_sentence(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.version_info = (3, 6, 9)\n")
    ran = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    said = ran.stdout + ran.stderr
    assert ran.returncode == 1 and "Fast Compile needs Python 3.10 or newer; this is 3.6" in said
    assert "Traceback" not in said and said.count("\n") == 1
