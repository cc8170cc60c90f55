"""A workflow in ComfyUI's API form, as data: its seeds, what has to be loaded for it, and what names it.

Nothing of it is run here.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from .errors import FarmError

Prompt = dict[str, Any]  #: by node id: ``{"class_type": ..., "inputs": {...}}``

SEEDS = ("seed", "noise_seed")
_FILES = (".safetensors", ".sft", ".ckpt", ".pt", ".pth", ".bin", ".gguf", ".onnx")
_SIZES = ("width", "height", "length", "batch_size", "resolution")


@dataclass(frozen=True, order=True)
class Needs:
    """What has to be warm for a workflow: the files that it loads, and the sizes that it computes.

    Equal for workflows that share all of it.
    """

    models: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()  #: LoRAs and their like, which change a loaded model
    sizes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """As the queue writes it down, for :func:`needs_in`."""
        return json.dumps(self.__dict__)

    @property
    def variant(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What is quickly changed where the models stay."""
        return self.adapters, self.sizes


def checked(found: object, name: str) -> Prompt:
    """``found`` as a prompt.

    Args:
        found: what JSON had.
        name: of the file, for the message.

    Raises:
        FarmError: it is no prompt in the API's form.
    """
    if isinstance(found, dict) and isinstance(found.get("nodes"), list):
        raise FarmError(f"{name} is in the editor's form; a farm takes the API's: in ComfyUI, File > Export (API)")
    if not isinstance(found, dict) or not found:
        raise FarmError(f"{name} is no workflow: an object of nodes by their ids is needed")
    for key, node in found.items():
        if (
            not isinstance(node, dict)
            or not isinstance(node.get("class_type"), str)
            or not isinstance(node.get("inputs", {}), dict)
        ):
            raise FarmError(
                f"{name}: node {key!r} has no class_type and inputs, so this is no workflow in the API's form"
            )
    return found


def parsed(text: str, name: str) -> Prompt:
    """A file's text as :func:`checked` has it. Raises as that, and where it is no JSON."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FarmError(f"{name} is no JSON: {error}") from None
    return checked(found, name)


def seed_inputs(prompt: Prompt) -> list[tuple[str, str]]:
    """``(node, input)`` of each input called ``seed`` or ``noise_seed`` that holds a number, in the prompt's order."""
    found = []
    for key, node in prompt.items():
        for name, value in node.get("inputs", {}).items():
            if name in SEEDS and isinstance(value, int) and not isinstance(value, bool):
                found.append((key, name))
    return found


def with_seed(prompt: Prompt, seed: int | None) -> Prompt:
    """A copy with ``seed`` in each of :func:`seed_inputs`; with None, as it is.

    The order of nodes stays, which pictures keep in their metadata.
    """
    copied = copy.deepcopy(prompt)
    for key, name in seed_inputs(copied) if seed is not None else ():
        copied[key]["inputs"][name] = seed
    return copied


def own_seed(prompt: Prompt) -> int | None:
    """The seed that a prompt has itself; None where it has none, or several."""
    found = {prompt[key]["inputs"][name] for key, name in seed_inputs(prompt)}
    return found.pop() if len(found) == 1 else None


def digests(prompt: Prompt, seeds: Iterable[int | None]) -> Iterator[str]:
    """Names the prompt with each seed (None: its own): equal for equal prompts, however they are written."""
    own = own_seed(prompt)
    without = with_seed(prompt, 0)
    bases = {True: _sha(without), False: _sha(prompt)}  # one walk through the prompt for however many seeds
    for seed in seeds:
        taken = own if seed is None else seed
        yield hashlib.sha256(f"{bases[taken is not None]} {taken}".encode()).hexdigest()


def _sha(prompt: Prompt) -> str:
    text = json.dumps(prompt, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


@functools.lru_cache(4096)
def needs_in(text: str) -> Needs:
    """What was written down so."""
    return Needs(**{name: tuple(values) for name, values in json.loads(text).items()})


def needs(prompt: Prompt) -> Needs:
    """What has to be warm: a guess by names of inputs and ends of values, which costs only time where it is wrong."""
    models: set[str] = set()
    adapters: set[str] = set()
    sizes: set[str] = set()
    for node in prompt.values():
        size = []
        for name, value in node.get("inputs", {}).items():
            if isinstance(value, str) and value.lower().endswith(_FILES):
                kind = adapters if "lora" in name.lower() or "lora" in node["class_type"].lower() else models
                kind.add(value)
            elif name in _SIZES and isinstance(value, int):
                size.append(f"{name} {value}")
        if size:
            sizes.add(" ".join(size))
    return Needs(tuple(sorted(models)), tuple(sorted(adapters)), tuple(sorted(sizes)))
