"""The prompts of ComfyUI's queue: the one that runs, and those that are done.

Which of a prompt's nodes give what a node of an earlier one gave.

ComfyUI keeps what nodes gave by what went into them, not by their numbers: after a node was copied and deleted, or put
into a subgraph, its output is still what the first one gave, and no node is executed. So whoever tells of a node looks
for those that mean the same now.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_DEEPEST = 200  # nodes in front of one another


@dataclass(frozen=True)
class Prompt:
    """One prompt.

    Attributes:
        id: the queue's.
        nodes: by their numbers, ``"8"``, or ``"5:8"`` in a subgraph: ``class_type`` and ``inputs``.
        workflow: the id of the editor's workflow that it was made of; None where no editor has queued it.
    """

    id: str
    nodes: Mapping[str, Any]
    workflow: str | None

    @classmethod
    def of(cls, item: Any) -> Prompt:
        """The prompt of an item of the queue, which has a number, the id, the nodes, extra data and more."""
        extra = item[3] if isinstance(item[3], Mapping) else {}
        workflow = (extra.get("extra_pnginfo") or {}).get("workflow") or {}
        return cls(str(item[1]), item[2], str(workflow["id"]) if workflow.get("id") else None)

    def meaning(self, node: str) -> str | None:
        """Equal for nodes that give the same: their class, and all that goes into them.

        None for one that isn't in the prompt.
        """
        try:
            return _meaning(self.nodes, node, {}, 0)
        except (KeyError, TypeError, RecursionError):
            return None

    def meaning_the_same(self, node: str, meaning: str | None) -> list[str]:
        """The nodes that give what ``node`` gave when it meant this, itself first; only itself where none is known."""
        kind = (meaning or "").partition(" ")[0]
        found = [
            each
            for each, about in self.nodes.items()
            if about.get("class_type") == kind and self.meaning(each) == meaning
        ]
        return sorted(found, key=lambda each: each != node) or [node]


def _meaning(nodes: Mapping[str, Any], node: str, known: dict[str, str], depth: int) -> str:
    if node in known:
        return known[node]
    if depth > _DEEPEST:
        raise RecursionError
    about, inputs = nodes[node], {}
    for name, value in about["inputs"].items():
        link = isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and value[0] in nodes
        inputs[name] = [_meaning(nodes, value[0], known, depth + 1), value[1]] if link else {"value": value}
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True, default=repr).encode()).hexdigest()
    known[node] = meaning = f"{about['class_type']} {digest}"
    return meaning


def running(server: Any, prompt_id: str | None) -> Prompt | None:
    """The prompt that runs, of several the one with this id; None where the queue can't be read or nothing runs."""
    try:
        queue = server.prompt_queue
        with queue.mutex:
            found = [Prompt.of(item) for item in queue.currently_running.values()]
        return next((prompt for prompt in found if prompt.id == prompt_id), found[0] if found else None)
    except Exception:  # another version's queue
        return None


def done(server: Any) -> Iterator[Prompt]:
    """The prompts that are done, the latest first."""
    try:
        queue = server.prompt_queue
        with queue.mutex:
            found = list(queue.history.values())
    except Exception:
        return
    for entry in reversed(found):
        try:
            yield Prompt.of(entry["prompt"])
        except Exception:  # one that another pack has put there
            continue
