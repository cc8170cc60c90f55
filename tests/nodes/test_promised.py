"""The nodes' own code beside what is promised to saved workflows, read without a ComfyUI: one that takes an input more
than is promised is noticed here, not only on the server.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.comfy.promised import NODES

ROOT = Path(__file__).resolve().parents[2]
_NOT_LITERAL = object()


def _value(expression: ast.expr) -> Any:
    try:
        return ast.literal_eval(expression)
    except ValueError:
        return _NOT_LITERAL


def _node_id(cls: ast.ClassDef) -> str | None:
    for call in ast.walk(cls):
        if isinstance(call, ast.Call):
            for keyword in call.keywords:
                if keyword.arg == "node_id":
                    return str(_value(keyword.value))
    return None


def _executes() -> dict[str, dict[str, Any]]:
    """By node's id: the names that ``execute`` takes, in order, with their defaults."""
    found = {}
    for path in (ROOT / "nodes").glob("*.py"):
        for cls in ast.parse(path.read_text("utf-8")).body:
            if isinstance(cls, ast.ClassDef) and (node_id := _node_id(cls)):
                (execute,) = [f for f in cls.body if isinstance(f, ast.FunctionDef) and f.name == "execute"]
                names = [argument.arg for argument in execute.args.args[1:]]  # the class itself is the first
                defaults = [_value(default) for default in execute.args.defaults]
                given = [_NOT_LITERAL] * (len(names) - len(defaults)) + defaults
                found[node_id] = dict(zip(names, given, strict=True))
    return found


def test_every_node_is_promised() -> None:
    """And no other is."""
    assert _executes().keys() == NODES.keys() == json.loads(_locale()).keys()


def _locale() -> str:
    return (ROOT / "locales" / "en" / "nodeDefs.json").read_text("utf-8")


@pytest.mark.parametrize("name", NODES)
def test_it_takes_what_is_promised(name: str) -> None:
    """The same inputs in the same order, with the same defaults where it has any; and each has a text of its own."""
    promised = {key: default for key, _, _, default in NODES[name][1]}
    taken = _executes()[name]
    assert list(taken) == list(promised) == list(json.loads(_locale())[name]["inputs"])
    for key, default in taken.items():
        assert default is _NOT_LITERAL or default == promised[key]
