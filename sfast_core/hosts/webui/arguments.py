"""The script's arguments, as the accordion and the API give them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...quality.levels import EXACT
from .switches import SWITCHES, TITLE

log = logging.getLogger("fast_compile")
#: the field of a reply's "extra_generation_params", and of the infotext, that says what was wrong
ERROR = f"{TITLE} error"


@dataclass(frozen=True)
class Arguments:
    """``alwayson_scripts: {"Fast Compile": {"args": [enabled, cuda_graphs, vae, text_encoder, quality]}}``, or one
    object: ``[{"enabled": true}]``.
    """

    enabled: bool = False
    cuda_graphs: bool = True
    vae: bool = True
    text_encoder: bool = True
    quality: str = EXACT


def parse(values: tuple[Any, ...]) -> Arguments:
    """The arguments from a script's positional ones.

    Raises:
        ValueError: an argument isn't known, or is no boolean, or no quality; the message names it.
    """
    if values and isinstance(values[0], Mapping):
        named = dict(values[0])
    else:
        named = dict(zip((switch.name for switch in SWITCHES), values, strict=False))
    # None: another extension that fills arguments in
    named = {name: value for name, value in named.items() if value is not None}
    for name, value in named.items():
        if name not in Arguments.__dataclass_fields__:
            raise ValueError(f"there is no argument {name!r}; there are {', '.join(Arguments.__dataclass_fields__)}")
        values = next(switch.values for switch in SWITCHES if switch.name == name)
        if value not in values if values else not isinstance(value, bool):
            raise ValueError(f"{name} is {value!r}, needs {', '.join(values) if values else 'true or false'}")
    return Arguments(**named)


def given(p: Any, values: tuple[Any, ...]) -> Arguments:
    """The arguments of a generation. Where they are wrong it is made as before, and both the log and the reply say what
    is wrong.

    Args:
        p: the webui's object for the generation.
        values: the script's.
    """
    try:
        return parse(values)
    except ValueError as error:
        if p.extra_generation_params.get(ERROR) != str(error):
            log.warning("Fast Compile: this picture is made as before: %s", error)
            p.extra_generation_params[ERROR] = str(error)
        return Arguments()
