"""install.py where the Python is too old for anything else of the project."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_an_old_python_gets_as_far_as_the_sentence() -> None:
    """Python 2.7 reads a file whole before it runs a line of it."""
    for node in ast.walk(ast.parse((ROOT / "install.py").read_text("ascii"))):
        assert not isinstance(node, (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.Nonlocal)), ast.unparse(node)
        assert not isinstance(node, ast.arguments) or not node.kwonlyargs
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            assert not node.keywords and len(node.args) == 1, ast.unparse(node)
