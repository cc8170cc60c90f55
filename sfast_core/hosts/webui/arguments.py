"""The script's arguments, as the accordion and the API give them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .switches import SWITCHES


@dataclass(frozen=True)
class Arguments:
    """``alwayson_scripts: {"Fast Compile": {"args": [enabled, cuda_graphs, vae, text_encoder]}}``, or one object: ``[{"enabled": true}]``."""

    enabled: bool = False
    cuda_graphs: bool = True
    vae: bool = True
    text_encoder: bool = True


def parse(values: tuple[Any, ...]) -> Arguments:
    """The arguments from a script's positional ones.

    Raises:
        ValueError: an argument isn't known, or is no boolean; the message names it.
    """
    if values and isinstance(values[0], Mapping):
        named = dict(values[0])
    else:
        named = dict(zip((switch.name for switch in SWITCHES), values, strict=False))
    named = {name: value for name, value in named.items() if value is not None}  # None: another extension that fills arguments in
    for name, value in named.items():
        if name not in Arguments.__dataclass_fields__:
            raise ValueError(f"Fast Compile: there is no argument {name!r}; there are {', '.join(Arguments.__dataclass_fields__)}")
        if not isinstance(value, bool):
            raise ValueError(f"Fast Compile: {name} is {value!r}, needs true or false")
    return Arguments(**named)
